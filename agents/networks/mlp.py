"""Fully connected networks that agents share."""

from collections.abc import Callable, Sequence
from typing import Any

import sonnet as snt
import tensorflow as tf

from rl_replicator.layers.linear import Linear

# Added to the variance, as in Sonnet's LayerNorm.
_EPSILON = 1e-5
# Where `narrow_layer_norm` is faster: for at least this many rows, and this many units per input.
# In a batch of 256 and with 256 units it saves a third of the time at 6 inputs, and nothing at 32.
_LEAST_ROWS = 64
_LEAST_UNITS_PER_INPUT = 8


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
      x: [B, M] float32. B is static, because `agents.acting.acting_policy` cannot query it.
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


MakeTorso = Callable[[Sequence[int], str], snt.Module]


class _NormalizedMlp(snt.Module):
    """A linear layer, LayerNorm, and further layers, in the fewest operations."""

    def __init__(self, layers: Sequence[Any], name: str):
        """Stores the layers, under the name that `snt.Sequential` gives them in checkpoints."""
        super().__init__(name)
        self._layers: list[Any] = list(layers)

    def __call__(self, inputs: tf.Tensor) -> tf.Tensor:
        """[B, N] float32 -> [B, M] float32."""
        linear, norm, *others = self._layers
        # The first call makes the variables.
        if hasattr(norm, "scale") and _is_narrow(inputs, linear.output_size):
            outputs = narrow_layer_norm(
                inputs,
                *(tf.convert_to_tensor(v) for v in (linear.w, linear.b, norm.scale, norm.offset)),
            )
        else:
            outputs = norm(linear(inputs))
        for layer in others:
            outputs = layer(outputs)
        return outputs


def _is_narrow(inputs: tf.Tensor, num_units: int) -> bool:
    num_rows, num_inputs = inputs.shape  # The number of rows is None where it is not static.
    return (num_rows or 0) >= _LEAST_ROWS and num_inputs * _LEAST_UNITS_PER_INPUT <= num_units


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
    return _NormalizedMlp(layers, name=name)
