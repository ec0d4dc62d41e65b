"""Fully connected layers that can compute in a narrower dtype."""

import sonnet as snt
import tensorflow as tf

from rl_replicator.layers import precision

# Layers with fewer inputs or units compute in float32: the conversions take as long as the product
# saves. On a processor with AMX, layers of 256 units took as long in bfloat16 as in float32, and
# layers of 512 units two thirds of the time.
_LEAST_SIZE = 512


class Linear(snt.Linear):
    """`snt.Linear` with its matrix product in the dtype of `precision.autocast`.

    Parameters, inputs, outputs and gradients are float32. The product's operands and its result
    are rounded to the narrower dtype, forwards and backwards, and all else is computed in float32.
    Layers with few inputs or units compute in float32. That includes most first and last layers,
    where rounding would have the largest effect.
    """

    def __call__(self, inputs: tf.Tensor) -> tf.Tensor:
        """[..., N] float32 -> [..., M] float32."""
        dtype = precision.autocast_dtype()
        if dtype == tf.float32 or min(inputs.shape[-1], self.output_size) < _LEAST_SIZE:
            return super().__call__(inputs)
        self._initialize(inputs)
        product = tf.matmul(tf.cast(inputs, dtype), tf.cast(self.w, dtype))
        outputs = tf.cast(product, tf.float32)
        return tf.nn.bias_add(outputs, self.b) if self.with_bias else outputs
