"""Fully connected networks that agents share."""

from collections.abc import Callable, Sequence

import sonnet as snt
import tensorflow as tf

from rl_replicator.layers.linear import Linear

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


MakeTorso = Callable[[Sequence[int], str], snt.Module]


def layer_norm_mlp(layer_sizes: Sequence[int], name: str) -> snt.Module:
    """A multi-layer perceptron with LayerNorm and tanh after its first layer, ELU after the others.

    LayerNorm and tanh bound the features whatever the observation's scale, which keeps the critic
    from diverging (the torso of D4PG's and MPO's published agents).

    Args:
      layer_sizes: units of each layer, at least one.
      name: name of the module.

    Returns:
      A module from [B, N] to [B, layer_sizes[-1]] float32.
    """
    layers: list[Callable] = []
    for index, size in enumerate(layer_sizes):
        # Distinct names: actors match variables by path.
        init = snt.initializers.VarianceScaling(0.333, mode="fan_out", distribution="uniform")
        layers.append(Linear(size, w_init=init, name=f"linear_{index}"))
        layers += [LayerNorm(), tf.tanh] if index == 0 else [tf.nn.elu]
    return snt.Sequential(layers, name=name)
