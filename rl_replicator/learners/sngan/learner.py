"""The GAN: its variables, and the two steps that alternate."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

import rl_replicator as rr
from rl_replicator.checkpoints import values
from rl_replicator.collectives import randomness
from rl_replicator.layers import precision
from rl_replicator.learners import images as images_lib
from rl_replicator.learners.contract import Evaluation, Learner, Phase, Reference, Served
from rl_replicator.learners.sngan import metrics, networks
from rl_replicator.learners.sngan.config import SNGANConfig
from rl_replicator.replicator import Replicator
from rl_replicator.step.inputs.contract import InputContext

_GREY = 127.5
# The decay of the moving average in update t is at most t / (t + 9).
_WARM_UP = 9.0
# The uses of random numbers in the updates of both networks, two for each: noise and labels.
_DISCRIMINATOR, _GENERATOR = 0, 2
# Added to the seed of the run for the noise of the evaluations and that of the grid of samples.
_EVALUATION, _GRID = 3 << 40, 4 << 40
_ROWS, _COLUMNS = 10, 10
_BORDER, _WHITE = 2, 255

_Pair = tuple[tf.Tensor, tf.Tensor]


class SNGANLearner(Learner):
    """Trains a generator and a discriminator alternately.

    A step is `discriminator_steps` updates of the discriminator and one of the generator. Each
    takes a batch of the data; the generator's update uses only its size.

    Attributes:
      generator: maps noise and classes to images.
      average: its moving average, which generates the samples.
      discriminator: scores images.
      step_seed: the seeds of noise and labels.
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
        # Without augmentation, which the generator would reproduce.
        self._images = images_lib.load(recipe, images_lib.unchanged, images_lib.central_window)
        self._num_classes = self._images.num_classes
        self._dtype = precision.choose(recipe.precision)
        self.num_steps = recipe.steps
        self.global_batch_size = recipe.global_batch_size
        shape = self._images.image_shape
        self._layout = networks.layout(shape[0])
        self._suffix, self._classify = "", None
        if recipe.features is not None:
            self._suffix, self._classify = metrics.load(recipe.features, replicator, shape)
        tf.random.set_seed(recipe.seed)
        self.step_seed = randomness.StepSeeds()
        with replicator.scope():
            self.generator = self._make_generator("generator")
            self.average = self._make_generator("average")
            self.discriminator = networks.Discriminator(self._layout, recipe.width)
            self.discriminator(tf.zeros([1, *shape], self._dtype), self._one_hot([0]), False)
            self._generator_optimizer = self._make_optimizer(replicator)
            self._discriminator_optimizer = self._make_optimizer(replicator)
        _copy(self.generator, self.average)
        replicator.build_optimizer(self._generator_optimizer, self.generator.trainable_variables)
        replicator.build_optimizer(
            self._discriminator_optimizer, self.discriminator.trainable_variables
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
    def discriminator_step(self, batch: _Pair) -> Mapping[str, tf.Tensor]:
        """Updates the discriminator once, on as many generated images as real ones.

        Args:
          batch: images, [B, H, W, C] uint8, and labels, [B] int32.

        Returns:
          Metrics by name: scalars.
        """
        images, labels = batch  # [B, H, W, C] uint8, [B] int32
        optimizer = self._discriminator_optimizer
        noise, fake_labels = self._draw(labels.shape[0], optimizer.step, _DISCRIMINATOR)
        fakes = self.generator(noise, self._one_hot(fake_labels), is_training=True)
        # In one pass, so that there is one power iteration per update.
        both = tf.concat([self._scaled(images), fakes], axis=0)
        classes = self._one_hot(tf.concat([labels, fake_labels], axis=0))
        variables = self.discriminator.trainable_variables
        with tf.GradientTape() as tape:
            scores = self.discriminator(both, classes, is_training=True)  # [2B]
            real, fake = tf.split(scores, 2)
            loss = tf.reduce_mean(discriminator_hinge(real, fake))
        updates = optimizer.step // self._recipe.discriminator_steps
        self._set_rate(optimizer, self._recipe.discriminator_learning_rate, updates)
        optimizer.apply(tape.gradient(loss, variables), variables)
        return {
            "loss": loss,
            "real_score": tf.reduce_mean(real),
            "fake_score": tf.reduce_mean(fake),
        }

    @tf.autograph.experimental.do_not_convert
    def generator_step(self, batch: _Pair) -> Mapping[str, tf.Tensor]:
        """Updates the generator and its moving average once.

        Args:
          batch: see `discriminator_step`; only its size is used.

        Returns:
          Metrics by name: scalars.
        """
        optimizer = self._generator_optimizer
        noise, labels = self._draw(batch[1].shape[0], optimizer.step, _GENERATOR)
        classes = self._one_hot(labels)
        variables = self.generator.trainable_variables
        with tf.GradientTape() as tape:
            fakes = self.generator(noise, classes, is_training=True)
            # Uses the spectral norms as the discriminator's last update left them.
            scores = self.discriminator(fakes, classes, is_training=False)
            loss = tf.reduce_mean(-scores)  # Miyato et al. 2018, equation 17.
        self._set_rate(optimizer, self._recipe.generator_learning_rate, optimizer.step)
        optimizer.apply(tape.gradient(loss, variables), variables)
        self._update_average(optimizer.step)
        return {"loss": loss}

    def trackables(self) -> dict[str, Any]:
        return {
            "generator": self.generator,
            "discriminator": self.discriminator,
            "average": self.average,
            "generator_optimizer": self._generator_optimizer,
            "discriminator_optimizer": self._discriminator_optimizer,
        }

    def evaluation(self) -> Evaluation:
        """Evaluates images of the moving average; FID compares them with all test images."""
        return Evaluation(
            input_fn=self._evaluation_data,
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
            images = self.average(tf.cast(noise, tf.float32), classes, is_training=False)
            return {"images": _pixels(images)}

        noise = tf.TensorSpec([None, self._recipe.noise_size])
        return Served(function, {"noise": noise, "labels": tf.TensorSpec([None], tf.int32)})

    def images(self, step: int) -> Mapping[str, np.ndarray]:
        """Returns a grid of samples of the moving average.

        A row for each of the first ten classes, and a column for each noise vector.
        """
        del step
        _copy(self.average, self._sampler)
        rows = min(self._num_classes, _ROWS)
        seed = [self._recipe.seed + _GRID, 0]
        noise = tf.random.stateless_normal([_COLUMNS, self._recipe.noise_size], seed)
        noise = tf.cast(tf.tile(noise, [rows, 1]), self._dtype)
        classes = self._one_hot(tf.repeat(tf.range(rows), _COLUMNS))
        images = _pixels(self._sampler(noise, classes, is_training=False)).numpy()
        return {"samples": grid(images.astype(np.uint8), rows)}

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
        remaining = tf.cast(self.num_steps - step, tf.float32) / max(decay_steps, 1)
        optimizer.learning_rate.assign(
            first * tf.clip_by_value(remaining, 0.0, 1.0) if decay_steps else first
        )

    def _draw(self, batch_size: int, update: tf.Tensor, use: int) -> _Pair:
        """Draws noise, [B, Z], and equally likely labels, [B] int32, for an update."""
        noise = randomness.normal(
            [batch_size, self._recipe.noise_size], self.step_seed(update, use)
        )
        seed = self.step_seed(update, use + 1)
        labels = randomness.uniform_integers([batch_size], 0, self._num_classes, seed)
        return tf.cast(noise, self._dtype), labels

    def _update_average(self, step: tf.Tensor) -> None:
        """`average <- d average + (1 - d) x`, for weights and moving statistics.

        Yazici et al. 2019 (arXiv:1806.04498). d starts at 0.1 and grows, so that little of the
        initial weights remains.
        """
        t = tf.cast(step, tf.float32)
        decay = tf.minimum(self._recipe.average_decay, t / (t + _WARM_UP))
        for average, x in zip(self.average.variables, self.generator.variables, strict=True):
            average.assign_sub(tf.cast(1.0 - decay, x.dtype) * (average - x))

    def _evaluation_data(self, context: InputContext) -> tf.data.Dataset:
        """Returns this pipeline's part of fixed noise; its labels cycle through the classes."""
        count = self._recipe.samples
        seed = [self._recipe.seed + _EVALUATION, 0]
        noise = tf.random.stateless_normal([count, self._recipe.noise_size], seed)
        data = tf.data.Dataset.from_tensor_slices((noise, tf.range(count) % self._num_classes))
        size = context.per_replica_batch_size(self.global_batch_size)
        return context.shard(data.batch(size))

    @tf.autograph.experimental.do_not_convert
    def _sample_sums(self, batch: _Pair, mask: tf.Tensor) -> dict[str, tf.Tensor]:
        noise, labels = batch
        classes = self._one_hot(labels)
        images = self.average(tf.cast(noise, self._dtype), classes, is_training=False)
        scores = self.discriminator(images, classes, is_training=False)
        sums = {"samples": mask, "score": tf.where(mask > 0, tf.cast(scores, tf.float32), 0.0)}
        sums = {name: tf.reduce_sum(x) for name, x in sums.items()}
        if self._classify is not None:
            sums |= metrics.sums(*self._classify(_pixels(images)), mask)
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
        def sums_fn(batch: _Pair, mask: tf.Tensor) -> dict[str, tf.Tensor]:
            return metrics.sums(*classify(tf.cast(batch[0], tf.float32)), mask)

        return Reference(
            lambda context: self._images.evaluate(context, self.global_batch_size), sums_fn
        )

    def _one_hot(self, labels: Any) -> tf.Tensor:
        return tf.one_hot(labels, self._num_classes, dtype=self._dtype)  # [B, K]

    def _scaled(self, images: tf.Tensor) -> tf.Tensor:
        """Scales pixels from [0, 255] to [-1, 1], in the dtype in which the layers compute."""
        wide = tf.float64 if self._dtype == tf.float64 else tf.float32
        return tf.cast(tf.cast(images, wide) / _GREY - 1.0, self._dtype)


def discriminator_hinge(real: tf.Tensor, fake: tf.Tensor) -> tf.Tensor:
    """Computes `max(0, 1 - D(x)) + max(0, 1 + D(G(z)))`, Miyato et al. 2018, equation 16.

    Args:
      real: scores of real images, [B].
      fake: scores of generated images, [B].

    Returns:
      Losses, [B].
    """
    return tf.nn.relu(1.0 - real) + tf.nn.relu(1.0 + fake)


def grid(images: np.ndarray, rows: int) -> np.ndarray:
    """Returns one picture of several images, separated by white lines.

    Args:
      images: [rows * columns, H, W, C] uint8, row by row.
      rows: number of rows.

    Returns:
      [height, width, C] uint8.
    """
    border = [(0, 0), (0, _BORDER), (0, _BORDER), (0, 0)]
    images = np.pad(images, border, constant_values=_WHITE)
    images = images.reshape(rows, -1, *images.shape[1:])  # [rows, columns, H, W, C]
    return np.concatenate(np.concatenate(images, axis=1), axis=1)[:-_BORDER, :-_BORDER]


def _pixels(images: tf.Tensor) -> tf.Tensor:
    """Scales [-1, 1] to whole numbers from 0 to 255, in float32."""
    return tf.round((tf.cast(images, tf.float32) + 1.0) * _GREY)


def _copy(source: tf.Module, target: tf.Module) -> None:
    """Copies the variables of a network to another one of the same structure, on the host."""
    for a, b in zip(source.variables, target.variables, strict=True):
        values.write(b.name, b, values.read(a.name, a))
