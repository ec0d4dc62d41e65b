"""The learner of the classifier: its optimizer, training step and evaluation."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import sonnet as snt
import tensorflow as tf

from rl_replicator.errors import check_option
from rl_replicator.learners.contract import Evaluation, Learner, Served
from rl_replicator.learners.resnet import data, losses, networks
from rl_replicator.learners.resnet.classifier import Classifier
from rl_replicator.learners.resnet.config import ResNetConfig
from rl_replicator.optimizers import micro_batches, momentum, schedules
from rl_replicator.replicator import Replicator
from rl_replicator.step.inputs import InputContext

_TOP = (1, 5)
# Other dtypes have enough range without a loss scale.
_LOSS_SCALES = {tf.float16: "dynamic"}


class ResNetLearner(Learner):
    """Trains a ResNet on labelled images."""

    def __init__(self, replicator: Replicator, config: ResNetConfig):
        """Opens the data and creates all variables.

        Args:
          replicator: replicates the learner; the variables are created in its scope.
          config: hyper-parameters.

        Raises:
          UsageError: if the data is missing or damaged, or a setting does not fit the replicas.
        """
        self._recipe = recipe = config.resolved()
        self._images = data.load(recipe)
        _check_micro_batches(recipe, replicator.num_replicas)
        self.global_batch_size = recipe.global_batch_size
        steps_per_epoch = self._images.num_train / recipe.global_batch_size
        self.num_steps = max(1, round(recipe.epochs * steps_per_epoch))
        self._evaluate_every = max(1, round(recipe.evaluate_epochs * steps_per_epoch))
        self._rate = make_schedule(recipe, steps_per_epoch, self.num_steps)
        tf.random.set_seed(recipe.seed)
        with replicator.scope():
            self._classifier = Classifier(recipe, self._images)
            self._optimizer = replicator.wrap_optimizer(
                make_optimizer(recipe, self._rate),
                loss_scale=_LOSS_SCALES.get(self._classifier.dtype),
            )
        self._parameters = self._classifier.network.trainable_variables
        replicator.build_optimizer(self._optimizer, self._parameters)

    def input_fn(self, context: InputContext) -> tf.data.Dataset:
        return self.input_fn_from(context, 0)

    def input_fn_from(self, context: InputContext, batches: int) -> tf.data.Dataset:
        return self._images.train(context, self.global_batch_size, batches)

    @tf.autograph.experimental.do_not_convert  # Halves the time of tracing.
    def step_fn(self, batch: tuple[tf.Tensor, tf.Tensor]) -> Mapping[str, tf.Tensor]:
        """Takes one step of gradient descent on the smoothed cross-entropy.

        Args:
          batch: images, [B, H, W, C] uint8, and labels, [B] int32.

        Returns:
          Metrics by name: scalars.
        """
        gradients, metrics = micro_batches.accumulate(
            self._gradients, batch, self._recipe.micro_batches
        )
        metrics["learning_rate"] = self._rate(self._optimizer.step)
        self._optimizer.apply(gradients, self._parameters)
        return metrics

    def _gradients(
        self, batch: tuple[tf.Tensor, tf.Tensor]
    ) -> tuple[list[tf.Tensor], dict[str, tf.Tensor]]:
        """Returns the gradients of the scaled loss with respect to the parameters, and metrics."""
        images, labels = batch  # [B, H, W, C] uint8, [B] int32
        with tf.GradientTape() as tape:
            logits = self._classifier(images, is_training=True)  # [B, K] float32
            smoothing = self._recipe.label_smoothing
            loss = tf.reduce_mean(losses.smoothed_cross_entropy(labels, logits, smoothing))
            scaled = self._optimizer.scale_loss(loss)
        accuracy = tf.reduce_mean(losses.in_top(1, labels, logits))
        return tape.gradient(scaled, self._parameters), {"loss": loss, "accuracy": accuracy}

    def served(self) -> Served:
        """Returns the classifier: images, [B, H, W, C] uint8, to features and logits.

        It computes in float32, which all programs support, whatever the precision in training.
        """

        def function(images: tf.Tensor) -> dict[str, tf.Tensor]:
            features, logits = self._classifier.classify(images, dtype=tf.float32)
            return {"features": features, "logits": logits}

        return Served(
            function, {"images": tf.TensorSpec([None, *self._images.image_shape], tf.uint8)}
        )

    def trackables(self) -> dict[str, Any]:
        return {"network": self._classifier.network, "optimizer": self._optimizer}

    def evaluation(self) -> Evaluation:
        return Evaluation(
            input_fn=lambda context: self._images.evaluate(context, self.global_batch_size),
            sums_fn=self._sums,
            metrics_fn=_figures,
            global_batch_size=self.global_batch_size,
            every=self._evaluate_every,
            best="top_1",
        )

    @tf.autograph.experimental.do_not_convert
    def _sums(self, batch: tuple[tf.Tensor, tf.Tensor], mask: tf.Tensor) -> dict[str, tf.Tensor]:
        images, labels = batch
        logits = self._classifier(images, is_training=False)
        sums = {f"top_{k}": losses.in_top(k, labels, logits) for k in _TOP}
        sums["loss"] = losses.smoothed_cross_entropy(labels, logits)
        sums["examples"] = tf.ones_like(mask)
        # Selected and not multiplied: padding may hold NaN, and 0 * NaN is NaN.
        return {name: tf.reduce_sum(tf.where(mask > 0, x, 0.0)) for name, x in sums.items()}


def _check_micro_batches(recipe: Any, num_replicas: int) -> None:
    parts = num_replicas * recipe.micro_batches
    check_option(
        recipe.global_batch_size % parts == 0,
        "global_batch_size",
        f"a multiple of {num_replicas} replicas x {recipe.micro_batches} micro-batches",
        recipe.global_batch_size,
    )


def make_schedule(config: Any, steps_per_epoch: float, num_steps: int) -> schedules.Schedule:
    """Returns the learning rate as a function of the step.

    Args:
      config: a resolved config.
      steps_per_epoch: number of steps in an epoch; may be fractional.
      num_steps: number of steps of the run.
    """
    peak = schedules.scaled(config.learning_rate, config.global_batch_size)
    rising = min(round(config.warm_up_epochs * steps_per_epoch), num_steps)
    if config.schedule == "cosine":
        after = schedules.cosine(peak, rising, num_steps)
    else:  # 30, 60 and 80 of 90 epochs.
        after = schedules.stairs(peak, [round(num_steps * x) for x in (1 / 3, 2 / 3, 8 / 9)])
    return schedules.warm_up(peak, rising, after)


def make_optimizer(config: Any, rate: schedules.Schedule) -> snt.Optimizer:
    """Returns the optimizer of a resolved config, not yet wrapped."""
    kind = {"momentum": momentum.Momentum, "lars": momentum.LARS}[config.optimizer]
    return kind(rate, networks.decayed, config.momentum, config.weight_decay)


def _figures(sums: Mapping[str, np.ndarray]) -> dict[str, float]:
    examples = sums["examples"]
    figures = {name: float(value / examples) for name, value in sums.items() if name != "examples"}
    return {**figures, "examples": float(examples)}
