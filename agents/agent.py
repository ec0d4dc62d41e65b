"""The contract between an agent and the program that runs it."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import dm_env
import numpy as np
import numpy.typing as npt
import reverb
from acme import core, specs
from acme.adders import base as adders

import rl_replicator as rr
from agents.replay.local import LocalTable
from agents.replay.memory_estimate import MemoryEstimate
from agents.replay.transitions import TABLE


class VariableSource(Protocol):
    """Serves weights to actors."""

    def get_variables(self, names: Sequence[str]) -> Mapping[str, npt.NDArray[Any]]:
        """Returns the variables of the named networks, by path."""
        ...


class StepAdder(Protocol):
    """An `acme.adders.Adder` whose writes can be waited for."""

    @property
    def seconds_waited(self) -> float:
        """Seconds spent so far waiting for the table."""
        ...

    def reset(self) -> None:
        """Drops the steps of an episode that was cut off."""
        ...

    def add_first(self, timestep: dm_env.TimeStep) -> None:
        """Starts an episode."""
        ...

    def add(self, action: Any, next_timestep: dm_env.TimeStep, extras: Any = ()) -> None:
        """Adds an action, the resulting time step, and the action's extras."""
        ...

    def pending(self) -> list[Any]:
        """Returns the steps that the table lacks, for the checkpoint of a deterministic run."""
        ...

    def set_pending(self, steps: list[Any]) -> None:
        """Puts these steps back, after those of the current episode were added once more."""
        ...

    def finish(self, timeout: float) -> bool:
        """Waits up to `timeout` seconds; returns whether the table holds everything by then."""
        ...

    def close(self) -> None:
        """Stops writing; items that were not confirmed may be lost."""
        ...


class BatchActor(Protocol):
    """Explores in several environments at once, and records every step."""

    def begin(self, index: int, timestep: dm_env.TimeStep) -> None:
        """Starts an episode of environment `index` with its first time step."""
        ...

    def select_actions(
        self, observations: Sequence[npt.NDArray[Any]]
    ) -> Sequence[npt.NDArray[Any]]:
        """Returns the action to take in each environment: [A] float32 in [-1, 1], or a number."""
        ...

    def observe(self, index: int, action: npt.NDArray[Any], next_timestep: dm_env.TimeStep) -> None:
        """Records an action in environment `index` and the resulting time step."""
        ...

    def update(self) -> None:
        """Fetches the newest weights."""
        ...


@dataclasses.dataclass(frozen=True)
class ExplorationContext:
    """The information that the exploration in one environment may use.

    Attributes:
      random: random number generator; seeded differently at every start of the actor, except in
        deterministic runs.
      environment_steps: returns the approximate number of environment steps that all actors have
        taken.
      rank: position of the environment among those of all actors, from 0 to 1; 0.5 if there is only
        one.
      memory: state that the exploration keeps between actions, by name. It starts empty in every
        node. Checkpoints of deterministic runs hold it, so its values must be arrays, Python
        numbers, strings, None, or lists and dicts of these.
    """

    random: np.random.Generator
    environment_steps: Callable[[], int] = lambda: 0
    rank: float = 0.5
    memory: dict[str, Any] = dataclasses.field(default_factory=dict)


class AgentLearner(VariableSource, Protocol):
    """Trains on the replay table."""

    @property
    def network_names(self) -> Sequence[str]:
        """Names of the networks that `get_variables` serves.

        It also serves `LEARNER_STEPS` and `EVERYTHING` of `agents.learning.weights`.
        """
        ...

    @property
    def seconds(self) -> Mapping[str, float]:
        """Seconds spent so far in parts of `step` other than its compiled call, by name."""
        ...

    def step(self, poll: Callable[[], None] | None = None) -> None:
        """Runs one compiled call of learner steps; blocks until the table has enough items.

        Args:
          poll: called about ten times a second while the call runs or waits; it may call `cancel`.
        """
        ...

    def cancel(self) -> None:
        """Makes a `step` that waits for input raise `rl_replicator.StepCancelled`."""
        ...

    @property
    def num_steps(self) -> int:
        """Learner steps done since the beginning of training."""
        ...

    def starved(self) -> bool:
        """Returns whether a `step` would have to wait for input now."""
        ...

    def refresh(self) -> None:
        """Reads the variables again after a restore or a cancelled call."""
        ...

    def metrics(self) -> dict[str, float]:
        """Returns the metrics of the last call."""
        ...

    def trackables(self) -> dict[str, Any]:
        """Returns everything that a checkpoint must hold, by name."""
        ...

    def close(self) -> None:
        """Stops the learner's threads."""
        ...


