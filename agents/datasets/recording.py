"""Plays the policy of a run and keeps whole episodes."""

import dataclasses
from collections.abc import Iterable, Iterator
from typing import Any

import dm_env
import numpy as np
from acme.adders import base as adders

from agents.agent import ExplorationContext
from agents.policies.policy import Policy
from rl_replicator.runs.statistics import number

_NOISE_STREAM = 1


@dataclasses.dataclass(frozen=True)
class RecordedEpisode:
    """An episode of T actions in an environment of `environments.make`.

    Attributes:
      observations: [T + 1, N] float32.
      actions: [T, A] float32 in [-1, 1], or [T] int32.
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
      lengths: actions of each episode.
      returns: the undiscounted return of each episode.
      num_terminated: episodes that ended with a discount of 0.
    """

    lengths: tuple[int, ...]
    returns: tuple[float, ...]
    num_terminated: int

    @classmethod
    def of(cls, episodes: Iterable[RecordedEpisode]) -> "DatasetSummary":
        """Summarises episodes, without keeping them."""
        figures = [(e.num_steps, e.episode_return, e.is_terminated) for e in episodes]
        lengths, returns, terminated = zip(*figures, strict=True) if figures else ((), (), ())
        return cls(lengths, returns, sum(terminated))

    @property
    def num_steps(self) -> int:
        """Actions of all episodes."""
        return sum(self.lengths)

    @property
    def lack(self) -> str:
        """What the data seem to lack, in one line; "" if nothing.

        Episodes that a time limit cuts off are all as long as it.
        """
        early = sum(length < max(self.lengths) for length in self.lengths)
        if self.num_terminated or not early:
            return ""
        return (
            f"{early:,} episodes are shorter than the longest, but none is recorded as terminated: "
            "if the environment ended them, the agent wrongly expects rewards after their ends"
        )

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

    Yields:
      Each episode. One that does not end within the limit of evaluations is cut off there.
    """
    context = ExplorationContext(_noise(seed), lambda: policy.environment_steps)
    actor: Any = _SingleActor(policy, context) if explore else policy.actor
    for episode_seed in range(seed, seed + episodes):
        # An episode depends only on its own seed, whatever was played before it.
        context.random.bit_generator.state = _noise(episode_seed).bit_generator.state
        context.memory.clear()
        with policy.make_environment(episode_seed) as environment:
            spec = environment.action_spec()
            timesteps: list[dm_env.TimeStep] = [environment.reset()]
            actions: list[np.ndarray] = []
            actor.observe_first(timesteps[0])
            while not timesteps[-1].last() and len(actions) < policy.max_actions:
                action = actor.select_action(timesteps[-1].observation)
                timesteps.append(environment.step(action))
                # As the environment does.
                actions.append(np.clip(action, spec.minimum, spec.maximum).astype(spec.dtype))
                actor.observe(action, timesteps[-1])
        yield RecordedEpisode(
            np.stack([timestep.observation for timestep in timesteps]),
            np.stack(actions),
            np.array([timestep.reward for timestep in timesteps[1:]], np.float32),
            np.array([timestep.discount for timestep in timesteps[1:]], np.float32),
            episode_seed,
        )


def _noise(episode_seed: int) -> np.random.Generator:
    """Returns the random generator of an episode's exploration."""
    # Not default_rng(episode_seed), from which Gymnasium draws the initial state.
    return np.random.default_rng([episode_seed, _NOISE_STREAM])


class _SingleActor:
    """An exploring actor of a run, in one environment and without a replay table."""

    def __init__(self, policy: Policy, context: ExplorationContext):
        self._actor = policy.agent.make_actor(policy.weights, [_NoTable()], [context])

    def observe_first(self, timestep: dm_env.TimeStep) -> None:
        self._actor.begin(0, timestep)

    def select_action(self, observation: Any) -> np.ndarray:
        return self._actor.select_actions([observation])[0]

    def observe(self, action: Any, next_timestep: dm_env.TimeStep) -> None:
        self._actor.observe(0, action, next_timestep)


class _NoTable(adders.Adder):
    """Drops all steps."""

    def reset(self) -> None:
        pass

    def add_first(self, timestep: dm_env.TimeStep) -> None:
        pass

    def add(self, action: Any, next_timestep: dm_env.TimeStep, extras: Any = ()) -> None:
        pass
