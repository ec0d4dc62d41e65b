"""Learning rates as functions of the step."""

import math
from collections.abc import Callable, Sequence

import tensorflow as tf

# The batch size for which a base learning rate is given.
_REFERENCE_BATCH = 256

Schedule = Callable[[tf.Tensor], tf.Tensor]


def scaled(base: float, global_batch_size: int) -> float:
    """Scales a learning rate linearly with the batch size: `base * B / 256`.

    Goyal et al. 2017 (arXiv:1706.02677), section 2.1.

    Args:
      base: learning rate for a batch of 256 examples.
      global_batch_size: number of examples in a batch, B.
    """
    return base * global_batch_size / _REFERENCE_BATCH


def warm_up(peak: float, num_steps: int, after: Schedule) -> Schedule:
    """Returns a schedule that rises linearly from 0 and then follows another one.

    Goyal et al. 2017 (arXiv:1706.02677), section 2.2.

    Args:
      peak: learning rate at the end of the rise.
      num_steps: number of steps of the rise; 0 for no rise.
      after: schedule after the rise, a function of the same step.
    """

    def rate(step: tf.Tensor) -> tf.Tensor:
        step = tf.cast(step, tf.float32)
        rising = tf.math.divide_no_nan(peak * step, float(num_steps))
        return tf.where(step < num_steps, rising, after(step))

    return rate


def cosine(peak: float, first_step: int, last_step: int) -> Schedule:
    """Returns a schedule that decays from `peak` to 0 along a half cosine.

    `peak (1 + cos(pi t)) / 2`, where t goes from 0 at `first_step` to 1 at `last_step`: Loshchilov
    & Hutter 2017 (arXiv:1608.03983), equation 5.

    Args:
      peak: learning rate at `first_step`.
      first_step: step at which the decay begins.
      last_step: step at which the rate is 0.
    """

    def rate(step: tf.Tensor) -> tf.Tensor:
        t = (tf.cast(step, tf.float32) - first_step) / max(last_step - first_step, 1)
        return 0.5 * peak * (1.0 + tf.cos(math.pi * tf.clip_by_value(t, 0.0, 1.0)))

    return rate


def stairs(peak: float, boundaries: Sequence[int], factor: float = 0.1) -> Schedule:
    """Returns a piecewise constant schedule, which is multiplied by `factor` at each boundary.

    He et al. 2015 (arXiv:1512.03385), section 3.4.

    Args:
      peak: learning rate before the first boundary.
      boundaries: steps at which the rate changes.
      factor: factor of each change.
    """

    def rate(step: tf.Tensor) -> tf.Tensor:
        passed = tf.reduce_sum(tf.cast(tf.cast(step, tf.int64) >= list(boundaries), tf.float32))
        return peak * tf.pow(factor, passed)

    return rate
