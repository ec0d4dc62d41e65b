"""Target networks, which follow the online networks, and the average of a policy's last weights."""

from collections.abc import Iterable, Mapping, Sequence

import sonnet as snt
import tensorflow as tf

from agents.config import AVERAGING_PERIOD
from agents.learning.replay_learner import StepModule, StepOutput
from agents.replay.transitions import Sample

# While a policy still learns fast, the average spans this share of its steps.
_SHARE = 0.1
# Prefix of the names under which averages are served.
_PREFIX = "average_"


def polyak(target: tf.Tensor, online: tf.Tensor, rate: tf.Tensor | float) -> tf.Tensor:
    """target + tau * (online - target).

    Args:
      target: float32 of any shape.
      online: float32 of the same shape.
      rate: tau in (0, 1]; the number 1 copies `online`.

    Returns:
      As `target`.
    """
    is_copy = not tf.is_tensor(rate) and rate == 1
    return tf.identity(online) if is_copy else target + rate * (online - target)


def update_targets(
    target: Iterable[snt.Module],
    online: Iterable[snt.Module],
    rate: tf.Tensor | float,
    is_due: tf.Tensor | bool = True,
) -> None:
    """Moves the trainable variables of networks towards others by `polyak`, and copies the rest.

    Variables that no loss trains, such as moving statistics or a random projection, belong to the
    trained weights around them: a mixture of two of them fits neither.

    Args:
      target: built networks, which change; a network that is also in `online` stays unchanged.
      online: built networks of the same shapes, in the same order.
      rate: tau in (0, 1].
      is_due: bool scalar; if false, nothing changes.
    """

    pairs = [
        pair
        for copy, source in zip(target, online, strict=True)
        if copy is not source
        for pair in zip(copy.variables, source.variables, strict=True)
    ]

    def update() -> None:
        for copy, source in pairs:
            copy.assign(polyak(copy, source, rate if source.trainable else 1.0))

    if is_due is True:
        update()
    else:
        tf.cond(is_due, update, lambda: None)


def average_name(name: str) -> str:
    """Returns the name under which the average of a network is served."""
    return _PREFIX + name


def without_averages(names: Iterable[str]) -> list[str]:
    """Returns the names of networks that are not averages: those that actors need."""
    return [name for name in names if not name.startswith(_PREFIX)]


class PolicyAverage(tf.Module):
    """A step module that also keeps an average of the networks that act.

    Adam's steps have the same size however small a gradient is. Therefore the weights of a policy
    that has nothing more to learn from its critic keep wandering, and from one step to the next,
    the policy may begin to fail from some initial states. The exponential average of the weights
    does not follow these steps (Polyak and Juditsky 1992, "Acceleration of stochastic approximation
    by averaging"). It is evaluated, saved and exported. Actors explore with the newest weights, so
    the training is the same as without an average. It implements
    `agents.learning.replay_learner.StepModule`.
    """

    def __init__(self, module: StepModule, networks: Mapping[str, snt.Module], num_steps: int):
        """Copies the weights of the acting networks.

        Args:
          module: the module that trains. Its networks without trainable variables have no average.
          networks: built networks like those of `module.acting_networks`, which become the
            averages. Other acting networks have no average, because evaluators do not act with
            them.
          num_steps: learner steps that the average spans, more than `AVERAGING_PERIOD`: it takes
            the weights of every tenth step, at the rate 10 / num_steps.
        """
        super().__init__(name="policy_average")
        self._module, self._span = module, num_steps
        online = module.acting_networks
        averaged = [n for n in online if n in networks and online[n].trainable_variables]
        self._averages = {average_name(name): networks[name] for name in averaged}
        self._online = [online[name] for name in averaged]
        self._average = [networks[name] for name in averaged]
        update_targets(self._average, self._online, rate=1.0)

    @property
    def num_steps(self) -> tf.Variable:
        """Learner steps done."""
        return self._module.num_steps

    @property
    def acting_networks(self) -> dict[str, snt.Module]:
        """The networks of the module, for actors, and the averages, for evaluators."""
        return {**self._module.acting_networks, **self._averages}

    @property
    def trainable_variables(self) -> Sequence[tf.Variable]:
        """The variables that gradients train, without the averages."""
        return self._module.trainable_variables

    def step_fn(self, sample: Sample) -> StepOutput:
        """Trains on one batch, then moves the averages towards the networks.

        Args:
          sample: a batch of this replica.

        Returns:
          The return value of the module's step.
        """
        output = self._module.step_fn(sample)
        num_steps = self._module.num_steps
        share = _SHARE * tf.cast(num_steps, tf.float32)
        rate = AVERAGING_PERIOD / tf.clip_by_value(share, AVERAGING_PERIOD, self._span)
        is_due = tf.equal(num_steps % AVERAGING_PERIOD, 0)
        update_targets(self._average, self._online, rate, is_due)
        return output
