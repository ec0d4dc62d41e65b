"""Batch normalisation that computes in the dtype of its input, with statistics in float32."""

import sonnet as snt
import tensorflow as tf

from rl_replicator.layers import batch_norm

_EPSILON = 1e-5
_DECAY = 0.9


class BatchNorm(snt.Module):
    """`scale (x - mean) / sqrt(variance + epsilon) + offset` over batch, height and width.

    Ioffe & Szegedy 2015 (arXiv:1502.03167). In training, mean and variance are those of the
    replica's own batch. Their moving averages, with a decay of 0.9, are averaged over replicas
    after each step and replace them in evaluation.
    """

    def __init__(self, name: str, scale_init: snt.initializers.Initializer):
        """Creates no variable yet.

        Args:
          name: name of the module.
          scale_init: initialises the scale.
        """
        super().__init__(name=name)
        self._scale_init = scale_init

    @snt.once
    def _build(self, channels: int) -> None:
        self.scale = tf.Variable(self._scale_init([channels], tf.float32), name="scale")
        self.offset = tf.Variable(tf.zeros([channels]), name="offset")
        self.moving_mean = _statistic(tf.zeros([channels]), "moving_mean")
        self.moving_variance = _statistic(tf.ones([channels]), "moving_variance")

    def __call__(self, x: tf.Tensor, is_training: bool) -> tf.Tensor:
        """Normalises a batch.

        Args:
          x: [B, H, W, C].
          is_training: whether to use, and to average, the statistics of the batch.

        Returns:
          A tensor of the shape and dtype of `x`.
        """
        self._build(x.shape[-1])
        if not is_training:
            return self._fused(x, self.moving_mean, self.moving_variance)[0]
        y, mean, variance = self._fused(x, None, None)
        self.moving_mean.assign_sub((1 - _DECAY) * (self.moving_mean - mean))
        self.moving_variance.assign_sub((1 - _DECAY) * (self.moving_variance - variance))
        return y

    def _fused(
        self, x: tf.Tensor, mean: tf.Tensor | None, variance: tf.Tensor | None
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        return tf.compat.v1.nn.fused_batch_norm(
            x, self.scale, self.offset, mean, variance, _EPSILON, is_training=mean is None
        )


def _statistic(value: tf.Tensor, name: str) -> tf.Variable:
    """Makes a variable that each replica updates, and that is averaged over replicas."""
    return tf.Variable(
        value,
        trainable=False,
        synchronization=tf.VariableSynchronization.ON_READ,
        aggregation=tf.VariableAggregation.MEAN,
        name=name,
    )


def cross_replica_batch_norm(
    name: str, scale_init: snt.initializers.Initializer
) -> batch_norm.CrossReplicaBatchNorm:
    """Makes a batch norm that uses the mean and variance of the global batch.

    Args:
      name: name of the module.
      scale_init: initialises the scale.
    """
    return batch_norm.CrossReplicaBatchNorm(
        create_scale=True,
        create_offset=True,
        moving_mean=batch_norm.MovingAverage(_DECAY, start=0.0, name="moving_mean"),
        moving_variance=batch_norm.MovingAverage(_DECAY, start=1.0, name="moving_variance"),
        eps=_EPSILON,
        scale_init=scale_init,
        name=name,
    )
