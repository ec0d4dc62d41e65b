"""Optimizers with a learning-rate schedule, and weight decay that can exclude variables."""

from collections.abc import Callable, Sequence
from typing import Any

import sonnet as snt
import tensorflow as tf

from rl_replicator.optimizers import slots
from rl_replicator.optimizers.schedules import Schedule

# Returns for each variable whether it decays.
Decayed = Callable[[Sequence[tf.Variable]], Sequence[bool]]


class _Scheduled(snt.Optimizer):
    """The base of this module's optimizers, which add their formula."""

    # The attribute that holds the slots; checkpoints contain its name.
    _SLOTS: str

    def __init__(
        self,
        learning_rate: Schedule,
        decayed: Decayed,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        name: str | None = None,
    ):
        """Creates no slots yet.

        Args:
          learning_rate: schedule, from the step to the rate.
          decayed: returns for each parameter whether it decays.
          momentum: share of the velocity that each step keeps.
          weight_decay: factor of the L2 penalty.
          name: name of the module.
        """
        super().__init__(name=name)
        self.learning_rate = learning_rate
        self._decayed = decayed
        self._momentum = momentum
        self._weight_decay = weight_decay
        self.step = tf.Variable(0, dtype=tf.int64, trainable=False, name="step")
        setattr(self, self._SLOTS, [])

    @snt.once
    def _initialize(self, parameters: Sequence[tf.Variable]) -> None:
        with tf.name_scope("velocities"):
            getattr(self, self._SLOTS).extend(
                tf.Variable(tf.zeros(w.shape, w.dtype), trainable=False, name="velocity")
                for w in parameters
            )

    def apply(self, updates: Sequence[Any], parameters: Sequence[tf.Variable]) -> None:
        """Updates the parameters in place; skips those whose update is None.

        Raises:
          ValueError: if lengths or dtypes differ, or there is no parameter or no update at all.
        """
        updates = [None if g is None else tf.convert_to_tensor(g) for g in updates]
        slots.check(updates, parameters)
        self._initialize(parameters)
        rate = self.learning_rate(self.step)
        decayed, velocities = self._decayed(parameters), getattr(self, self._SLOTS)
        for g, w, v, is_decayed in zip(updates, parameters, velocities, decayed, strict=True):
            if g is None:
                continue
            self._apply_one(g, w, v, is_decayed, tf.cast(rate, g.dtype))
        self.step.assign_add(1)

    def _apply_one(
        self, g: tf.Tensor, w: tf.Variable, v: tf.Variable, is_decayed: bool, rate: tf.Tensor
    ) -> None:
        raise NotImplementedError


class Momentum(_Scheduled):
    """Gradient descent with Nesterov's momentum and L2 weight decay.

    Sutskever et al. 2013, in the form of Goyal et al. 2017 (arXiv:1706.02677), equation 9: the
    velocity does not include the learning rate.

        g' = g + decay w
        v <- m v + g'
        w <- w - rate(t) (g' + m v)

    Attributes:
      step: int64, steps taken.
      velocities: one for each parameter.
    """

    _SLOTS = "velocities"
    velocities: list[tf.Variable]

    def _apply_one(
        self, g: tf.Tensor, w: tf.Variable, v: tf.Variable, is_decayed: bool, rate: tf.Tensor
    ) -> None:
        if is_decayed and self._weight_decay:
            g += self._weight_decay * w
        tf.raw_ops.ResourceApplyMomentum(
            var=w.handle,
            accum=v.handle,
            lr=rate,
            grad=slots.in_layout_of(w, g),
            momentum=tf.constant(self._momentum, g.dtype),
            use_nesterov=True,
        )


class LARS(_Scheduled):
    """Layer-wise adaptive rates: You et al. 2017 (arXiv:1708.03888), Algorithm 1.

        ratio = trust |w| / (|g| + decay |w|)
        v <- m v + rate(t) ratio (g + decay w)
        w <- w - v

    The ratio is 1 where |w| or |g| is 0, and for variables that do not decay (norms, biases).

    Attributes:
      step: int64, steps taken.
      scaled_velocities: one for each parameter. They contain the rate, unlike those of `Momentum`,
        so neither optimizer can restore a checkpoint of the other.
    """

    _SLOTS = "scaled_velocities"
    scaled_velocities: list[tf.Variable]

    def __init__(
        self,
        learning_rate: Schedule,
        decayed: Decayed,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        trust: float = 1e-3,
        name: str | None = None,
    ):
        """Creates no slots yet; the arguments are those of `Momentum`, and a trust coefficient."""
        super().__init__(learning_rate, decayed, momentum, weight_decay, name)
        self._trust = trust

    def _apply_one(
        self, g: tf.Tensor, w: tf.Variable, v: tf.Variable, is_decayed: bool, rate: tf.Tensor
    ) -> None:
        if is_decayed:
            # In float16, the squares of a norm overflow.
            dtype = tf.float64 if g.dtype == tf.float64 else tf.float32
            weight, gradient = (tf.norm(tf.cast(x, dtype)) for x in (w, g))
            ratio = trust_ratio(weight, gradient, self._weight_decay, self._trust)
            rate *= tf.cast(ratio, g.dtype)
            if self._weight_decay:  # On a mesh, a product with 0 has the shape of the whole weight.
                g += self._weight_decay * w
        v.assign(self._momentum * v + rate * slots.in_layout_of(w, g))
        w.assign_sub(v)


def trust_ratio(
    weight_norm: tf.Tensor, gradient_norm: tf.Tensor, weight_decay: float, trust: float
) -> tf.Tensor:
    """You et al. 2017, equation 6: `trust |w| / (|g| + decay |w|)`; 1 where a norm is 0."""
    ratio = trust * weight_norm / (gradient_norm + weight_decay * weight_norm)
    return tf.where((weight_norm > 0) & (gradient_norm > 0), ratio, tf.ones_like(ratio))
