"""Layer normalisation in few operations."""

import sonnet as snt
import tensorflow as tf

# Added to the variance, as in Sonnet's LayerNorm.
_EPSILON = 1e-5


@tf.custom_gradient
def layer_norm(x: tf.Tensor, scale: tf.Tensor, offset: tf.Tensor):
    """Normalises each row: scale * (x - mean) / sqrt(variance + 1e-5) + offset.

    Ba et al. 2016, equation 4 (arXiv:1607.06450). In a small network this takes as long as a
    matrix product, most of it in the gradient that TensorFlow derives. Here the gradient is written
    out; with n = (x - mean) / sqrt(variance + 1e-5), the derivative g of the loss with respect to
    the result, and means over the row,

        d scale = sum_rows g n,   d offset = sum_rows g,
        d x = (g scale - mean(g scale) - n mean(g scale n)) / sqrt(variance + 1e-5),

    and its sums are matrix products, the fastest reductions there are.

    Args:
      x: [B, N] float32.
      scale: [N] float32.
      offset: [N] float32.

    Returns:
      [B, N] float32.
    """
    centred = x - tf.reduce_mean(x, axis=-1, keepdims=True)  # [B, N]
    variance = tf.reduce_mean(tf.square(centred), axis=-1, keepdims=True)  # [B, 1]
    inverse = tf.math.rsqrt(variance + _EPSILON)  # [B, 1]
    normalised = centred * inverse  # [B, N]

    def gradient(g: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        gn = g * normalised  # [B, N]
        ones = tf.ones([1, tf.shape(x)[0]], x.dtype)
        weights = scale[:, None] / tf.cast(tf.shape(x)[1], x.dtype)  # [N, 1]
        mean_g, mean_gn = tf.matmul(g, weights), tf.matmul(gn, weights)  # [B, 1], [B, 1]
        return (
            (g * scale - mean_g - normalised * mean_gn) * inverse,
            tf.squeeze(tf.matmul(ones, gn), axis=0),
            tf.squeeze(tf.matmul(ones, g), axis=0),
        )

    return tf.nn.bias_add(normalised * scale, offset), gradient


@tf.custom_gradient
def narrow_layer_norm(
    x: tf.Tensor, w: tf.Tensor, b: tf.Tensor, scale: tf.Tensor, offset: tf.Tensor
):
    """Computes `layer_norm(x w + b, scale, offset)` for few inputs: M much smaller than N.

    Most of the time in `layer_norm` goes into passes over [B, N], especially those that multiply or
    shift whole rows. Here, all of these are applied to the M inputs or to the weights. With a 1
    added to each row of x, and b added to w as a row,

        x w - mean(x w) = x v,   v = w - mean(w), each row without its mean over N,
        n = (x v) / sqrt(variance + 1e-5) = (x / sqrt(variance + 1e-5)) v,

    and with the derivative g of the loss with respect to the result, and m = mean(g scale n),

        d v = (x / sqrt(variance + 1e-5))^T (g scale - n m),
        d x = ((g scale) v^T - (n v^T) m) / sqrt(variance + 1e-5).

    The results equal those of `layer_norm` up to rounding.

    Args:
      x: [B, M] float32. B is static, because `agents.acting.numpy_policy` cannot query it.
      w: [M, N] float32.
      b: [N] float32.
      scale: [N] float32.
      offset: [N] float32.

    Returns:
      [B, N] float32.
    """
    ones = tf.ones([x.shape[0], 1], x.dtype)
    inputs = tf.concat([x, ones], axis=1)  # [B, M + 1]
    weights = tf.concat([w, b[None]], axis=0)  # [M + 1, N]
    weights -= tf.reduce_mean(weights, axis=1, keepdims=True)
    centred = tf.matmul(inputs, weights)  # [B, N]
    variance = tf.reduce_mean(tf.square(centred), axis=-1, keepdims=True)  # [B, 1]
    inverse = tf.math.rsqrt(variance + _EPSILON)  # [B, 1]
    scaled = inputs * inverse  # [B, M + 1]

    def gradient(g: tf.Tensor) -> tuple[tf.Tensor, ...]:
        normalised = tf.matmul(scaled, weights)  # [B, N]
        gn = g * normalised  # [B, N]
        shares = scale[:, None] / tf.cast(tf.shape(centred)[1], x.dtype)  # [N, 1]
        mean_gn = tf.matmul(gn, shares)  # [B, 1]
        d_inputs = inverse * (
            tf.matmul(g, weights * scale, transpose_b=True)
            - mean_gn * tf.matmul(normalised, weights, transpose_b=True)
        )  # [B, M + 1]
        d_weights = scale * tf.matmul(scaled, g, transpose_a=True) - tf.matmul(
            scaled * mean_gn, normalised, transpose_a=True
        )  # [M + 1, N]
        d_weights -= tf.reduce_mean(d_weights, axis=1, keepdims=True)
        return (
            d_inputs[:, :-1],
            d_weights[:-1],
            d_weights[-1],
            tf.squeeze(tf.matmul(ones, gn, transpose_a=True), axis=0),
            tf.squeeze(tf.matmul(ones, g, transpose_a=True), axis=0),
        )

    return tf.nn.bias_add(tf.matmul(scaled, weights * scale), offset), gradient


class LayerNorm(snt.Module):
    """`layer_norm` with a scale and an offset that are trained: [B, N] -> [B, N] float32.

    Its variables have the same names as those of `snt.LayerNorm(-1, True, True)`.
    """

    @snt.once
    def _build(self, size: int) -> None:
        self.scale = tf.Variable(tf.ones([size]), name="scale")
        self.offset = tf.Variable(tf.zeros([size]), name="offset")

    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        """[B, N] float32 -> [B, N] float32."""
        self._build(x.shape[-1])
        return layer_norm(x, tf.convert_to_tensor(self.scale), tf.convert_to_tensor(self.offset))
