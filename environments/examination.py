"""Plays an environment and finds what is wrong with it.

`dm_env.test_utils` and Gymnasium's checker are stricter than agents: the first demands that a step
after the last one resets, both that dtypes and bounds are those of the specs. So they are not
used here.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import dm_env
import numpy as np

from environments import flat, wrappers
from environments.errors import (
    EnvironmentConstructionError,
    EnvironmentNameError,
    EnvironmentUsageError,
    RenderingUnavailableError,
    place,
)
from environments.flat.timesteps import REWARD_BOUNDS_REMEDY

OK, NOTE, WRONG = "ok", "note", "WRONG"

# Observations beyond this make training slow without observation normalisation.
_LARGE = 100.0
# Float32 cannot tell whole numbers beyond this from their neighbours.
_LARGEST_WHOLE = 2.0**24
# The squares of larger errors overflow in float32 once they are summed.
_LARGE_REWARD = 1e6
# The range of a run's seeds. Half of them do not fit into a signed 32-bit integer.
_SEEDS, _LAST_SEED = "from 0 to 2**32 - 1", 2**32 - 1
# A play that takes longer is announced.
PATIENCE_SECS = 5.0
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


class _ExaminationEndsError(Exception):
    """The examination cannot continue; the only argument is the finding that says why."""


_ok = functools.partial(EnvironmentFinding, OK)
_note = functools.partial(EnvironmentFinding, NOTE)
_wrong = functools.partial(EnvironmentFinding, WRONG)


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
        with _errors_of("construction", f"return an environment for every seed {_SEEDS}"):
            environment = make(0)
        yield from _specs(environment)
        yield from _play(environment, max_steps, episodes)
        yield _seeding(make, environment, max_steps)
        yield from _repetition(environment, max_steps)
        yield _rendering(environment)
        with _errors_of("close", "raise nothing in close()"):
            environment.close()
    except _ExaminationEndsError as end:
        yield end.args[0]


@contextlib.contextmanager
def _errors_of(subject: str, remedy: str, environment: Any = None) -> Iterator[None]:
    """Returns a context that turns the exceptions of an environment into the last finding."""
    try:
        yield
    except EnvironmentNameError:
        raise
    except (Exception, SystemExit) as error:  # Scripts of simulators end their process.
        text = str(error)
        if isinstance(error, EnvironmentConstructionError):
            subject = "construction"
        elif isinstance(error, RenderingUnavailableError):  # The environment observes frames.
            subject, remedy = "rendering", ""
        elif isinstance(error, EnvironmentUsageError):  # Names what is wrong, and the remedy.
            is_made = environment is not None
            subject, remedy = ("data", "") if is_made else ("specs", "see docs/environments.md")
        else:
            text = f"{type(error).__name__}: {error}{place(error)}"
        raise _ExaminationEndsError(_wrong(subject, text, remedy)) from error


def _gymnasium_of(environment: Any) -> Any:
    """Returns the Gymnasium environment with its wrappers; None if it is of another kind."""
    from environments.libraries.gymnasium_adapter import GymnasiumEnvironment

    while environment is not None and not isinstance(environment, GymnasiumEnvironment):
        environment = getattr(environment, "wrapped", None)
    return environment and environment.environment


def _specs(environment: Any) -> Iterator[EnvironmentFinding]:
    observations = flat.frame_of(environment.observation_spec())
    is_frame = len(observations.shape) == 3
    own = (environment.wrapped if is_frame else environment).own_action_spec
    size = " x ".join(map(str, observations.shape))
    observed = f"frames of {size}" if is_frame else "1 number" if size == "1" else f"{size} numbers"
    limits = [np.broadcast_to(x, own.shape).ravel() for x in (own.minimum, own.maximum)]
    groups = itertools.groupby(zip(*limits, strict=True))
    ranges = ", ".join(f"{len([*same])} from {low:g} to {high:g}" for (low, high), same in groups)
    num_actions = getattr(environment.action_spec(), "num_values", None)
    if num_actions is not None:
        masked = (
            ", of which a mask says the legal ones"
            if flat.mask_size(environment.observation_spec())
            else ""
        )
        ranges = f"one of {num_actions} actions{masked}"
    yield _ok("specs", f"observes {observed}, takes {ranges}")
    is_fixed = np.equal(*(limit.astype(np.float32) for limit in limits))
    if is_fixed.any():
        text = f"{is_fixed.sum()} of {is_fixed.size} can only have one value"
        yield _note("actions", text, "leave them out, or widen their limits")
    normalizing = _gymnasium_of(environment)
    while normalizing is not None:
        kind = type(normalizing).__name__
        if kind in ("NormalizeObservation", "NormalizeReward"):
            text = f"{kind}: each actor and the evaluator has its own statistics"
            remedy = "leave it out, and train with --agent.normalize-observations, or scale rewards"
            yield _note("normalisation", text, remedy)
        normalizing = getattr(normalizing, "env", None)
    low, high = _reward_bounds(environment)
    if math.isfinite(low) and math.isfinite(high):
        yield _ok("reward bounds", f"{low:g} to {high:g}")
        return
    remedy = "D4PG and DQN then divide rewards by the spread of the returns (--agent.value-scale)"
    yield _note("reward bounds", "none", remedy)


def _reward_bounds(environment: Any) -> tuple[float, float]:
    spec = environment.reward_spec()
    low, high = getattr(spec, "minimum", -math.inf), getattr(spec, "maximum", math.inf)
    return float(low), float(high)


def _play(environment: Any, max_steps: int, episodes: int) -> Iterator[EnvironmentFinding]:
    """Plays episodes until one does not end."""
    act = flat.random_policy(environment, np.random.RandomState(0))
    rewards: list[float] = []
    inner_discounts: set[float] = set()
    ends: list[tuple[int, float]] = []
    # Observations are not kept: frames take much memory.
    lowest, highest = np.array(np.inf), np.array(-np.inf)
    started, is_slow = time.monotonic(), False
    with _errors_of("step", "raise nothing in reset() and step()", environment):
        for episode in range(episodes):
            timestep = environment.reset()
            for step in range(1, max_steps + 1):
                timestep = environment.step(act(timestep.observation))
                rewards.append(float(timestep.reward))
                lowest = np.minimum(lowest, flat.frame_of(timestep.observation))
                highest = np.maximum(highest, flat.frame_of(timestep.observation))
                if timestep.last():
                    ends.append((step, float(timestep.discount)))
                    break
                inner_discounts.add(float(timestep.discount))
                seconds = time.monotonic() - started
                if seconds > PATIENCE_SECS and not is_slow:
                    is_slow = True
                    rate = len(rewards) / seconds
                    text = f"{rate:.3g} steps/s; two episodes take up to"
                    text = f"{text} {episodes * max_steps / rate:.0f} s to play"
                    yield _note("speed", text, "lower --max-steps to see more sooner")
            if len(ends) == episode:
                break
    yield _ends(ends, episodes, max_steps)
    if inner_discounts - {1.0}:
        text = f"{min(inner_discounts):g} before the last step"
        yield _note("discount", text, "the agent's own comes on top; return 1 unless intended")
    yield from _rewards(environment, min(rewards), max(rewards))
    yield from _observations(environment, lowest, highest)


def _ends(ends: list[tuple[int, float]], episodes: int, max_steps: int) -> EnvironmentFinding:
    if len(ends) < episodes:
        count, limit = len(ends), f"within {max_steps:,} steps"
        text = f"no episode ended {limit}"
        if count:
            text = f"episode {count + 1} did not end {limit}, but episode {count} did"
        remedy = "end it, or give --time-limit (training needs ends to report returns)"
        return _wrong("end", text, remedy)
    kinds = ["termination" if discount == 0 else "truncation" for _, discount in ends]
    if len({length for length, _ in ends}) == 1 < len(ends) and set(kinds) == {"termination"}:
        return _note(
            "end",
            f"every episode terminated after {ends[0][0]} steps",
            "if that is a time limit, it should truncate: dm_env.truncation (discount 1), or "
            "truncated=True in Gymnasium; else the agent learns that no reward follows",
        )
    lengths = ", ".join(f"{n} ({kind})" for (n, _), kind in zip(ends, kinds, strict=True))
    return _ok("end", f"episodes of {lengths} steps")


def _rewards(environment: Any, low: float, high: float) -> Iterator[EnvironmentFinding]:
    text = f"{low:.4g} to {high:.4g}"
    bounds = _reward_bounds(environment)
    if low < bounds[0] - _ROUNDING or high > bounds[1] + _ROUNDING:
        yield _note("reward bounds", f"beyond them: {text}", REWARD_BOUNDS_REMEDY)
    if low == high:
        text = f"{low:g} at every step of random play"
        yield _note("reward", text, "fine for a rare reward; otherwise check the reward function")
    elif max(-low, high) > _LARGE_REWARD:
        yield _note("reward", f"{text}, too large to learn from", "divide them in a wrapper")
    else:
        yield _ok("reward", text)


def _observations(
    environment: Any, lowest: np.ndarray, highest: np.ndarray
) -> Iterator[EnvironmentFinding]:
    is_constant = lowest == highest
    if is_constant.ndim == 3:
        remedy = "choose a camera that sees the motion with --frame.cameras, or correct render()"
        if is_constant.all():
            yield _note("observation", "all frames were the same", remedy)
        else:
            yield _ok("observation", f"{1 - is_constant.mean():.0%} of a frame changed")
        return
    # A mask of actions may be the same in all states that were seen.
    numbers = is_constant[: is_constant.size - flat.mask_size(environment.observation_spec())]
    largest, constant = float(np.maximum(-lowest, highest).max()), int(numbers.sum())
    text = f"values up to {largest:.4g}"
    if largest >= _LARGEST_WHOLE:
        text += ", of which float32 keeps seven digits, so that neighbours may be the same"
        remedy = "subtract a constant, such as the time of the reset, before they are cast"
        yield _note("observation", text, remedy)
    elif largest > _LARGE:
        remedy = "scale them in a wrapper, or train with --agent.normalize-observations"
        yield _note("observation", text, remedy)
    elif not constant:
        yield _ok("observation", text)
    if constant:
        text = f"{constant} of {len(numbers)} numbers never changed"
        yield _note("observation", text, "leave them out if they carry no information")
    low, high = environment.observation_bounds
    with np.errstate(over="ignore"):  # The bounds may be the largest float64.
        is_below = lowest < low - _ROUNDING * np.maximum(1, np.abs(low))
        is_above = highest > high + _ROUNDING * np.maximum(1, np.abs(high))
    if np.any(is_below | is_above):
        example = lowest[is_below][0] if is_below.any() else highest[is_above][0]
        count = (is_below | is_above).sum()
        yield _note(
            "observation bounds",
            f"beyond them: {count} of {low.size} numbers, such as {example:.4g}",
            "agents do not need them; correct observation_spec() (Gymnasium: observation_space), "
            "or the values",
        )


def _seeding(make: Callable[[int], Any], beside: Any, max_steps: int) -> EnvironmentFinding:
    with _errors_of("seeding", f"take every seed {_SEEDS}"):
        one, other = (_played_once(make(seed), max_steps) for seed in (1, _LAST_SEED))
        # As in a run, several environments play in one process: they must share no generator.
        again = _played_once(make(1), max_steps, beside)
        later = [_played(beside, max_steps) for _ in range(2)]
    if one != again:
        return _note(
            "seeding",
            "two environments with the same seed differ, so runs cannot be repeated",
            "fine if a curriculum counts all episodes; otherwise draw everything from a generator "
            "of its own that is made from the seed, not from the global ones of np.random and "
            "random",
        )
    if one == other:
        remedy = "fine for a deterministic environment; otherwise use the seed"
        return _note("seeding", "environments of different seeds are the same", remedy)
    if later[0] == later[1]:
        text = "the seed decides the first episode, and all later ones are the same"
        remedy = "seed the generator once, not in every reset (Gymnasium: not if seed is None)"
        return _note("seeding", text, remedy)
    return _ok("seeding", "the seed decides")


def _repetition(environment: Any, max_steps: int) -> Iterator[EnvironmentFinding]:
    with _errors_of("step", "raise nothing in a later episode", environment):
        state = environment.random_state
        text = "not found"
        remedy = "keep one NumPy generator as an attribute 'random_state', 'random' or '_random'"
        if wrappers.innermost(state) is not None:
            before = _played(environment, max_steps)
            environment.random_state = state
            if _played(environment, max_steps) == before:
                return
            text = "an episode that begins with the same one differs"
            remedy = "keep nothing else from one episode to the next"
    text += ", so a run with --deterministic cannot be continued"
    yield _note("random state", text, remedy)


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
        timestep._replace(observation=flat.frame_of(timestep.observation).tobytes())
        for *_, timestep in itertools.islice(in_turn, min(max_steps, 50) + 1)
    ]


def _timesteps(environment: Any) -> Iterator[dm_env.TimeStep]:
    """Yields time steps without end, for a fixed sequence of actions."""
    act = flat.random_policy(environment, np.random.RandomState(3))
    timestep = environment.reset()
    while True:
        yield timestep
        # As agents do: not every environment resets itself on the step after the last one.
        if timestep.last():
            timestep = environment.reset()
        else:
            timestep = environment.step(act(timestep.observation))


def _rendering(environment: Any) -> EnvironmentFinding:
    """Tries a frame of a film. Agents need none, unless they observe frames, which were played."""
    try:
        environment.reset()
        environment.render(48, 64)
    except (EnvironmentUsageError, RenderingUnavailableError) as error:
        return _note("rendering", f"none, so no films: {error}")
    except Exception as error:
        text = f"none, so no films: {type(error).__name__}: {error}{place(error)}"
        return _note("rendering", text, "correct render(), or leave it out")
    return _ok("rendering", "frames of the requested size")