class Agent(Protocol):
    """Everything that the program needs from an agent.

    An agent is picklable, holds only its config and the environment's specs, and makes each part in
    the node that uses it. `agents.off_policy_agent.OffPolicyAgent` implements most of it.
    """

    def estimate_memory(
        self, make_environment: Callable[[], dm_env.Environment], inserts: int
    ) -> MemoryEstimate | None:
        """Estimates the memory of the replay tables; None if negligible.

        Args:
          make_environment: makes an environment of the same kind, in which the estimate may play
            episodes.
          inserts: the largest number of transitions that the run inserts.
        """
        ...

    def make_tables(
        self, num_replicas: int, num_shards: int = 1, online_fraction: float = 1.0
    ) -> Sequence[reverb.Table]:
        """Makes the tables of one replay server, in its node.

        Args:
          num_replicas: the number of the learner's replicas.
          num_shards: the number of replay servers; each holds an equal share of the items.
          online_fraction: share of the run's own transitions in a batch. Below 1, the last table
            is for recorded transitions, which are the rest.

        Raises:
          ConfigError: if a batch cannot be divided evenly among replicas and shards, or by the
            fraction.
        """
        ...

    def make_adder(
        self, client: reverb.Client, on_wait: Callable[[float], bool | None], table: str = TABLE
    ) -> StepAdder:
        """Makes the writer to the tables for one environment of an actor.

        Args:
          client: the client of the replay server.
          on_wait: called twice per second, with the seconds waited so far, while the table accepts
            no item; returns True if the writer is to continue anyway. May raise to give up.
          table: name of the table.
        """
        ...

    def make_actor(
        self,
        source: VariableSource,
        adders: Sequence[adders.Adder],
        contexts: Sequence[ExplorationContext],
    ) -> BatchActor:
        """Makes an actor, which explores and records.

        Args:
          source: serves the weights.
          adders: the adders from `make_adder`, one for each of its environments.
          contexts: the contexts of the exploration in each environment.
        """
        ...

    def make_evaluator(self, source: VariableSource) -> core.Actor:
        """Makes the actor that is evaluated: it is deterministic and records nothing.

        If the actor has an attribute `last_observation`, the last observation given to its network,
        runs from pixels log it as an image.

        Args:
          source: serves the weights.
        """
        ...

    def learner_steps(self, agent_steps: int) -> int:
        """Returns the approximate number of learner steps of a run of so many actions."""
        ...

    def make_learner(
        self,
        replicator: rr.Replicator,
        replay_addresses: Sequence[str],
        total_steps: int,
        online_fraction: float = 1.0,
    ) -> AgentLearner:
        """Makes the learner.

        Args:
          replicator: runs its step.
          replay_addresses: "host:port" of each replay server.
          total_steps: learner steps of the whole run, for schedules.
          online_fraction: see `make_tables`.
        """
        ...

    def make_local_learner(
        self, replicator: rr.Replicator, replay: LocalTable, total_steps: int
    ) -> AgentLearner:
        """Makes the learner of a deterministic run.

        Args:
          replicator: runs its step.
          replay: the replay in the same process; `make_adder` gets it in place of Reverb's client.
          total_steps: learner steps of the whole run, for schedules.

        Raises:
          ConfigError: if the agent does not support deterministic runs.
        """
        ...

    @property
    def discount(self) -> float:
        """gamma of the returns that the learner predicts."""
        ...

    @property
    def environment_spec(self) -> specs.EnvironmentSpec:
        """The specs of the environment that the agent was made for."""
        ...
