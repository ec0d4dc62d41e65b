"""Plays an environment and finds what is wrong with it."""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import dm_env
import numpy as np
from dm_env import specs

from environments.errors import (
    EnvironmentConstructionError,
    EnvironmentDataError,
    EnvironmentNameError,
    EnvironmentUsageError,
    RenderingUnavailableError,
)
from environments.wrappers import wrapping

OK, NOTE, WRONG = "ok", "note", "WRONG"

# Observations beyond this make training slow without observation normalisation.
_LARGE = 100.0
# The range of a run's seeds. Half of them do not fit into a signed 32-bit integer.
_SEEDS, _LAST_SEED = "from 0 to 2**32 - 1", 2**32 - 1
# Relative tolerance of observation bounds, because observations are rounded to float32.
_ROUNDING = 1e-4


class EnvironmentFinding(NamedTuple):
    """One finding of an examination.

    Attributes:
      verdict: OK, NOTE or WRONG.
      subject: what was examined.
      text: what was found.
      remedy: what to do; empty if nothing.
    """

    verdict: str
    subject: str
    text: str
    remedy: str = ""


def examine(
    make: Callable[[int], Any], max_steps: int, episodes: int = 2
) -> Iterator[EnvironmentFinding]:
    """Makes an environment, plays it with random actions, and yields what it finds.

    Args:
      make: seed -> an environment as from `environments.make`, which observes its state or frames.
      max_steps: steps within which an episode must end.
      episodes: episodes to play.

    Yields:
      Findings, in the order of the examination, which ends at an error that prevents the rest.

    Raises:
      EnvironmentNameError: if there is no environment of that name.
    """
    try:
        environment = make(0)
    except EnvironmentNameError:
        raise
    except EnvironmentConstructionError as error:
        yield _construction(error.reason())
        return
    except EnvironmentUsageError as error:
        yield EnvironmentFinding(WRONG, "specs", str(error), "see docs/environments.md")
        return
    except RenderingUnavailableError as error:  # The environment observes frames.
        yield EnvironmentFinding(WRONG, "rendering", str(error))
        return
    except Exception as error:  # From the environment's own specs, or its library.
        yield _construction(f"{type(error).__name__}: {error}")
        return
    observations = environment.observation_spec()
    is_frame = len(observations.shape) == 3
    own = (environment.wrapped if is_frame else environment).own_action_spec
    size = " x ".join(map(str, observations.shape))
    observed = f"frames of {size}" if is_frame else "1 number" if size == "1" else f"{size} numbers"
    yield EnvironmentFinding(
        OK,
        "specs",
        f"observes {observed}, takes {_ranges(own)}",
    )
    yield _reward_bounds(environment.reward_spec())
    play = _Play(environment, max_steps)
    try:
        play.episodes(episodes)
    except EnvironmentUsageError as error:  # Names environment, field, step and remedy.
        yield EnvironmentFinding(WRONG, "data", str(error))
        return
    except RenderingUnavailableError as error:  # The environment renders frames itself.
        yield EnvironmentFinding(WRONG, "rendering", str(error))
        return
    except Exception as error:
        yield _raised(f"at step {play.step}", error)
        return
    yield from play.findings()
    yield from _seeding(make, environment, max_steps)
    try:
        yield from _repetition(environment, max_steps)
    except Exception as error:
        yield _raised("in a later episode", error)
        return
    yield _rendering(environment)
    try:
        environment.close()
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
        yield EnvironmentFinding(WRONG, "close", text, "raise nothing in close()")


def _ranges(actions: specs.BoundedArray) -> str:
    """Summarises the limits of the actions, such as "2 from -1 to 1, 1 from 0 to 9"."""
    limits = (np.broadcast_to(x, actions.shape).ravel() for x in (actions.minimum, actions.maximum))
    groups = itertools.groupby(zip(*limits, strict=True))
    return ", ".join(f"{len([*same])} from {low:g} to {high:g}" for (low, high), same in groups)


def _construction(text: str) -> EnvironmentFinding:
    remedy = f"correct the function, which must return an environment for every seed {_SEEDS}"
    return EnvironmentFinding(WRONG, "construction", text, remedy)


def _raised(when: str, error: Exception) -> EnvironmentFinding:
    text = f"{type(error).__name__} {when}: {error}"
    return EnvironmentFinding(WRONG, "step", text, "raise nothing in reset() and step()")


