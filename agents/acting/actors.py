"""Actors: a policy network that acts in an environment, with or without exploration."""

from collections.abc import Callable
from typing import Any

import dm_env
import numpy as np
import tree
from acme import core, types
from acme.adders import base as adders

from agents.acting.acting_policy import ActingPolicy, compile_policy
from agents.agent import VariableSource
from agents.learning.variables import names_with_variables

# Environment steps between two requests for weights.
_STEPS_PER_UPDATE = 250


class PolicyActor(core.Actor):
    """Takes the action that the policy network gives. Records nothing.

    Evaluators are of this class; `ExploringActor` explores and records.
    """

    def __init__(self, policy: ActingPolicy, source: VariableSource):
        """Compiles the policy and fetches its weights.

        Args:
          policy: the policy.
          source: serves the weights.
        """
        self._network_names = names_with_variables(policy.networks)
        self._history = policy.history
        self._source = source
        spec = policy.observation_spec
        self.seen = np.zeros(spec.shape, spec.dtype.as_numpy_dtype)
        """The observation of the agent on which it acted last."""
        self._act = compile_policy(policy, batch_size=1)
        self.update(wait=True)

    def select_action(self, observation: types.NestedArray) -> np.ndarray:
        """Returns the action [A] float32 for an observation of the environment."""
        return self.evaluate_policy(observation)

    def evaluate_policy(self, observation: types.NestedArray) -> Any:
        """Returns what the policy network gives for an observation: a nest of arrays."""
        self.seen = self._history.observe(observation)
        return tree.map_structure(lambda output: output[0], self._act(self.seen[None]))

    def observe_first(self, timestep: dm_env.TimeStep) -> None:
        """Starts an episode."""
        self._history.reset()

    def observe(self, action: types.NestedArray, next_timestep: dm_env.TimeStep) -> None:
        """Records nothing."""

    def update(self, wait: bool = False) -> None:
        """Fetches the newest weights."""
        del wait
        self._act.load(self._source.get_variables(self._network_names))


class ExploringActor(PolicyActor):
    """Explores, and adds every step to the replay table."""

    def __init__(
        self,
        policy: ActingPolicy,
        source: VariableSource,
        explore: Callable[[Any], tuple[np.ndarray, Any]],
        adder: adders.Adder,
    ):
        """Compiles the policy and fetches its weights.

        Args:
          policy: the policy.
          source: serves the weights.
          explore: what the policy network gives for one observation -> the action to take, [A]
            float32 in [-1, 1], and its extras for the learner, () if there are none.
          adder: writes to the replay table.
        """
        super().__init__(policy, source)
        self._explore = explore
        self._adder = adder
        self._extras: Any = ()
        self._steps_to_update = _STEPS_PER_UPDATE

    def select_action(self, observation: types.NestedArray) -> np.ndarray:
        """Returns the action [A] float32 to take, with exploration."""
        action, self._extras = self._explore(self.evaluate_policy(observation))
        return action

    def observe_first(self, timestep: dm_env.TimeStep) -> None:
        """Starts an episode in the table."""
        super().observe_first(timestep)
        self._adder.add_first(timestep)

    def observe(self, action: types.NestedArray, next_timestep: dm_env.TimeStep) -> None:
        """Adds a step to the table; fetches new weights every 250 steps."""
        self._adder.add(action, next_timestep, self._extras)
        self._steps_to_update -= 1
        if self._steps_to_update == 0:
            self._steps_to_update = _STEPS_PER_UPDATE
            self.update()
