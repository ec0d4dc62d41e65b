"""Optimizers on TensorFlow's fused kernels."""

from collections.abc import Sequence
from typing import Any

import sonnet as snt
import tensorflow as tf

from rl_replicator import errors
from rl_replicator.optimizers import slots


class Adam(snt.optimizers.Adam):
    """Sonnet's Adam with one kernel per parameter instead of a dozen small operations.

    Arguments, attributes (`step`, `m`, `v`) and results are those of `snt.optimizers.Adam`, so
    checkpoints of the two are exchangeable. Kingma & Ba 2015, Algorithm 1 (arXiv:1412.6980).

    The kernel computes `lr sqrt(1 - b2^t) / (1 - b1^t) * m / (sqrt(v) + eps')`. This is the
    paper's `lr * m_hat / (sqrt(v_hat) + eps)` if `eps' = eps sqrt(1 - b2^t)`.

    There is no such kernel for `tf.IndexedSlices`: their rows take several operations.
    """

    def apply(self, updates: Sequence[Any], parameters: Sequence[tf.Variable]) -> None:
        """Updates the parameters in place; skips those whose update is None.

        Raises:
          ConfigError: if a parameter has a dtype of 16 bits.
          ValueError: if lengths or dtypes differ, or there is no parameter or no update at all.
        """
        for parameter in parameters:
            # 0.999 is 1 in bfloat16, and 1e-8 is 0 in float16: both divide by zero.
            if parameter.dtype in (tf.bfloat16, tf.float16):
                raise errors.ConfigError(
                    f"expected parameters of Adam in float32 or float64, got {parameter.name!r} in "
                    f"{parameter.dtype.name}; keep it in float32, and cast it where it is used"
                )
        slots.check(updates, parameters)
        self._initialize(parameters)
        self.step.assign_add(1)
        by_dtype: dict[tf.DType, dict[str, tf.Tensor]] = {}
        for update, parameter, m, v in zip(updates, parameters, self.m, self.v, strict=True):
            if update is None:
                continue
            dtype = update.dtype
            if dtype not in by_dtype:
                by_dtype[dtype] = self._coefficients(dtype)
            if isinstance(update, tf.IndexedSlices):
                _apply_rows(update, parameter, m, v, **by_dtype[dtype])
                continue
            tf.raw_ops.ResourceApplyAdam(
                var=parameter.handle,
                m=m.handle,
                v=v.handle,
                grad=slots.in_layout_of(parameter, update),
                **by_dtype[dtype],
            )

    def _coefficients(self, dtype: tf.DType) -> dict[str, tf.Tensor]:
        step = tf.cast(self.step, dtype)
        beta1, beta2 = tf.cast(self.beta1, dtype), tf.cast(self.beta2, dtype)
        beta2_power = tf.pow(beta2, step)
        return {
            "beta1_power": tf.pow(beta1, step),
            "beta2_power": beta2_power,
            "lr": tf.cast(self.learning_rate, dtype),
            "beta1": beta1,
            "beta2": beta2,
            "epsilon": tf.cast(self.epsilon, dtype) * tf.sqrt(1 - beta2_power),
        }


class AdamW(Adam):
    """Adam that also moves each parameter towards 0, by `learning_rate * weight_decay` of it.

    Loshchilov & Hutter 2019, Algorithm 2 (arXiv:1711.05101), without a schedule.
    """

    def __init__(self, learning_rate: float, weight_decay: float, name: str | None = None):
        """Creates no variable yet.

        Args:
          learning_rate: step size.
          weight_decay: decay of all parameters, also of biases, relative to the step size.
          name: the name of the module.
        """
        super().__init__(learning_rate, name=name)
        self.weight_decay = weight_decay

    def apply(self, updates: Sequence[Any], parameters: Sequence[tf.Variable]) -> None:
        """Updates the parameters in place; see `Adam.apply`."""
        slots.check(updates, parameters)
        for update, parameter in zip(updates, parameters, strict=True):
            if update is not None:
                share = tf.cast(self.learning_rate * self.weight_decay, parameter.dtype)
                parameter.assign_sub(share * parameter)
        super().apply(updates, parameters)


def _apply_rows(
    update: tf.IndexedSlices,
    parameter: tf.Variable,
    m: tf.Variable,
    v: tf.Variable,
    *,
    beta1_power: tf.Tensor,
    beta2_power: tf.Tensor,
    lr: tf.Tensor,
    beta1: tf.Tensor,
    beta2: tf.Tensor,
    epsilon: tf.Tensor,
) -> None:
    """Computes the same as the kernel, but only for the rows of a sparse update."""
    # Each row is overwritten, so it may occur only once. Not `tf.size(rows)`, which XLA cannot
    # compare with the size of the sum.
    rows, places = tf.unique(update.indices)  # [R], [N]
    g = tf.math.unsorted_segment_sum(update.values, places, tf.shape(rows)[0])  # [R, ...]
    new_m = beta1 * m.sparse_read(rows) + (1 - beta1) * g
    new_v = beta2 * v.sparse_read(rows) + (1 - beta2) * tf.square(g)
    rate = lr * tf.sqrt(1 - beta2_power) / (1 - beta1_power)
    parameter.scatter_sub(tf.IndexedSlices(rate * new_m / (tf.sqrt(new_v) + epsilon), rows))
    m.scatter_update(tf.IndexedSlices(new_m, rows))
    v.scatter_update(tf.IndexedSlices(new_v, rows))
