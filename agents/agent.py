"""The contract between an agent and the program that runs it."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import dm_env
import numpy as np
import numpy.typing as npt
import reverb
from acme import core, specs
from acme.adders import base as adders

import rl_replicator as rr
from agents.replay.memory_estimate import ReplaySize


class VariableSource(Protocol):
    """Where actors get weights: one of the two places where actor and learner meet."""

    def get_variables(self, names: Sequence[str]) -> Mapping[str, npt.NDArray[Any]]:
        """The variables of the named networks, by path."""
        ...


class Learner(VariableSource, Protocol):
    """Trains on the replay table."""

    @property
    def published(self) -> Sequence[str]:
        """Names of the networks that `get_variables` gives."""
        ...

    def step(self) -> None:
        """Runs one compiled call of some learner steps; blocks until the table has the rows."""
        ...

    def cancel(self) -> None:
        """Makes a `step` that waits for rows raise `rl_replicator.StepCancelled`."""
        ...

    @property
    def num_steps(self) -> int:
        """Learner steps done since the beginning of the run."""
        ...

    def starved(self) -> bool:
        """Whether a `step` at this moment would have to wait for rows."""
        ...

    def refresh(self) -> None:
        """Publishes the variables as they are: after a restore, or a call that was cancelled."""
        ...

    def metrics(self) -> dict[str, float]:
        """Figures of the last call."""
        ...

    def trackables(self) -> dict[str, Any]:
        """All variables that a checkpoint must hold, by name."""
        ...

    def close(self) -> None:
        """Ends the learner's threads."""
        ...


class Agent(Protocol):
    """Five factories and a prediction: all that the program needs to know of an agent.

    An agent is picklable, holds only its config and the environment's specs, and builds each part
    in the node where the part lives.
    """

    def replay_size(self, environment: dm_env.Environment) -> ReplaySize | None:
        """How much memory the tables will take; None where that is not worth a word.

        Args:
          environment: like those to act in; it is played.
        """
        ...

    def make_tables(self, num_replicas: int) -> Sequence[reverb.Table]:
        """The replay tables, for the replay node."""
        ...

    def make_adder(self, client: reverb.Client, on_wait: Callable[[float], None]) -> adders.Adder:
        """The writing end of the table, for an actor."""
        ...

    def make_actor(
        self,
        source: VariableSource,
        adder: adders.Adder,
        random: np.random.Generator,
        environment_steps: Callable[[], int],
    ) -> core.Actor:
        """The policy that explores and records.

        Args:
          source: of the weights.
          adder: from `make_adder`.
          random: of the exploration.
          environment_steps: how many the run has taken, about.
        """
        ...

    def make_evaluator(self, source: VariableSource) -> core.Actor:
        """The policy that is judged: deterministic, recording nothing."""
        ...

    def make_learner(
        self, replicator: rr.Replicator, replay_address: str, total_agent_steps: int
    ) -> Learner:
        """The learner of a run in which the agent chooses `total_agent_steps` actions."""
        ...

    @property
    def environment_spec(self) -> specs.EnvironmentSpec:
        """The specs that the agent was made for."""
        ...
