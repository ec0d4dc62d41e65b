"""Actors: a policy network that acts in an environment, with or without exploration."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import dm_env
import numpy as np
import sonnet as snt
import tensorflow as tf
from acme import core, types
from acme.adders import base as adders

from agents.acting.frame_stack import ObservationHistory
from agents.agent import VariableSource
from agents.learning.variables import load_arrays, names_with_variables

# Environment steps between two requests for weights.
_STEPS_PER_UPDATE = 250


class ActingPolicy(NamedTuple):
    """A policy, ready to act.

    Attributes:
      networks: built modules by the names under which the learner serves their variables.
      act: [1, ...] observations of the agent -> nest of [1, ...] tensors: an action, or the
        parameters of a distribution over actions.
      observation_spec: of one observation of the agent.
      history: makes that observation from the environment's.
      jit_compile: whether XLA compiles `act`. It saves the overhead of many small operations, but
        convolutions do not gain.
    """

    networks: Mapping[str, snt.Module]
    act: Callable[[tf.Tensor], Any]
    observation_spec: tf.TensorSpec
    history: ObservationHistory
    jit_compile: bool


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
        self._networks = policy.networks
        self._network_names = names_with_variables(policy.networks)
        self._history = policy.history
        self._source = source
        spec = policy.observation_spec
        self.seen = np.zeros(spec.shape, spec.dtype.as_numpy_dtype)
        """The observation of the agent on which it acted last."""
        self._act = tf.function(
            lambda o: tf.nest.map_structure(lambda x: x[0], policy.act(o)),
            jit_compile=policy.jit_compile,
        ).get_concrete_function(tf.TensorSpec([1, *spec.shape], spec.dtype))
        self.update(wait=True)

    def select_action(self, observation: types.NestedArray) -> np.ndarray:
        """Returns the action [A] float32 for an observation of the environment."""
        return self.evaluate_policy(observation)

    def evaluate_policy(self, observation: types.NestedArray) -> Any:
        """Returns what the policy network gives for an observation: a nest of arrays."""
        self.seen = self._history.observe(observation)
        outputs = self._act(tf.constant(self.seen[None]))
        return tf.nest.map_structure(lambda x: x.numpy(), outputs)

    def observe_first(self, timestep: dm_env.TimeStep) -> None:
        """Starts an episode."""
        self._history.reset()

    def observe(self, action: types.NestedArray, next_timestep: dm_env.TimeStep) -> None:
        """Records nothing."""

    def update(self, wait: bool = False) -> None:
        """Fetches the newest weights."""
        del wait
        arrays = dict(self._source.get_variables(self._network_names))
        for name in self._network_names:
            load_arrays(name, self._networks[name], arrays)


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
