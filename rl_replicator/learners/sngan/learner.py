"""The GAN: its variables, and the two steps that alternate."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

import rl_replicator as rr
from rl_replicator.checkpoints import values
from rl_replicator.layers import precision
from rl_replicator.learners.contract import Evaluation, Learner, Phase, Reference, Served
from rl_replicator.learners.sngan import data, features, losses, metrics, networks, samples
from rl_replicator.learners.sngan.config import SNGANConfig
from rl_replicator.replicator import Replicator
from rl_replicator.step.inputs import InputContext

_GREY = 127.5
# The decay of the moving average in update t is at most t / (t + 9).
_WARM_UP = 9.0


class SNGANLearner(Learner):
    """Trains a generator and a discriminator alternately.

    A step is `discriminator_steps` updates of the discriminator and one of the generator. Each
    takes a batch of the data; the generator's update uses only its size.
    """

    def __init__(self, replicator: Replicator, config: SNGANConfig):
        """Opens the data and creates all variables.

        Args:
          replicator: replicates the learner; the variables are created in its scope.
          config: hyper-parameters.

        Raises:
          UsageError: if data or features are missing, or do not fit each other.
        """
        self._recipe = recipe = config.resolved()
        self._images = data.load(recipe)
        self._num_classes = self._images.num_classes
        self._dtype = precision.choose(recipe.precision)
        self.num_steps = recipe.steps
        self.global_batch_size = recipe.global_batch_size
        shape = self._images.image_shape
        self._layout = networks.layout(shape[0])
        self._suffix, self._classify = "", None
        if recipe.features is not None:
            self._suffix, self._classify = features.load(recipe.features, replicator, shape)
        tf.random.set_seed(recipe.seed)
        with replicator.scope():
            self._generator = self._make_generator("generator")
            self._average = self._make_generator("average")
            self._discriminator = networks.Discriminator(self._layout, recipe.width)
            self._discriminator(tf.zeros([1, *shape], self._dtype), self._one_hot([0]), False)
            self._generator_optimizer = self._make_optimizer(replicator)
            self._discriminator_optimizer = self._make_optimizer(replicator)
        _copy(self._generator, self._average)
        replicator.build_optimizer(self._generator_optimizer, self._generator.trainable_variables)
        replicator.build_optimizer(
            self._discriminator_optimizer, self._discriminator.trainable_variables
        )
        # Generates the grid of samples. Outside the scope, because only the chief process runs it.
        self._sampler = self._make_generator("sampler")

    def input_fn(self, context: InputContext) -> tf.data.Dataset:
        return self.input_fn_from(context, 0)

    def input_fn_from(self, context: InputContext, batches: int) -> tf.data.Dataset:
        return self._images.train(context, self.global_batch_size, batches)

    def phases(self) -> Sequence[Phase]:
        return [
            Phase("discriminator", self.discriminator_step, self._recipe.discriminator_steps),
            Phase("generator", self.generator_step),
        ]

    @tf.autograph.experimental.do_not_convert  # Tracing then takes a third of the time.
    def discriminator_step(self, batch: tuple[tf.Tensor, tf.Tensor]) -> Mapping[str, tf.Tensor]:
        """Updates the discriminator once, on as many generated images as real ones.

        Args:
          batch: images, [B, H, W, C] uint8, and labels, [B] int32.

        Returns:
          Metrics by name: scalars.
        """
        images, labels = batch  # [B, H, W, C] uint8, [B] int32
        optimizer = self._discriminator_optimizer
        noise, fake_labels = self._draw(labels.shape[0], optimizer, samples.DISCRIMINATOR)
        fakes = self._generator(noise, self._one_hot(fake_labels), is_training=True)
        # In one pass, so that there is one power iteration per update.
        both = tf.concat([self._scaled(images), fakes], axis=0)
        classes = self._one_hot(tf.concat([labels, fake_labels], axis=0))
        variables = self._discriminator.trainable_variables
        with tf.GradientTape() as tape:
            scores = self._discriminator(both, classes, is_training=True)  # [2B]
            real, fake = tf.split(scores, 2)
            loss = tf.reduce_mean(losses.discriminator_hinge(real, fake))
        updates = optimizer.step // self._recipe.discriminator_steps
        self._set_rate(optimizer, self._recipe.discriminator_learning_rate, updates)
        optimizer.apply(tape.gradient(loss, variables), variables)
        return {
            "loss": loss,
            "real_score": tf.reduce_mean(real),
            "fake_score": tf.reduce_mean(fake),
        }

    @tf.autograph.experimental.do_not_convert
    def generator_step(self, batch: tuple[tf.Tensor, tf.Tensor]) -> Mapping[str, tf.Tensor]:
        """Updates the generator and its moving average once.

        Args:
          batch: see `discriminator_step`; only its size is used.

        Returns:
          Metrics by name: scalars.
        """
        optimizer = self._generator_optimizer
        noise, labels = self._draw(batch[1].shape[0], optimizer, samples.GENERATOR)
        classes = self._one_hot(labels)
        variables = self._generator.trainable_variables
        with tf.GradientTape() as tape:
            fakes = self._generator(noise, classes, is_training=True)
            # Uses the spectral norms as the discriminator's last update left them.
            scores = self._discriminator(fakes, classes, is_training=False)
            loss = tf.reduce_mean(losses.generator_hinge(scores))
        self._set_rate(optimizer, self._recipe.generator_learning_rate, optimizer.step)
        optimizer.apply(tape.gradient(loss, variables), variables)
        self._update_average(optimizer.step)
        return {"loss": loss}

    def trackables(self) -> dict[str, Any]:
        return {
            "generator": self._generator,
            "discriminator": self._discriminator,
            "average": self._average,
            "generator_optimizer": self._generator_optimizer,
            "discriminator_optimizer": self._discriminator_optimizer,
        }

    def evaluation(self) -> Evaluation:
        """Evaluates images of the moving average; FID compares them with all test images."""
        return Evaluation(
            input_fn=lambda context: samples.evaluation_data(
                context,
                self.global_batch_size,
                self._recipe.samples,
                self._recipe.noise_size,
                self._num_classes,
                self._recipe.seed,
            ),
            sums_fn=self._sample_sums,
            metrics_fn=self._figures,
            global_batch_size=self.global_batch_size,
            every=self._recipe.evaluate_steps,
            best="score" if self._classify is None else f"-fid{self._suffix}",
            reference=self._real_images(),
        )

    def served(self) -> Served:
        """Returns the averaged generator: noise, [B, Z], and labels, [B], to images, 0 to 255.

        It computes in float32, which all programs support, whatever the precision in training.
        """

        def function(noise: tf.Tensor, labels: tf.Tensor) -> dict[str, tf.Tensor]:
            classes = tf.one_hot(labels, self._num_classes)
            images = self._average(tf.cast(noise, tf.float32), classes, is_training=False)
            return {"images": self._pixels(images)}

        return Served(
            function,
            {
                "noise": tf.TensorSpec([None, self._recipe.noise_size]),
                "labels": tf.TensorSpec([None], tf.int32),
            },
        )

    def images(self, step: int) -> Mapping[str, np.ndarray]:
        """Returns a grid of samples of the moving average; see `samples.grid`."""
        del step
        _copy(self._average, self._sampler)
        image = samples.grid(
            lambda noise, labels: tf.cast(self._pixels(self._sample(noise, labels)), tf.uint8),
            self._recipe.noise_size,
            self._num_classes,
            self._recipe.seed,
        )
        return {"samples": image}

    def _make_generator(self, name: str) -> networks.Generator:
        recipe, channels = self._recipe, self._images.image_shape[-1]
        generator = networks.Generator(self._layout, recipe.width, channels, name)
        noise = tf.zeros([1, recipe.noise_size], self._dtype)
        generator(noise, self._one_hot([0]), is_training=False)
        return generator

    def _make_optimizer(self, replicator: Replicator) -> Any:
        rate = tf.Variable(0.0, trainable=False, name="learning_rate")
        return replicator.wrap_optimizer(
            rr.optimizers.Adam(rate, self._recipe.beta_1, self._recipe.beta_2)
        )

    def _set_rate(self, optimizer: Any, first: float, step: tf.Tensor) -> None:
        """Assigns the learning rate of a step: constant, then falling linearly to 0."""
        # A shorter run decays over all of its steps, so that it begins with the full rate, too.
        decay_steps = min(self._recipe.decay_steps, self.num_steps)
        if decay_steps:
            remaining = tf.cast(self.num_steps - step, tf.float32) / decay_steps
            optimizer.learning_rate.assign(first * tf.clip_by_value(remaining, 0.0, 1.0))
        else:
            optimizer.learning_rate.assign(first)

    def _draw(self, batch_size: int, optimizer: Any, stream: int) -> tuple[tf.Tensor, tf.Tensor]:
        """Draws noise, [B, Z], and labels, [B], for the optimizer's next update."""
        noise, labels = samples.draw(
            batch_size,
            self._recipe.noise_size,
            self._num_classes,
            tf.stack([tf.constant(self._recipe.seed + stream, tf.int64), optimizer.step]),
        )
        return tf.cast(noise, self._dtype), labels

    def _update_average(self, step: tf.Tensor) -> None:
        """`average <- d average + (1 - d) x`, for weights and moving statistics.

        Yazici et al. 2019 (arXiv:1806.04498). d starts at 0.1 and grows, so that little of the
        initial weights remains.
        """
        t = tf.cast(step, tf.float32)
        decay = tf.minimum(self._recipe.average_decay, t / (t + _WARM_UP))
        for average, x in zip(self._average.variables, self._generator.variables, strict=True):
            average.assign_sub(tf.cast(1.0 - decay, x.dtype) * (average - x))

    @tf.autograph.experimental.do_not_convert
    def _sample_sums(
        self, batch: tuple[tf.Tensor, tf.Tensor], mask: tf.Tensor
    ) -> dict[str, tf.Tensor]:
        noise, labels = batch
        classes = self._one_hot(labels)
        images = self._average(tf.cast(noise, self._dtype), classes, is_training=False)
        scores = self._discriminator(images, classes, is_training=False)
        sums = {"samples": mask, "score": tf.where(mask > 0, tf.cast(scores, tf.float32), 0.0)}
        sums = {name: tf.reduce_sum(x) for name, x in sums.items()}
        if self._classify is not None:
            sums |= metrics.sums(*self._classify(self._pixels(images)), mask)
        return sums

    def _figures(
        self, sums: Mapping[str, np.ndarray], real: Mapping[str, np.ndarray] | None = None
    ) -> dict[str, float]:
        figures = {"score": float(sums["score"] / sums["samples"])}
        if real is None:
            return figures
        distance = metrics.frechet_distance(metrics.statistics(sums), metrics.statistics(real))
        return {
            f"fid{self._suffix}": distance,
            f"inception_score{self._suffix}": metrics.inception_score(sums),
            **figures,
        }

    def _real_images(self) -> Reference | None:
        """Returns the sums over the test images; None without a classifier."""
        classify = self._classify
        if classify is None:
            return None

        @tf.autograph.experimental.do_not_convert
        def sums_fn(batch: tuple[tf.Tensor, tf.Tensor], mask: tf.Tensor) -> dict[str, tf.Tensor]:
            return metrics.sums(*classify(tf.cast(batch[0], tf.float32)), mask)

        return Reference(
            lambda context: self._images.evaluate(context, self.global_batch_size), sums_fn
        )

    def _sample(self, noise: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        noise = tf.cast(noise, self._dtype)
        return self._sampler(noise, self._one_hot(labels), is_training=False)

    def _one_hot(self, labels: Any) -> tf.Tensor:
        return tf.one_hot(labels, self._num_classes, dtype=self._dtype)  # [B, K]

    def _scaled(self, images: tf.Tensor) -> tf.Tensor:
        """Scales pixels from [0, 255] to [-1, 1], in the dtype in which the layers compute."""
        wide = tf.float64 if self._dtype == tf.float64 else tf.float32
        return tf.cast(tf.cast(images, wide) / _GREY - 1.0, self._dtype)

    @staticmethod
    def _pixels(images: tf.Tensor) -> tf.Tensor:
        """Scales [-1, 1] to whole numbers from 0 to 255, in float32."""
        return tf.round((tf.cast(images, tf.float32) + 1.0) * _GREY)


def _copy(source: tf.Module, target: tf.Module) -> None:
    """Copies the variables of a network to another one of the same structure, on the host."""
    for a, b in zip(source.variables, target.variables, strict=True):
        values.write(b.name, b, values.read(a.name, a))
