"""The average of a policy's last weights, which acts in place of the newest weights."""

from __future__ import annotations

from collections.abc import Mapping

import sonnet as snt
import tensorflow as tf

from agents.learning.replay_learner import StepModule, StepOutput
from agents.learning.targets import update_targets
from agents.replay.transitions import Sample

# While a policy still learns fast, the average spans this share of its steps.
_SHARE = 0.1
# Learner steps from one set of weights in the average to the next: each costs 2 % of a step.
_PERIOD = 10


class PolicyAverage(tf.Module):
    """A module whose actors get an average of the networks that it trains.

    Adam's steps have the same size however small a gradient is. The weights of a policy that has
    learned all that the critic knows wander on therefore, and from one step to the next some starts
    of an episode fail that did not fail before. The exponential average of the weights does not
    follow these steps (Polyak and Juditsky 1992, "Acceleration of stochastic approximation by
    averaging"). Training itself goes on from the newest weights. It implements
    `agents.learning.replay_learner.StepModule`.
    """

    def __init__(
        self, module: StepModule, networks: Mapping[str, snt.Module], num_steps: int
    ) -> None:
        """Copies the networks that act.

        Args:
          module: trains; its networks without trainable variables act as they are.
          networks: built networks like `module.acting_networks`, which get the averages.
          num_steps: learner steps that the average spans, at least 10: it takes the weights of
            every tenth step, at the rate 10 / num_steps.
        """
        super().__init__(name="policy_average")
        self._module, self._span = module, num_steps
        online = module.acting_networks
        self._acting = {
            name: networks[name] if network.trainable_variables else network
            for name, network in online.items()
        }
        self._online = [v for name in online for v in online[name].trainable_variables]
        self._average = [v for name in online for v in self._acting[name].trainable_variables]
        update_targets(self._average, self._online, rate=1.0)

    @property
    def num_steps(self) -> tf.Variable:
        """Learner steps done."""
        return self._module.num_steps

    @property
    def acting_networks(self) -> Mapping[str, snt.Module]:
        """The averages act."""
        return self._acting

    def step_fn(self, sample: Sample) -> StepOutput:
        """Trains on one batch, then moves the averages towards the networks.

        Args:
          sample: a batch of this replica.

        Returns:
          What the module returned.
        """
        output = self._module.step_fn(sample)
        num_steps = self._module.num_steps
        share = _SHARE * tf.cast(num_steps, tf.float32)
        rate = _PERIOD / tf.clip_by_value(share, _PERIOD, max(_PERIOD, self._span))
        update_targets(self._average, self._online, rate, tf.equal(num_steps % _PERIOD, 0))
        return output
