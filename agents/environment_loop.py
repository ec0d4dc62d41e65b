"""The loop of an actor and an environment."""

from collections.abc import Callable, Iterator

import dm_env
from acme import core


def interact(environment: dm_env.Environment, actor: core.Actor) -> Iterator[dm_env.TimeStep]:
    """Lets the actor act in the environment, episode after episode, for ever.

    The caller decides when to stop by no longer asking for steps; nothing happens in between.

    Args:
      environment: gives the observations.
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


def episode_return(
    environment: dm_env.Environment, actor: core.Actor, give_up: Callable[[], bool]
) -> float | None:
    """Plays one episode.

    Args:
      environment: as in `interact`.
      actor: as there.
      give_up: asked after every step.

    Returns:
      The undiscounted sum of rewards; None if given up.
    """
    total = 0.0
    for timestep in interact(environment, actor):
        if give_up():
            return None
        if not timestep.first():
            total += float(timestep.reward)
        if timestep.last():
            break
    return total
