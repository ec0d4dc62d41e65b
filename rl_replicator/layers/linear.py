"""Fully connected layers that can compute in a narrower dtype."""

from typing import Any

import sonnet as snt
import tensorflow as tf

from rl_replicator.layers import precision

# Inputs and units from which a product saves more time than the conversions around it take: in
# bfloat16 on a processor with AMX, 256 units take as long as in float32, and 512 two thirds.
_LEAST_SIZE = 128


class Linear(snt.Linear):
    """`snt.Linear`, whose matrix product has the dtype of `precision.autocast`.

    Parameters, inputs, outputs and gradients are float32. The product's operands and its result
    are rounded to the narrower dtype, forwards and backwards, and all else is computed in float32.
    Layers with few inputs or units compute in float32, and so do most first and last layers, whose
    rounding would be felt most.
    """

    def __call__(self, inputs: tf.Tensor) -> tf.Tensor:
        """[B, N] float32 -> [B, M] float32."""
        dtype = precision.autocast_dtype()
        if dtype == tf.float32 or min(inputs.shape[-1], self.output_size) < _LEAST_SIZE:
            return super().__call__(inputs)
        self._initialize(inputs)
        outputs = _product(dtype)(inputs, tf.convert_to_tensor(self.w))
        return tf.nn.bias_add(outputs, self.b) if self.with_bias else outputs


def _product(dtype: tf.DType) -> Any:
    """Returns what multiplies in a dtype: ([B, N], [N, M]) float32 -> [B, M] float32."""

    @tf.custom_gradient
    def product(x: tf.Tensor, w: tf.Tensor) -> Any:
        narrow_x, narrow_w = tf.cast(x, dtype), tf.cast(w, dtype)

        # The derivative of a cast is one back, at which each gradient would be rounded twice.
        def gradient(g: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            narrow_g = tf.cast(g, dtype)
            d_x = tf.matmul(narrow_g, narrow_w, transpose_b=True)
            d_w = tf.matmul(narrow_x, narrow_g, transpose_a=True)
            return tf.cast(d_x, tf.float32), tf.cast(d_w, tf.float32)

        return tf.cast(tf.matmul(narrow_x, narrow_w), tf.float32), gradient

    return product
