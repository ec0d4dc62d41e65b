"""Learning rates as functions of the step."""

import math
from collections.abc import Callable, Sequence

import tensorflow as tf

# The batch for which a base learning rate is meant.
_REFERENCE_BATCH = 256

Schedule = Callable[[tf.Tensor], tf.Tensor]


def scaled(base: float, global_batch_size: int) -> float:
    """The linear scaling rule, `base * B / 256`: Goyal et al. 2017 (arXiv:1706.02677), 2.1."""
    return base * global_batch_size / _REFERENCE_BATCH


def warm_up(peak: float, num_steps: int, after: Schedule) -> Schedule:
    """Rises linearly from 0 over `num_steps`, then follows `after`: Goyal et al. 2017, 2.2.

    Args:
      peak: where the rise ends, at step `num_steps`.
      num_steps: of the rise; 0 for none.
      after: what follows, as a function of all steps, too.
    """

    def rate(step: tf.Tensor) -> tf.Tensor:
        step = tf.cast(step, tf.float32)
        rising = peak * step / max(num_steps, 1)
        return tf.where(step < num_steps, rising, after(step))

    return rate


def cosine(peak: float, first_step: int, last_step: int) -> Schedule:
    """Half a wave from `peak` to 0: Loshchilov & Hutter 2017 (arXiv:1608.03983), equation 5.

    `peak (1 + cos(pi t)) / 2`, where t goes from 0 at `first_step` to 1 at `last_step`.
    """

    def rate(step: tf.Tensor) -> tf.Tensor:
        t = (tf.cast(step, tf.float32) - first_step) / max(last_step - first_step, 1)
        return 0.5 * peak * (1.0 + tf.cos(math.pi * tf.clip_by_value(t, 0.0, 1.0)))

    return rate


def stairs(peak: float, boundaries: Sequence[int], factor: float = 0.1) -> Schedule:
    """`peak`, multiplied by `factor` at each boundary: He et al. 2015, section 3.4.

    Args:
      peak: before the first boundary.
      boundaries: steps at which the rate falls.
      factor: by how much.
    """

    def rate(step: tf.Tensor) -> tf.Tensor:
        passed = tf.reduce_sum(tf.cast(tf.cast(step, tf.int64) >= list(boundaries), tf.float32))
        return peak * tf.pow(factor, passed)

    return rate
