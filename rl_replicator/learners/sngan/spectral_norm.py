"""Spectral normalisation: Miyato et al. 2018 (arXiv:1802.05957), Algorithm 1.

The largest singular value of a weight is estimated by one power iteration per update, from where
the last one ended. On replicas that need no exchange: weights are equal on all of them, and so are
the vectors at the start; the iteration is a function of these alone, and not of the batch.

A training pass of the discriminator iterates once and stores the vectors: once in each of its
`n_dis` updates, real and generated images being one pass. All other passes, those of the
generator's update among them, read the vectors and write nothing.
"""

import sonnet as snt
import tensorflow as tf

_EPSILON = 1e-12


def power_iteration(w: tf.Tensor, u: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """One iteration towards the first pair of singular vectors.

    Args:
      w: [N, M].
      u: [M], of length 1.

    Returns:
      [N] v and [M] the next u, of length 1; no gradient reaches `w` through them.
    """
    w = tf.stop_gradient(w)
    v = left_vector(w, u)
    return v, tf.math.l2_normalize(tf.linalg.matvec(w, v, transpose_a=True), epsilon=_EPSILON)


def left_vector(w: tf.Tensor, u: tf.Tensor) -> tf.Tensor:
    """[N], `w u` of length 1, without a gradient; see `power_iteration`."""
    return tf.math.l2_normalize(tf.linalg.matvec(tf.stop_gradient(w), u), epsilon=_EPSILON)


def singular_value(w: tf.Tensor, v: tf.Tensor, u: tf.Tensor) -> tf.Tensor:
    """`v^T w u`; its gradient by `w` is `v u^T`, as that of a singular value is.

    Args:
      w: [N, M].
      v: [N], of length 1.
      u: [M], of length 1.

    Returns:
      A scalar.
    """
    return tf.tensordot(v, tf.linalg.matvec(w, u), 1)


class SpectralNorm(snt.Module):
    """Divides a weight by its largest singular value, as estimated.

    Attributes:
      u: [M], the right vector, of length 1 and the same on all replicas.
    """

    @snt.once
    def _build(self, w: tf.Tensor) -> None:
        start = tf.random.normal([w.shape[-1]], dtype=w.dtype)
        self.u = tf.Variable(tf.math.l2_normalize(start), trainable=False, name="u")

    def __call__(self, w: tf.Tensor, is_training: bool) -> tf.Tensor:
        """[..., M] -> the same; all axes but the last count as one.

        Args:
          w: the weight, float32 or float64.
          is_training: whether to iterate and to store the vector.
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