class _Play:
    """Plays episodes and collects statistics for the findings."""

    def __init__(self, environment: Any, max_steps: int):
        self._environment = environment
        self._max_steps = max_steps
        self._random = np.random.RandomState(0)
        self._lengths: list[int] = []
        self._has_ended = True
        self._last_discounts: list[float] = []
        self._rewards: list[float] = []
        self._inner_discounts: set[float] = set()
        self._values = _Observed()
        self._bounds = _Bounds(environment)
        self.step = 0

    def episodes(self, count: int) -> None:
        """Plays episodes; stops after one that does not end."""
        for _ in range(count):
            self._has_ended = self._episode()
            if not self._has_ended:
                return

    def _episode(self) -> bool:
        self._environment.reset()
        shape = self._environment.action_spec().shape
        for step in range(1, self._max_steps + 1):
            self.step = step
            action = self._random.uniform(-1, 1, shape).astype(np.float32)
            timestep = self._environment.step(action)
            self._rewards.append(float(timestep.reward))
            self._values.add(timestep.observation)
            self._bounds.add(timestep.observation)
            if timestep.last():
                self._lengths.append(self.step)
                self._last_discounts.append(float(timestep.discount))
                return True
            self._inner_discounts.add(float(timestep.discount))
        return False

    def findings(self) -> Iterator[EnvironmentFinding]:
        """Yields the findings of the episodes."""
        yield self._ends()
        if self._inner_discounts - {1.0}:
            yield EnvironmentFinding(
                NOTE,
                "discount",
                f"{min(self._inner_discounts):g} before the last step",
                "the agent's own discount comes on top of it; return 1 unless this is intended",
            )
        if min(self._rewards) == max(self._rewards):
            text = f"{self._rewards[0]:g} at every step of random play"
            remedy = "fine for a rare reward; otherwise check the reward function"
            yield EnvironmentFinding(NOTE, "reward", text, remedy)
        else:
            yield EnvironmentFinding(
                OK, "reward", f"{min(self._rewards):.4g} to {max(self._rewards):.4g}"
            )
        yield from self._values.findings()
        yield from self._bounds.findings()

    def _ends(self) -> EnvironmentFinding:
        if not self._has_ended:
            count, limit = len(self._lengths), f"within {self._max_steps:,} steps"
            text = f"no episode ended {limit}"
            if count:
                text = f"episode {count + 1} did not end {limit}, but episode {count} did"
            return EnvironmentFinding(
                WRONG,
                "end",
                text,
                "end it, or give --time-limit (training needs ends to report returns)",
            )
        kinds = ["termination" if d == 0 else "truncation" for d in self._last_discounts]
        lengths = ", ".join(f"{n} ({kind})" for n, kind in zip(self._lengths, kinds, strict=True))
        same = len(set(self._lengths)) == 1 and len(self._lengths) > 1
        if same and set(kinds) == {"termination"}:
            return EnvironmentFinding(
                NOTE,
                "end",
                f"every episode terminated after {self._lengths[0]} steps",
                "if that is a time limit, it should truncate: dm_env.truncation (discount 1), or "
                "truncated=True in Gymnasium; else the agent learns that no reward follows",
            )
        return EnvironmentFinding(OK, "end", f"episodes of {lengths} steps")


class _Observed:
    """Statistics of observations. The observations are not kept: frames take much memory."""

    def __init__(self) -> None:
        self._first: np.ndarray | None = None
        self._is_constant = np.array(True)
        self._largest = 0.0

    def add(self, observation: np.ndarray) -> None:
        """Adds one observation."""
        if self._first is None:
            self._first = observation.copy()
            self._is_constant = np.ones(observation.shape, bool)
        self._is_constant &= observation == self._first
        self._largest = max(self._largest, float(np.abs(observation).max()))

    def findings(self) -> Iterator[EnvironmentFinding]:
        """Yields the findings about the observations."""
        if self._is_constant.ndim == 3:
            yield self._of_frames()
            return
        constant = int(self._is_constant.sum())
        if self._largest > _LARGE:
            yield EnvironmentFinding(
                NOTE,
                "observation",
                f"values up to {self._largest:.4g}",
                "scale them in a wrapper, or train with --agent.normalize-observations",
            )
        if constant:
            text = f"{constant} of {self._is_constant.size} numbers never changed"
            yield EnvironmentFinding(
                NOTE, "observation", text, "leave them out if they carry no information"
            )
        if self._largest <= _LARGE and not constant:
            yield EnvironmentFinding(OK, "observation", f"values up to {self._largest:.4g}")

    def _of_frames(self) -> EnvironmentFinding:
        changed = 1 - float(self._is_constant.mean())
        if changed:
            return EnvironmentFinding(OK, "observation", f"{changed:.0%} of a frame changed")
        return EnvironmentFinding(
            NOTE,
            "observation",
            "all frames were the same",
            "choose a camera that sees the motion with --frame.camera, or correct render()",
        )


