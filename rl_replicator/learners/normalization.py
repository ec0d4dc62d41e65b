"""Norms of activations and of weights, with variables and statistics in float32."""

import sonnet as snt
import tensorflow as tf

from rl_replicator.layers import batch_norm

_BATCH_EPSILON = 1e-5
_DECAY = 0.9
_LENGTH_EPSILON = 1e-12


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
            x, self.scale, self.offset, mean, variance, _BATCH_EPSILON, is_training=mean is None
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
    name: str, scale_init: snt.initializers.Initializer | None = None
) -> batch_norm.CrossReplicaBatchNorm:
    """Makes a batch norm that uses the mean and variance of the global batch.

    Args:
      name: name of the module.
      scale_init: initialises the scale; None for a norm whose calls are given scale and offset.
    """
    has_own = scale_init is not None
    return batch_norm.CrossReplicaBatchNorm(
        create_scale=has_own,
        create_offset=has_own,
        moving_mean=batch_norm.MovingAverage(_DECAY, start=0.0, name="moving_mean"),
        moving_variance=batch_norm.MovingAverage(_DECAY, start=1.0, name="moving_variance"),
        eps=_BATCH_EPSILON,
        scale_init=scale_init,
        name=name,
    )


class SpectralNorm(snt.Module):
    """Divides a weight by an estimate of its largest singular value.

    Miyato et al. 2018 (arXiv:1802.05957), Algorithm 1. One power iteration per update starts from
    the vector of the previous one. Replicas need not communicate: the iteration depends only on the
    weight and the vector, which are equal on all replicas, and not on the batch.

    Attributes:
      u: right vector of length 1, [M], equal on all replicas.
    """

    @snt.once
    def _build(self, w: tf.Tensor) -> None:
        start = tf.random.normal([w.shape[-1]], dtype=w.dtype)
        self.u = tf.Variable(_unit(start), trainable=False, name="u")

    def __call__(self, w: tf.Tensor, is_training: bool) -> tf.Tensor:
        """Normalises a weight.

        The gradient of the estimate `v^T w u` with respect to `w` is `v u^T`, that of a singular
        value: none flows through the vectors.

        Args:
          w: weight, [..., M] float32 or float64; all axes but the last are taken as one.
          is_training: whether to take a power iteration and store the vector.

        Returns:
          A tensor of the shape and dtype of `w`.
        """
        self._build(w)
        matrix = tf.reshape(w, [-1, w.shape[-1]])  # [N, M]
        fixed, u = tf.stop_gradient(matrix), tf.convert_to_tensor(self.u)
        v = _unit(tf.linalg.matvec(fixed, u))  # [N]
        if is_training:
            u = _unit(tf.linalg.matvec(fixed, v, transpose_a=True))
            self.u.assign(u)
        return w / tf.tensordot(v, tf.linalg.matvec(matrix, u), 1)


def _unit(vector: tf.Tensor) -> tf.Tensor:
    return tf.math.l2_normalize(vector, epsilon=_LENGTH_EPSILON)
