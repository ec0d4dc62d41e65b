"""Spectral normalisation: Miyato et al. 2018 (arXiv:1802.05957), Algorithm 1.

The largest singular value of a weight is estimated by one power iteration per update, which starts
from the vector of the previous one. Replicas need not communicate: the iteration depends only on
the weight and the vector, which are equal on all replicas, and not on the batch.

A training pass of the discriminator iterates once and stores the vector. Each of its `n_dis`
updates is one such pass, over real and generated images together. All other passes, including that
of the generator's update, only read the vector.
"""

import sonnet as snt
import tensorflow as tf

_EPSILON = 1e-12


def power_iteration(w: tf.Tensor, u: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Takes one iteration towards the first pair of singular vectors.

    Args:
      w: weight, [N, M].
      u: right vector of length 1, [M].

    Returns:
      The left vector, [N], and the next right vector, [M], both of length 1. No gradient flows
      through them.
    """
    w = tf.stop_gradient(w)
    v = left_vector(w, u)
    return v, tf.math.l2_normalize(tf.linalg.matvec(w, v, transpose_a=True), epsilon=_EPSILON)


def left_vector(w: tf.Tensor, u: tf.Tensor) -> tf.Tensor:
    """Returns `w u`, [N], scaled to length 1, without gradient; see `power_iteration`."""
    return tf.math.l2_normalize(tf.linalg.matvec(tf.stop_gradient(w), u), epsilon=_EPSILON)


def singular_value(w: tf.Tensor, v: tf.Tensor, u: tf.Tensor) -> tf.Tensor:
    """Estimates the singular value as `v^T w u`.

    The gradient of the estimate with respect to `w` is `v u^T`, that of a singular value.

    Args:
      w: weight, [N, M].
      v: left vector of length 1, [N].
      u: right vector of length 1, [M].

    Returns:
      A scalar of the dtype of `w`.
    """
    return tf.tensordot(v, tf.linalg.matvec(w, u), 1)


class SpectralNorm(snt.Module):
    """Divides a weight by the estimate of its largest singular value.

    Attributes:
      u: right vector of length 1, [M], equal on all replicas.
    """

    @snt.once
    def _build(self, w: tf.Tensor) -> None:
        start = tf.random.normal([w.shape[-1]], dtype=w.dtype)
        self.u = tf.Variable(tf.math.l2_normalize(start), trainable=False, name="u")

    def __call__(self, w: tf.Tensor, is_training: bool) -> tf.Tensor:
        """Normalises a weight.

        Args:
          w: weight, [..., M] float32 or float64; all axes but the last are taken as one.
          is_training: whether to take a power iteration and store the vector.

        Returns:
          A tensor of the shape and dtype of `w`.
        """
        self._build(w)
        matrix = tf.reshape(w, [-1, w.shape[-1]])
        u = tf.convert_to_tensor(self.u)
        if is_training:
            v, u = power_iteration(matrix, u)
            self.u.assign(u)
        else:
            v = left_vector(matrix, u)
        return w / singular_value(matrix, v, u)
