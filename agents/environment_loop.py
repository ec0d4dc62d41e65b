"""The loops of actors and environments."""

import itertools
import logging
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import dm_env
import numpy as np
from acme import core

from agents.agent import BatchActor
from environments.engines import BatchEnvironment

_LOG = logging.getLogger("agents")


def interact(environment: dm_env.Environment, actor: core.Actor) -> Iterator[dm_env.TimeStep]:
    """Lets the actor act in the environment, episode after episode, without end.

    The caller stops by ending its iteration; nothing runs between two iterations.

    Args:
      environment: provides the observations.
      actor: chooses the actions and observes their outcome.

    Yields:
      Every `TimeStep`, after the actor has observed it.
    """
    while True:
        timestep = environment.reset()
        actor.observe_first(timestep)
        yield timestep
        while not timestep.last():
            action = actor.select_action(timestep.observation)
            timestep = environment.step(action)
            actor.observe(action, next_timestep=timestep)
            yield timestep


def explore(
    environments: BatchEnvironment, actor: BatchActor
) -> Iterator[tuple[int, dm_env.TimeStep]]:
    """Lets the actor act in all environments, in turn and without end.

    The caller stops by ending its iteration; steps that the environments have taken beyond the last
    one yielded are lost.

    Args:
      environments: provide the observations.
      actor: chooses the actions and observes their outcome.

    Yields:
      The index of an environment and its next `TimeStep`, after the actor has observed it.
    """
    timesteps: list[Any] = [None] * environments.size
    over = list(range(environments.size))
    while True:
        if over:
            for index, timestep in zip(over, environments.reset(over), strict=True):
                timesteps[index] = timestep
                actor.begin(index, timestep)
                yield index, timestep
            over = []
        actions = actor.select_actions([timestep.observation for timestep in timesteps])
        for index, timestep in enumerate(environments.step(actions)):
            timesteps[index] = timestep
            actor.observe(index, actions[index], timestep)
            if timestep.last():
                over.append(index)
            yield index, timestep


class EvaluationEpisode(NamedTuple):
    """The rewards and discounts of an episode.

    Attributes:
      rewards: [T] float64, one for each action.
      discounts: [T] float64, the environment's discount of what follows each reward. The last one
        is 0 after a termination, but not after a time limit.
    """

    rewards: np.ndarray
    discounts: np.ndarray

    @property
    def episode_return(self) -> float:
        """The undiscounted sum of rewards."""
        return float(self.rewards.sum())


def evaluation_episode(
    environment: dm_env.Environment,
    actor: core.Actor,
    max_actions: int,
    give_up: Callable[[], bool] = lambda: False,
) -> EvaluationEpisode | None:
    """Plays one episode.

    Args:
      environment: the environment.
      actor: the policy to evaluate.
      max_actions: number of actions after which an episode is cut off, with a warning.
      give_up: called after every step; returns True to abandon the episode.

    Returns:
      Its rewards and discounts; None if it was abandoned.
    """
    rewards: list[float] = []
    discounts: list[float] = []
    for timestep in itertools.islice(interact(environment, actor), max_actions + 1):
        if give_up():
            return None
        if not timestep.first():
            rewards.append(float(timestep.reward))
            discounts.append(float(timestep.discount))
        if timestep.last():
            return EvaluationEpisode(np.array(rewards), np.array(discounts))
    _LOG.warning(
        "an evaluation episode did not end within %s actions and was cut off; its return counts up "
        "to there (--evaluation.max-episode-steps)",
        f"{max_actions:,}",
    )
    return EvaluationEpisode(np.array(rewards), np.array(discounts))
