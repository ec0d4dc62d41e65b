"""Acting with a network: the policy of an actor and of an evaluator."""

from collections.abc import Callable

import dm_env
import numpy as np
import sonnet as snt
import tensorflow as tf
from acme import core, types
from acme.adders import base as adders

from agents.agent import VariableSource
from agents.variables import load_arrays

# Environment steps between two requests for weights.
_STEPS_PER_UPDATE = 250


class PolicyActor(core.Actor):
    """Runs a deterministic policy network; says to nobody what it saw.

    Evaluators are this; `ExploringActor` adds noise and a record.
    """

    def __init__(self, policy: snt.Module, source: VariableSource, observation_size: int):
        """Compiles the policy and fetches its weights.

        Args:
          policy: built module named "policy", [1, N] observations -> [1, A] actions in [-1, 1].
          source: of the weights.
          observation_size: N.
        """
        self._policy = policy
        self._source = source
        # One XLA kernel instead of a graph of small ops: batches of one are all overhead.
        self._act = tf.function(lambda o: policy(o)[0], jit_compile=True).get_concrete_function(
            tf.TensorSpec([1, observation_size], tf.float32)
        )
        self.update(wait=True)

    def select_action(self, observation: types.NestedArray) -> np.ndarray:
        """[N] float32 -> [A] float32."""
        return self._act(tf.constant(observation[None])).numpy()

    def observe_first(self, timestep: dm_env.TimeStep) -> None:
        """Nothing to record."""

    def observe(self, action: types.NestedArray, next_timestep: dm_env.TimeStep) -> None:
        """Nothing to record."""

    def update(self, wait: bool = False) -> None:
        """Fetches the newest weights."""
        del wait
        load_arrays("policy", self._policy, dict(self._source.get_variables(["policy"])))


class ExploringActor(PolicyActor):
    """Adds noise to the policy's actions and writes what happens to the replay table."""

    def __init__(
        self,
        policy: snt.Module,
        source: VariableSource,
        observation_size: int,
        explore: Callable[[np.ndarray], np.ndarray],
        adder: adders.Adder,
    ):
        """See `PolicyActor`.

        Args:
          policy: as there.
          source: as there.
          observation_size: as there.
          explore: action [A] -> the action to take [A], float32 in [-1, 1].
          adder: the writing end of the table.
        """
        super().__init__(policy, source, observation_size)
        self._explore = explore
        self._adder = adder
        self._steps_to_update = _STEPS_PER_UPDATE

    def select_action(self, observation: types.NestedArray) -> np.ndarray:
        """[N] float32 -> [A] float32, with noise."""
        return self._explore(super().select_action(observation))

    def observe_first(self, timestep: dm_env.TimeStep) -> None:
        """Starts an episode in the table."""
        self._adder.add_first(timestep)

    def observe(self, action: types.NestedArray, next_timestep: dm_env.TimeStep) -> None:
        """Adds a step to the table; now and then fetches new weights."""
        self._adder.add(action, next_timestep)
        self._steps_to_update -= 1
        if self._steps_to_update == 0:
            self._steps_to_update = _STEPS_PER_UPDATE
            self.update()


class GaussianNoise:
    """Independent Gaussian noise on every action, clipped to the action range."""

    def __init__(self, sigma: float, random: np.random.Generator):
        """Args:
        sigma: standard deviation, where actions span [-1, 1].
        random: the source of noise.
        """
        self._sigma = sigma
        self._random = random

    def __call__(self, action: np.ndarray) -> np.ndarray:
        """[A] float32 -> [A] float32 in [-1, 1]."""
        noise = self._random.standard_normal(action.shape, np.float32)
        return np.clip(action + self._sigma * noise, -1.0, 1.0, dtype=np.float32)
