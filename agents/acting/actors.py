"""Acting with a network: the policy of an actor and of an evaluator."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import dm_env
import numpy as np
import sonnet as snt
import tensorflow as tf
from acme import core, types
from acme.adders import base as adders

from agents.acting.frame_stack import Memory
from agents.agent import VariableSource
from agents.learning.variables import load_arrays

# Environment steps between two requests for weights.
_STEPS_PER_UPDATE = 250


class Acting(NamedTuple):
    """A policy, ready to act.

    Attributes:
      networks: built modules by the names under which the learner publishes their weights.
      act: [1, ...] observations of the agent -> [1, A] float32 actions in [-1, 1].
      observation_spec: of one observation of the agent.
      memory: makes it from the environment's observations.
      jit_compile: whether XLA makes one kernel of it: a batch of one is all overhead for a small
        network, but convolutions do not gain.
    """

    networks: Mapping[str, snt.Module]
    act: Callable[[tf.Tensor], tf.Tensor]
    observation_spec: tf.TensorSpec
    memory: Memory
    jit_compile: bool


class PolicyActor(core.Actor):
    """Runs a deterministic policy network; says to nobody what it saw.

    Evaluators are this; `ExploringActor` adds noise and a record.
    """

    def __init__(self, acting: Acting, source: VariableSource):
        """Compiles the policy and fetches its weights.

        Args:
          acting: the policy.
          source: of the weights.
        """
        self._networks = acting.networks
        self._memory = acting.memory
        self._source = source
        spec = acting.observation_spec
        self.seen = np.zeros(spec.shape, spec.dtype.as_numpy_dtype)
        """The observation of the agent on which it acted last."""
        self._act = tf.function(
            lambda o: acting.act(o)[0], jit_compile=acting.jit_compile
        ).get_concrete_function(tf.TensorSpec([1, *spec.shape], spec.dtype))
        self.update(wait=True)

    def select_action(self, observation: types.NestedArray) -> np.ndarray:
        """The environment's observation -> [A] float32."""
        self.seen = self._memory.observe(observation)
        return self._act(tf.constant(self.seen[None])).numpy()

    def observe_first(self, timestep: dm_env.TimeStep) -> None:
        """Forgets the episode before."""
        self._memory.begin()

    def observe(self, action: types.NestedArray, next_timestep: dm_env.TimeStep) -> None:
        """Nothing to record."""

    def update(self, wait: bool = False) -> None:
        """Fetches the newest weights."""
        del wait
        arrays = dict(self._source.get_variables([*self._networks]))
        for name, network in self._networks.items():
            load_arrays(name, network, arrays)


class ExploringActor(PolicyActor):
    """Adds noise to the policy's actions and writes what happens to the replay table."""

    def __init__(
        self,
        acting: Acting,
        source: VariableSource,
        explore: Callable[[np.ndarray], np.ndarray],
        adder: adders.Adder,
    ):
        """See `PolicyActor`.

        Args:
          acting: as there.
          source: as there.
          explore: action [A] -> the action to take [A], float32 in [-1, 1].
          adder: the writing end of the table.
        """
        super().__init__(acting, source)
        self._explore = explore
        self._adder = adder
        self._steps_to_update = _STEPS_PER_UPDATE

    def select_action(self, observation: types.NestedArray) -> np.ndarray:
        """The environment's observation -> [A] float32, with noise."""
        return self._explore(super().select_action(observation))

    def observe_first(self, timestep: dm_env.TimeStep) -> None:
        """Starts an episode in the table."""
        super().observe_first(timestep)
        self._adder.add_first(timestep)

    def observe(self, action: types.NestedArray, next_timestep: dm_env.TimeStep) -> None:
        """Adds a step to the table; now and then fetches new weights."""
        self._adder.add(action, next_timestep)
        self._steps_to_update -= 1
        if self._steps_to_update == 0:
            self._steps_to_update = _STEPS_PER_UPDATE
            self.update()


class LinearSchedule:
    """From one value to another, linearly, and then no further."""

    def __init__(self, start: float, end: float, steps: int):
        """Args:
        start: at step 0.
        end: at step `steps` and after.
        steps: at least 1.
        """
        self._start, self._end, self._steps = start, end, steps

    def __call__(self, step: int) -> float:
        """The value at a step."""
        return self._start + min(step / self._steps, 1.0) * (self._end - self._start)


class GaussianNoise:
    """Independent Gaussian noise on every action, clipped to the action range."""

    def __init__(self, sigma: Callable[[], float], random: np.random.Generator):
        """Args:
        sigma: gives the standard deviation at the moment, where actions span [-1, 1].
        random: the source of noise.
        """
        self._sigma = sigma
        self._random = random

    def __call__(self, action: np.ndarray) -> np.ndarray:
        """[A] float32 -> [A] float32 in [-1, 1]."""
        noise = self._random.standard_normal(action.shape, np.float32)
        return np.clip(action + np.float32(self._sigma()) * noise, -1.0, 1.0, dtype=np.float32)
