"""Batch normalisation that computes in the type of its input, with statistics in float32."""

import sonnet as snt
import tensorflow as tf

from rl_replicator import collectives

_EPSILON = 1e-5
_DECAY = 0.9


class BatchNorm(snt.Module):
    """`scale (x - mean) / sqrt(variance + epsilon) + offset` over batch, height and width.

    Ioffe & Szegedy 2015 (arXiv:1502.03167). While training, mean and variance are those of this
    replica's batch, and their moving averages follow by a tenth of the difference; otherwise the
    moving averages take their place.
    """

    def __init__(self, name: str, scale_init: snt.initializers.Initializer):
        super().__init__(name=name)
        self._scale_init = scale_init

    @snt.once
    def _build(self, channels: int) -> None:
        self.scale = tf.Variable(self._scale_init([channels], tf.float32), name="scale")
        self.offset = tf.Variable(tf.zeros([channels]), name="offset")
        self.moving_mean = tf.Variable(tf.zeros([channels]), trainable=False, name="mean")
        self.moving_variance = tf.Variable(tf.ones([channels]), trainable=False, name="variance")

    def __call__(self, x: tf.Tensor, is_training: bool) -> tf.Tensor:
        """[B, H, W, C] -> the same shape and type."""
        self._build(x.shape[-1])
        if not is_training:
            return self._fused(x, self.moving_mean, self.moving_variance)[0]
        y, mean, variance = self._normalise_batch(x)
        self.moving_mean.assign_sub((1 - _DECAY) * (self.moving_mean - mean))
        self.moving_variance.assign_sub((1 - _DECAY) * (self.moving_variance - variance))
        return y

    def _normalise_batch(self, x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        return self._fused(x, None, None)

    def _fused(
        self, x: tf.Tensor, mean: tf.Tensor | None, variance: tf.Tensor | None
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        return tf.compat.v1.nn.fused_batch_norm(
            x, self.scale, self.offset, mean, variance, _EPSILON, is_training=mean is None
        )


class CrossReplicaBatchNorm(BatchNorm):
    """The same with the mean and variance of the batch of all replicas.

    `variance = E[x^2] - E[x]^2`, with both expectations averaged over the replicas.
    """

    def _normalise_batch(self, x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        wide = tf.cast(x, tf.float32)
        mean, square = collectives.all_mean(
            [tf.reduce_mean(wide, axis=[0, 1, 2]), tf.reduce_mean(wide * wide, axis=[0, 1, 2])]
        )
        variance = square - mean * mean
        factor = self.scale * tf.math.rsqrt(variance + _EPSILON)
        y = wide * factor + (self.offset - mean * factor)
        return tf.cast(y, x.dtype), mean, variance
