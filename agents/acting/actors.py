"""Actors: a policy network that acts in environments, with or without exploration."""

from collections.abc import Callable, Sequence
from typing import Any

import dm_env
import numpy as np
import tree
from acme import core, types
from acme.adders import base as adders

from agents.acting.acting_policy import ActingPolicy, ServedPolicy
from agents.agent import VariableSource
from agents.replay.transitions import STATE

# Actions between two requests for weights, over all environments of an actor.
ACTIONS_PER_UPDATE = 250


class PolicyActor(core.Actor):
    """Takes the actions of the policy network and records nothing; for evaluators."""

    def __init__(self, policy: ActingPolicy, source: VariableSource):
        """Compiles the policy and fetches its weights.

        Args:
          policy: the policy, whose output is the action.
          source: serves the weights.
        """
        self._policy = ServedPolicy(policy, source, batch_size=1)
        self.states = self._policy.states
        """[1, K] float32, the policy's state before the next observation."""
        self._history = policy.make_history()
        self.last_observation = _zeros(policy.observation_spec)
        """The observation of the agent on which it acted last."""

    def select_action(self, observation: types.NestedArray) -> np.ndarray:
        """Returns the action for an observation of the environment: [A] float32, or a number."""
        self.last_observation = self._history.observe(observation)
        return self._policy(tree.map_structure(lambda x: x[None], self.last_observation))[0]

    def observe_first(self, timestep: dm_env.TimeStep) -> None:
        """Starts an episode."""
        self._history.reset()
        self._policy.reset(0)

    def observe(self, action: types.NestedArray, next_timestep: dm_env.TimeStep) -> None:
        """Records nothing."""

    def update(self, wait: bool = False) -> None:
        """Fetches the newest weights."""
        del wait
        self._policy.update()


class ExploringActor:
    """Explores in several environments, and adds every step to the replay table.

    One call of the policy serves all environments. The state with which a policy with a memory got
    an observation is among the extras of its action. It implements `agents.agent.BatchActor`.

    Attributes:
      states: [environments, K] float32, the policy's states before the next observations.
    """

    def __init__(
        self,
        policy: ActingPolicy,
        source: VariableSource,
        explorations: Sequence[Callable[[Any], tuple[np.ndarray, Any]]],
        adders: Sequence[adders.Adder],
    ):
        """Compiles the policy and fetches its weights.

        Args:
          policy: the policy.
          source: serves the weights.
          explorations: one for each environment: output of the policy network for an observation ->
            the action to take and its extras for the learner, () if there are none.
          adders: one for each environment; they write to the replay table.
        """
        size = len(adders)
        self._policy = ServedPolicy(policy, source, size)
        self.states = self._policy.states
        self._histories = [policy.make_history() for _ in range(size)]
        self._explorations = explorations
        self._adders = adders
        self._observations = _zeros(policy.observation_spec, size)
        self._arrays = tree.flatten(self._observations)
        self._extras: list[Any] = [()] * size
        self._actions_to_update = ACTIONS_PER_UPDATE

    def begin(self, index: int, timestep: dm_env.TimeStep) -> None:
        """Starts an episode of environment `index`."""
        self._histories[index].reset()
        self._policy.reset(index)
        self._adders[index].add_first(timestep)

    def select_actions(self, observations: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Returns the action to take in each environment, with exploration."""
        for index, observation in enumerate(observations):
            parts = tree.flatten(self._histories[index].observe(observation))
            for array, part in zip(self._arrays, parts, strict=True):
                array[index] = part
        states = self.states.copy()
        outputs = self._policy(self._observations)
        actions = []
        for index, explore in enumerate(self._explorations):
            # Copied: `explore` may write the next ones into the same arrays.
            action, extras = explore(_row(outputs, index))
            actions.append(np.array(action))
            self._extras[index] = tree.map_structure(np.array, extras)
            if states.size:
                self._extras[index] = {**dict(self._extras[index]), STATE: states[index]}
        return actions

    def observe(self, index: int, action: np.ndarray, next_timestep: dm_env.TimeStep) -> None:
        """Adds a step of environment `index`; fetches new weights every 250 actions."""
        self._adders[index].add(action, next_timestep, self._extras[index])
        self._actions_to_update -= 1
        if self._actions_to_update == 0:
            self._actions_to_update = ACTIONS_PER_UPDATE
            self._policy.update()

    def update(self) -> None:
        """Fetches the newest weights."""
        self._policy.update()


def _zeros(spec: Any, *size: int) -> Any:
    """Returns a nest of zeros like a nest of `tf.TensorSpec`, [*size, ...]."""
    return tree.map_structure(
        lambda each: np.zeros((*size, *each.shape), each.dtype.as_numpy_dtype), spec
    )


def _row(outputs: Any, index: int) -> Any:
    if isinstance(outputs, np.ndarray):  # Mapping a nest takes longer than some policies.
        return outputs[index]
    return tree.map_structure(lambda output: output[index], outputs)
