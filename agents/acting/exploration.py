"""Exploration for agents with a deterministic policy: how actors change its actions.

`--agent.exploration` names one of `EXPLORATIONS`, or a user-defined function by its import path. It
is called with (config, context), an `agents.agent.ExplorationContext`, once for each environment,
and once more if it is tried before its first use (`make_exploration`). It returns a function from
the policy's action [A] to the action to take [A], float32. Actors clip the result to [-1, 1].
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
from dm_env import specs

from agents.agent import ExplorationContext
from agents.config import NoiseSettings
from agents.registry import find_part
from rl_replicator.errors import ConfigError

Exploration = Callable[[np.ndarray], np.ndarray]
_NUM_PROCESSES = 10  # Of pink noise.
_MOST_HELD = 16  # Actions for which noise is held.


class RandomActions:
    """Draws actions from the whole range, and keeps each for 8 steps on average.

    Every dimension keeps its value for an independent time with a geometric distribution. Actions
    that are drawn anew in every step hardly move a body with inertia.
    """

    _CHANGE = 1 / 8
    _KEY = "agents.acting.RandomActions"  # User-defined explorations share the memory.

    def __init__(self, random: np.random.Generator, memory: dict[str, np.ndarray]):
        """Stores the source of randomness.

        Args:
          random: generator of the actions.
          memory: keeps the last action, until `stop`: `_KEY` -> [A] float32.
        """
        self._random = random
        self._memory = memory

    def __call__(self, action: np.ndarray) -> np.ndarray:
        """Returns a random action: [A] float32, of which only the shape is used -> [A] float32."""
        drawn = self._random.uniform(-1, 1, action.shape).astype(np.float32)
        last = self._memory.get(self._KEY, drawn)
        changes = self._random.uniform(size=action.shape) < self._CHANGE
        self._memory[self._KEY] = held = np.where(changes, drawn, last)
        return held

    def stop(self) -> None:
        """Clears the memory for the exploration that follows, which starts with an empty one."""
        self._memory.pop(self._KEY, None)


def gaussian(config: NoiseSettings, context: ExplorationContext) -> Exploration:
    """Gaussian noise, independent from action to action; see `make_sigma`.

    Args:
      config: settings of the agent.
      context: the context of one environment.
    """
    sigma, random = make_sigma(config, context), context.random

    def explore(action: np.ndarray) -> np.ndarray:
        noise = random.standard_normal(action.shape, np.float32)
        return action + np.float32(sigma()) * noise

    return explore


def pink(config: NoiseSettings, context: ExplorationContext) -> Exploration:
    """Gaussian noise that is correlated over time, independently in each dimension.

    Its spectrum falls like 1/f, like that of the noise of Eberhard et al. 2023 ("Pink Noise Is All
    You Need", ICLR): it keeps a direction long enough to meet rare rewards, and still changes fast.
    It is a sum of first-order autoregressive processes of equal variance, whose time constants are
    1, 2, 4, ... 512 actions. The memory keeps the processes: "pink" -> [10, A] float32.

    Args:
      config: settings of the agent.
      context: the context of one environment.
    """
    sigma, random, memory = make_sigma(config, context), context.random, context.memory
    constants = 2.0 ** np.arange(_NUM_PROCESSES)[:, None]  # In actions.
    decay = np.exp(-1 / constants).astype(np.float32)
    innovation = np.sqrt(1 - decay**2)
    scale = np.float32(_NUM_PROCESSES**-0.5)

    def explore(action: np.ndarray) -> np.ndarray:
        draws = random.standard_normal((_NUM_PROCESSES, *action.shape), np.float32)
        before = memory.get("pink")
        memory["pink"] = now = draws if before is None else decay * before + innovation * draws
        return action + np.float32(sigma()) * scale * now.sum(axis=0)

    return explore


def held(config: NoiseSettings, context: ExplorationContext) -> Exploration:
    """Gaussian noise that is drawn once for k actions, P(k) ~ k**-2, k = 1 .. 16.

    The noise repetition of FlashSAC (Kim et al. 2026, arXiv:2604.04539): most noise changes at
    once, and some lasts long enough to move a body. The memory keeps it: "held" -> the noise
    without its scale, [A] float32, and the number of further actions that it is held for.

    Args:
      config: settings of the agent.
      context: the context of one environment.
    """
    sigma, random, memory = make_sigma(config, context), context.random, context.memory
    lengths = np.arange(1, _MOST_HELD + 1)
    cumulative = np.cumsum(lengths**-2.0)

    def explore(action: np.ndarray) -> np.ndarray:
        noise, left = memory.get("held", (None, 0))
        if left == 0:
            noise = random.standard_normal(action.shape, np.float32)
            left = 1 + int(np.searchsorted(cumulative, random.uniform(0, cumulative[-1])))
        memory["held"] = [noise, left - 1]
        return action + np.float32(sigma()) * noise

    return explore


def none(config: NoiseSettings, context: ExplorationContext) -> Exploration:
    """No exploration; see `gaussian` for the arguments."""
    del config, context
    return lambda action: action


def make_sigma(config: NoiseSettings, context: ExplorationContext) -> Callable[[], float]:
    """Makes the standard deviation of the noise, which follows the config's linear schedule.

    Several environments share a geometric ladder of standard deviations around the schedule's, as
    the epsilons of Ape-X do (Horgan et al. 2018, arXiv:1803.00933): no single value suits every
    task and every stage of training.

    Args:
      config: settings of the agent.
      context: the context of one environment.

    Returns:
      A function that returns the current standard deviation.
    """
    start, end = config.exploration_sigma, config.exploration_sigma_end
    change = 0.0 if end is None else end - start
    factor = config.exploration_spread ** (2 * context.rank - 1)

    def sigma() -> float:
        progress = min(context.environment_steps() / config.exploration_steps, 1.0)
        return factor * (start + progress * change)

    return sigma


EXPLORATIONS = {"gaussian": gaussian, "pink": pink, "held": held, "none": none}


def make_exploration(config: NoiseSettings, context: ExplorationContext) -> Exploration:
    """Makes the exploration that `config.exploration` names.

    In the first `config.exploration_random_steps` environment steps of all actors, actions are
    random instead. So that mistakes in a user-defined exploration show immediately, not only after
    these steps, an instance with a separate context is tried in the first of them.

    Args:
      config: settings of the agent.
      context: the context of one environment.

    Returns:
      A function from the policy's action to the action to take, both [A] float32.

    Raises:
      ConfigError: if there is no such exploration. The function raises one if the exploration
        returns anything but an array of the action's shape, or NaN for an action without it.
    """
    make = find_exploration(config)
    explore = make(config, context)
    draw = RandomActions(context.random, context.memory)
    is_tried = False

    def select(action: np.ndarray) -> np.ndarray:
        nonlocal is_tried
        if context.environment_steps() < config.exploration_random_steps:
            if not is_tried:
                is_tried = True
                alone = dataclasses.replace(
                    context,
                    random=np.random.default_rng(0),
                    environment_steps=lambda: config.exploration_random_steps,  # Its first use.
                    memory={},
                )
                _explored(make(config, alone), action)
            return draw(action)
        draw.stop()
        return _explored(explore, action)

    return select


def _explored(explore: Exploration, action: np.ndarray) -> np.ndarray:
    """Applies an exploration to an action; raises ConfigError if the result is not an action."""
    explored = explore(action.copy())  # A copy: an exploration may change its argument.
    if getattr(explored, "shape", None) != action.shape:  # np.shape would stack a tuple.
        received = getattr(explored, "shape", f"a {type(explored).__name__}")
        raise ConfigError(
            f"--agent.exploration: expected an array of shape {action.shape}, got {received}; "
            "return the action alone"
        )
    if np.isnan(explored).any() and not np.isnan(action).any():
        raise ConfigError(
            f"--agent.exploration: expected numbers, got {explored.tolist()} for the policy's "
            f"action {action.tolist()}; correct what it computes"
        )
    return explored


def with_range(
    explore: Callable[[Any], tuple[np.ndarray, Any]], spec: specs.Array, owner: str
) -> Callable[[Any], tuple[np.ndarray, Any]]:
    """Returns an agent's exploration with its actions clipped to [-1, 1], or as int32 numbers.

    Environments clip them, too, but the replay must hold the actions that were taken.

    Args:
      explore: outputs of the policy network -> action and extras. It may be user-defined.
      spec: the spec of an action.
      owner: name of the agent, for the error message.

    Returns:
      The same, but actions are those of the spec, and it raises ConfigError for anything but an
      action of its shape and extras.
    """
    low, high, shape = np.float32(-1), np.float32(1), tuple(spec.shape)

    def clipped(outputs: Any) -> tuple[np.ndarray, Any]:
        explored = explore(outputs)
        if not isinstance(explored, tuple) or len(explored) != 2:
            received = type(explored).__name__
        elif np.shape(explored[0]) != shape:
            received = f"an action of shape {np.shape(explored[0])}"
        else:
            action, extras = explored
            if spec.dtype == np.int32:
                return np.asarray(action, np.int32), extras
            return np.minimum(np.maximum(action, low), high, dtype=np.float32), extras
        raise ConfigError(
            f"make_exploration of {owner}: expected a function to (action of shape {shape}, "
            f"extras), got {received}; return (action, ()) if there are no extras"
        )

    return clipped


def find_exploration(config: NoiseSettings) -> Callable[..., Exploration]:
    """Returns the function that `config.exploration` names.

    Raises:
      ConfigError: if there is none.
    """
    return find_part(config.exploration, EXPLORATIONS, "agent.exploration")
