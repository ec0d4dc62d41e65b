"""The classifier: its optimizer, training step and evaluation."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import sonnet as snt
import tensorflow as tf

from rl_replicator.errors import check_option
from rl_replicator.layers import precision
from rl_replicator.learners import images as images_lib
from rl_replicator.learners.contract import Evaluation, Learner, Served
from rl_replicator.learners.normalization import BatchNorm, cross_replica_batch_norm
from rl_replicator.learners.resnet import networks
from rl_replicator.learners.resnet.config import ResNetConfig
from rl_replicator.optimizers import micro_batches, momentum, schedules
from rl_replicator.replicator import Replicator
from rl_replicator.step.inputs.contract import InputContext

_TOP = (1, 5)
# Other dtypes have enough range without a loss scale.
_LOSS_SCALES = {tf.float16: "dynamic"}


class Classifier:
    """Maps the images of a data set to features and logits.

    Attributes:
      images: the data set, whose channel statistics scale the input.
      network: the network, which holds all variables.
      dtype: dtype in which the layers compute.
    """

    def __init__(self, config: Any):
        """Opens the data and creates the variables; call it in the scope of a replicator.

        Args:
          config: a resolved config.

        Raises:
          UsageError: if the data is missing or damaged.
        """
        self.dtype = precision.choose(config.precision)
        self.images = images_lib.load(
            config, images_lib.shifted_and_flipped, images_lib.random_window
        )
        self.network = networks.ResNet(
            config.depth,
            self.images.num_classes,
            config.stem,
            cross_replica_batch_norm if config.cross_replica_norm else BatchNorm,
            config.width,
        )
        self.network(tf.zeros([1, *self.images.image_shape], self.dtype), is_training=False)

    def __call__(
        self, images: tf.Tensor, is_training: bool = False, dtype: tf.DType | None = None
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Computes features and logits.

        Args:
          images: [B, H, W, C] of any numeric dtype, 0 to 255, of the data set's shape.
          is_training: whether batch norm uses the statistics of the batch.
          dtype: dtype in which the layers compute; None for that of training.

        Returns:
          Features, [B, F] float32, and logits, [B, K] float32.
        """
        scaled = (tf.cast(images, tf.float32) - self.images.mean) / self.images.deviation
        return self.network(tf.cast(scaled, dtype or self.dtype), is_training)


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
        parts = replicator.num_replicas * recipe.micro_batches
        check_option(
            recipe.global_batch_size % parts == 0,
            "global_batch_size",
            f"a multiple of {replicator.num_replicas} replicas x {recipe.micro_batches} "
            "micro-batches",
            recipe.global_batch_size,
        )
        self.global_batch_size = recipe.global_batch_size
        tf.random.set_seed(recipe.seed)
        with replicator.scope():
            self.classifier = Classifier(recipe)
        steps_per_epoch = self.classifier.images.num_train / recipe.global_batch_size
        self.num_steps = max(1, round(recipe.epochs * steps_per_epoch))
        self._evaluate_every = max(1, round(recipe.evaluate_epochs * steps_per_epoch))
        self._rate = make_schedule(recipe, steps_per_epoch, self.num_steps)
        with replicator.scope():
            self._optimizer = replicator.wrap_optimizer(
                make_optimizer(recipe, self._rate),
                loss_scale=_LOSS_SCALES.get(self.classifier.dtype),
            )
        self._parameters = self.classifier.network.trainable_variables
        replicator.build_optimizer(self._optimizer, self._parameters)

    def input_fn(self, context: InputContext) -> tf.data.Dataset:
        return self.input_fn_from(context, 0)

    def input_fn_from(self, context: InputContext, batches: int) -> tf.data.Dataset:
        return self.classifier.images.train(context, self.global_batch_size, batches)

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
            _, logits = self.classifier(images, is_training=True)  # [B, K] float32
            loss = tf.reduce_mean(cross_entropy(labels, logits, self._recipe.label_smoothing))
            scaled = self._optimizer.scale_loss(loss)
        accuracy = tf.reduce_mean(in_top(1, labels, logits))
        return tape.gradient(scaled, self._parameters), {"loss": loss, "accuracy": accuracy}

    def served(self) -> Served:
        """Returns the classifier: images, [B, H, W, C] uint8, to features and logits.

        It computes in float32, which all programs support, whatever the precision in training.
        """

        def function(images: tf.Tensor) -> dict[str, tf.Tensor]:
            features, logits = self.classifier(images, dtype=tf.float32)
            return {"features": features, "logits": logits}

        shape = self.classifier.images.image_shape
        return Served(function, {"images": tf.TensorSpec([None, *shape], tf.uint8)})

    def trackables(self) -> dict[str, Any]:
        return {"network": self.classifier.network, "optimizer": self._optimizer}

    def evaluation(self) -> Evaluation:
        data = self.classifier.images
        return Evaluation(
            input_fn=lambda context: data.evaluate(context, self.global_batch_size),
            sums_fn=self._sums,
            metrics_fn=_figures,
            global_batch_size=self.global_batch_size,
            every=self._evaluate_every,
            best=f"top_{_TOP[0]}",
        )

    @tf.autograph.experimental.do_not_convert
    def _sums(self, batch: tuple[tf.Tensor, tf.Tensor], mask: tf.Tensor) -> Mapping[str, tf.Tensor]:
        images, labels = batch
        _, logits = self.classifier(images)
        sums = {f"top_{k}": in_top(k, labels, logits) for k in _TOP}
        sums |= {"loss": cross_entropy(labels, logits), "examples": mask}
        # Padding may have NaN.
        return {name: tf.reduce_sum(tf.where(mask > 0, x, 0.0)) for name, x in sums.items()}


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


def cross_entropy(labels: tf.Tensor, logits: tf.Tensor, smoothing: float = 0.0) -> tf.Tensor:
    """Computes the cross-entropy with label smoothing for each example.

    `-sum_k q(k) log p(k)` with `q(k) = (1 - smoothing) [k = label] + smoothing / K`: Szegedy et al.
    2016 (arXiv:1512.00567), section 7.

    Args:
      labels: [B] int, in [0, K).
      logits: [B, K] float32.
      smoothing: probability mass spread evenly over all classes, in [0, 1).

    Returns:
      [B] float32.
    """
    return tf.keras.losses.categorical_crossentropy(
        tf.one_hot(labels, logits.shape[-1]), logits, from_logits=True, label_smoothing=smoothing
    )


def in_top(k: int, labels: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
    """Returns for each example whether the label is among the k highest logits.

    Ties count against the classifier, because equal logits for all classes contain no information
    (`tf.math.in_top_k` counts them for it). NaN counts against it, too.

    Args:
      k: number of highest logits, at least 1.
      labels: [B] int, in [0, K).
      logits: [B, K].

    Returns:
      [B] float32, 1 or 0.
    """
    own = tf.gather(logits, labels, batch_dims=1)  # [B]
    not_lower = tf.logical_not(logits < own[:, None])  # [B, K], true for the label itself.
    return tf.cast(tf.reduce_sum(tf.cast(not_lower, tf.int32), axis=1) <= k, tf.float32)


def _figures(sums: Mapping[str, np.ndarray]) -> dict[str, float]:
    examples = sums["examples"]
    figures = {name: float(value / examples) for name, value in sums.items() if name != "examples"}
    return {**figures, "examples": float(examples)}
