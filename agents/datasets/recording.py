"""Plays the policy of a run and keeps whole episodes."""

import dataclasses
from collections.abc import Iterable, Iterator
from typing import Any

import dm_env
import numpy as np
from acme import core
from acme.adders import base as adders

from agents.agent import ExplorationContext
from agents.environment_loop import evaluation_episode
from agents.learning.weights import NoSuchNetworkError
from agents.policies.policy import Policy
from rl_replicator.errors import UsageError
from rl_replicator.runs.statistics import number

_NOISE_STREAM = 1


@dataclasses.dataclass(frozen=True)
class RecordedEpisode:
    """An episode of T actions in an environment of `environments.make`.

    Attributes:
      observations: [T + 1, N] float32.
      actions: [T, A] float32 in [-1, 1].
      rewards: [T] float32.
      discounts: [T] float32, as the environment gave them: the last one is 0 after a termination.
      seed: the seed of the environment; None if unknown.
    """

    observations: np.ndarray
    actions: np.ndarray
    rewards: np.ndarray
    discounts: np.ndarray
    seed: int | None

    @property
    def num_steps(self) -> int:
        """Number of actions, T."""
        return len(self.rewards)

    @property
    def is_terminated(self) -> bool:
        """Whether the episode ended with a discount of 0, and was not cut off by a time limit."""
        return bool(self.discounts[-1] == 0)

    @property
    def episode_return(self) -> float:
        """The undiscounted sum of rewards."""
        return float(self.rewards.sum(dtype=np.float64))

    def between(self, start: int, stop: int) -> "RecordedEpisode":
        """Returns the steps from `start` to `stop`, as if a time limit had cut off the others."""
        return RecordedEpisode(
            self.observations[start : stop + 1],
            self.actions[start:stop],
            self.rewards[start:stop],
            self.discounts[start:stop],
            self.seed,
        )

    def add_to(self, adder: adders.Adder) -> None:
        """Adds every step to a replay table, as an actor does.

        Args:
          adder: writer to the table.
        """
        adder.add_first(dm_env.restart(self.observations[0]))
        for step in range(self.num_steps):
            is_last = step == self.num_steps - 1
            timestep = dm_env.TimeStep(
                dm_env.StepType.LAST if is_last else dm_env.StepType.MID,
                self.rewards[step],
                self.discounts[step],
                self.observations[step + 1],
            )
            adder.add(self.actions[step], timestep)


@dataclasses.dataclass(frozen=True)
class DatasetSummary:
    """A summary of the contents of a dataset.

    Attributes:
      num_steps: actions of all episodes.
      returns: the undiscounted return of each episode.
      num_terminated: episodes that ended with a discount of 0.
    """

    num_steps: int
    returns: tuple[float, ...]
    num_terminated: int

    @classmethod
    def of(cls, episodes: Iterable[RecordedEpisode]) -> "DatasetSummary":
        """Summarises episodes, without keeping them."""
        figures = [(e.num_steps, e.episode_return, e.is_terminated) for e in episodes]
        steps, returns, terminated = zip(*figures, strict=True) if figures else ((), (), ())
        return cls(sum(steps), returns, sum(terminated))

    def __str__(self) -> str:
        mean, low, high = map(
            number, (sum(self.returns) / len(self.returns), min(self.returns), max(self.returns))
        )
        return (
            f"{len(self.returns):,} episodes ({self.num_terminated:,} terminated), "
            f"{self.num_steps:,} actions, return {mean} (min {low}, max {high})"
        )


def record(policy: Policy, episodes: int, seed: int, explore: bool) -> Iterator[RecordedEpisode]:
    """Plays episodes, each in an environment with its own seed.

    Args:
      policy: the policy.
      episodes: number of episodes.
      seed: the seed of the first episode; each of the others has the seed of the one before, plus
        1.
      explore: whether to act as the actors of the run did after its last environment step, with
        the agent's exploration.

    Raises:
      UsageError: if the checkpoint lacks the weights with which actors explore.

    Yields:
      Each episode. One that does not end within the limit of evaluations is cut off there.
    """
    context = ExplorationContext(_noise(seed), lambda: policy.environment_steps)
    actor = _SingleActor(policy, context) if explore else policy.actor
    recorder = _Recorder(actor)
    for episode_seed in range(seed, seed + episodes):
        # An episode depends only on its own seed, whatever was played before it.
        context.random.bit_generator.state = _noise(episode_seed).bit_generator.state
        context.memory.clear()
        environment = policy.make_environment(episode_seed)
        try:
            evaluation_episode(environment, recorder, policy.max_actions)
        finally:
            environment.close()
        yield recorder.episode(episode_seed)


def _noise(episode_seed: int) -> np.random.Generator:
    """Returns the random generator of an episode's exploration."""
    # Not default_rng(episode_seed), from which Gymnasium draws the initial state.
    return np.random.default_rng([episode_seed, _NOISE_STREAM])


class _Recorder(core.Actor):
    """Passes everything on to another actor, and keeps the episode."""

    def __init__(self, actor: core.Actor):
        self._actor = actor
        self._timesteps: list[dm_env.TimeStep] = []
        self._actions: list[np.ndarray] = []

    def observe_first(self, timestep: dm_env.TimeStep) -> None:
        self._timesteps, self._actions = [timestep], []
        self._actor.observe_first(timestep)

    def select_action(self, observation: Any) -> np.ndarray:
        return self._actor.select_action(observation)

    def observe(self, action: Any, next_timestep: dm_env.TimeStep) -> None:
        # Environments clip actions too.
        self._actions.append(np.clip(action, -1.0, 1.0).astype(np.float32))
        self._timesteps.append(next_timestep)
        self._actor.observe(action, next_timestep)

    def update(self, wait: bool = False) -> None:
        del wait

    def episode(self, seed: int) -> RecordedEpisode:
        """Returns the newest episode."""
        after = self._timesteps[1:]
        return RecordedEpisode(
            np.stack([timestep.observation for timestep in self._timesteps]),
            np.stack(self._actions),
            np.array([timestep.reward for timestep in after], np.float32),
            np.array([timestep.discount for timestep in after], np.float32),
            seed,
        )


class _SingleActor(core.Actor):
    """An exploring actor of a run, in one environment and without a replay table."""

    def __init__(self, policy: Policy, context: ExplorationContext):
        try:
            self._actor = policy.agent.make_actor(policy.weights, [_NoTable()], [context])
        except NoSuchNetworkError as error:
            raise UsageError(
                "--explore: expected a checkpoint with the weights with which actors explore, got "
                "a best one of an earlier version, which has only those that were evaluated; leave "
                "out --best or --explore"
            ) from error

    def observe_first(self, timestep: dm_env.TimeStep) -> None:
        self._actor.begin(0, timestep)

    def select_action(self, observation: Any) -> np.ndarray:
        return self._actor.select_actions([observation])[0]

    def observe(self, action: Any, next_timestep: dm_env.TimeStep) -> None:
        self._actor.observe(0, action, next_timestep)

    def update(self, wait: bool = False) -> None:
        del wait


class _NoTable(adders.Adder):
    """Drops all steps."""

    def reset(self) -> None:
        pass

    def add_first(self, timestep: dm_env.TimeStep) -> None:
        pass

    def add(self, action: Any, next_timestep: dm_env.TimeStep, extras: Any = ()) -> None:
        pass