class _Bounds:
    """Compares observations with the bounds that the environment declares; frames have none."""

    def __init__(self, environment: Any):
        low, high = getattr(environment, "observation_bounds", (-np.inf, np.inf))
        with np.errstate(over="ignore"):  # The bounds may be the largest float64.
            self._lowest = low - _ROUNDING * np.maximum(1, np.abs(low))
            self._highest = high + _ROUNDING * np.maximum(1, np.abs(high))
        self._is_beyond = np.array(False)
        self._example = 0.0

    def add(self, observation: np.ndarray) -> None:
        """Checks one observation."""
        is_beyond = (observation < self._lowest) | (observation > self._highest)
        if is_beyond.any() and not self._is_beyond.any():
            self._example = float(observation[is_beyond][0])
        self._is_beyond = self._is_beyond | is_beyond

    def findings(self) -> Iterator[EnvironmentFinding]:
        """Yields a note if numbers were beyond their bounds."""
        if self._is_beyond.any():
            yield EnvironmentFinding(
                NOTE,
                "observation bounds",
                f"beyond them: {self._is_beyond.sum()} of {self._is_beyond.size} numbers, such as "
                f"{self._example:.4g}",
                "agents do not need them; correct observation_spec() (Gymnasium: "
                "observation_space), or the values",
            )


def _reward_bounds(spec: Any) -> EnvironmentFinding:
    low = float(getattr(spec, "minimum", -math.inf))
    high = float(getattr(spec, "maximum", math.inf))
    if math.isfinite(low) and math.isfinite(high):
        return EnvironmentFinding(OK, "reward bounds", f"{low:g} to {high:g}")
    return EnvironmentFinding(
        NOTE,
        "reward bounds",
        "none",
        "D4PG needs them: bound reward_spec() (Gymnasium: reward_range), or give "
        "--agent.value-min and --agent.value-max",
    )


def _seeding(
    make: Callable[[int], Any], beside: Any, max_steps: int
) -> Iterator[EnvironmentFinding]:
    try:
        one, other = (_played_once(make(seed), max_steps) for seed in (1, _LAST_SEED))
        # As in a run, several environments play in one process: they must share no generator.
        again = _played_once(make(1), max_steps, beside)
    except EnvironmentConstructionError as error:
        yield _construction(error.reason())
        return
    except Exception as error:
        text = f"{type(error).__name__} with another seed: {error}"
        yield EnvironmentFinding(WRONG, "seeding", text, f"take every seed {_SEEDS}")
        return
    if one != again:
        yield EnvironmentFinding(
            WRONG,
            "seeding",
            "two environments with the same seed differ",
            "draw everything from a generator of its own that is made from the seed, not from the "
            "global ones of np.random and random",
        )
    elif one == other:
        yield EnvironmentFinding(
            NOTE,
            "seeding",
            "environments of different seeds are the same",
            "fine for a deterministic environment; otherwise use the seed",
        )
    else:
        yield EnvironmentFinding(OK, "seeding", "the seed decides")


def _repetition(environment: Any, max_steps: int) -> Iterator[EnvironmentFinding]:
    state = environment.random_state
    if wrapping.innermost(state) is None:
        text = "not found"
        remedy = "keep one NumPy generator as an attribute 'random_state', 'random' or '_random'"
    else:
        before = _played(environment, max_steps)
        environment.random_state = state
        if _played(environment, max_steps) == before:
            return
        text = "an episode that begins with the same one differs"
        remedy = "keep nothing else from one episode to the next"
    text += ", so a run with --deterministic cannot be continued"
    yield EnvironmentFinding(NOTE, "random state", text, remedy)


def _played_once(environment: Any, max_steps: int, *beside: Any) -> list[tuple]:
    found = _played(environment, max_steps, *beside)
    with contextlib.suppress(Exception):  # `examine` reports errors of closing.
        environment.close()
    return found


def _played(environment: Any, max_steps: int, *beside: Any) -> list[tuple]:
    """Plays a fixed sequence of actions; returns the time steps, with observations as bytes.

    Args:
      environment: the environment.
      max_steps: maximum number of steps, of which at most 50 are taken.
      beside: environments that are stepped alternately with it.
    """
    in_turn = zip(*map(_timesteps, [*beside, environment]), strict=True)
    return [
        timestep._replace(observation=timestep.observation.tobytes())
        for *_, timestep in itertools.islice(in_turn, min(max_steps, 50) + 1)
    ]


def _timesteps(environment: Any) -> Iterator[dm_env.TimeStep]:
    """Yields time steps without end, for a fixed sequence of actions."""
    random = np.random.RandomState(3)
    shape = environment.action_spec().shape
    timestep = environment.reset()
    while True:
        yield timestep
        action = random.uniform(-1, 1, shape).astype(np.float32)
        # As agents do: not every environment resets itself on the step after the last one.
        timestep = environment.reset() if timestep.last() else environment.step(action)


def _rendering(environment: Any) -> EnvironmentFinding:
    try:
        environment.reset()
        environment.render(48, 64)
    except EnvironmentDataError as error:  # Names environment, frame and remedy.
        return EnvironmentFinding(WRONG, "rendering", str(error))
    except (EnvironmentUsageError, RenderingUnavailableError) as error:
        return EnvironmentFinding(NOTE, "rendering", f"none, so no films: {error}")
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
        return EnvironmentFinding(WRONG, "rendering", text, "correct render(), or leave it out")
    return EnvironmentFinding(OK, "rendering", "frames of the requested size")
