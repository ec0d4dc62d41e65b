"""Adapts a `gymnasium.Env` to `dm_env.Environment`."""

from __future__ import annotations

import contextlib
import functools
import itertools
import sys
from collections.abc import Iterator
from typing import Any

import dm_env
import gymnasium
import numpy as np
from dm_env import specs
from gymnasium import spaces

from environments import flat
from environments.errors import (
    EnvironmentDataError,
    EnvironmentSpecError,
    RenderingUnavailableError,
    of_user_code,
)
from environments.pixels import rendering

# The methods `step` of wrappers that return rewards unchanged.
_KEEPS_REWARDS = {
    gymnasium.ActionWrapper.step,
    gymnasium.ObservationWrapper.step,
    gymnasium.Wrapper.step,
    gymnasium.wrappers.OrderEnforcing.step,
    gymnasium.wrappers.PassiveEnvChecker.step,
    gymnasium.wrappers.RecordEpisodeStatistics.step,
    gymnasium.wrappers.TimeLimit.step,
}

# What spaces are expected to hold, in error messages.
_OBSERVATIONS = "observations of real numbers"
_ACTIONS = "actions in one array with finite bounds, or discrete ones"


def adapt(
    environment: gymnasium.Env, seed: int, name: str = "", drops_images: bool = False
) -> flat.Environment:
    """Adapts a Gymnasium environment to `flat.Environment`.

    Args:
      environment: environment whose observations consist of `spaces.Box` or `MultiBinary`.
      seed: seed for the first reset.
      name: name of the environment, for error messages. Default: the name of its class.
      drops_images: see `flat.Environment`.

    Returns:
      The environment, which renders if it was made with `render_mode="rgb_array"`.

    Raises:
      EnvironmentConstructionError: if it has no spaces.
      EnvironmentSpecError: if its spaces are others, or it is a vector of environments.
    """
    num_envs = getattr(environment.unwrapped, "num_envs", None)
    if num_envs is not None:  # Some wrappers answer to every name with None.
        raise EnvironmentSpecError(
            f"expected a single environment, got a vector of {num_envs} "
            f"({type(environment.unwrapped).__qualname__}); return one of them, and train in "
            "several with --envs-per-actor"
        )
    name = name or type(environment.unwrapped).__qualname__
    render: flat.Render | str = functools.partial(_render, environment, name)
    if environment.render_mode != "rgb_array":
        render = (
            "expected an environment made with render_mode='rgb_array', got "
            f"{environment.render_mode!r}; take render_mode in the constructor, and make the "
            "environment with it (gym:ID makes it without if it cannot be made with it)"
        )
    with of_user_code(f"the specs of {name}", "be returned"):
        bridge = GymnasiumEnvironment(environment, seed)
    adapted = flat.Environment(
        bridge, random=bridge, render=render, name=name, drops_images=drops_images
    )
    adapted.keeps_aspect = True
    return adapted


class GymnasiumEnvironment(dm_env.Environment):
    """A Gymnasium environment with dm_env's interface; also reads and writes its random state.

    A termination becomes a last step with discount 0, and a truncation one with discount 1. The
    bounds of rewards are taken from the attribute `reward_range` of older environments, if they are
    finite and no wrapper may change rewards.
    """

    def __init__(self, environment: gymnasium.Env, seed: int):
        """Wraps an environment.

        Args:
          environment: see `adapt`.
          seed: seed for the first reset.

        Raises:
          EnvironmentSpecError: see `adapt`.
        """
        self._environment = environment
        self._seed = seed
        # What the next reset starts from; None if it continues the generator's stream.
        self._start: dict[str, Any] | None = {"seed": seed}
        self._over = True
        self._observation_spec = _spec(environment.observation_space, "observation", _OBSERVATIONS)
        self._action_spec = action_spec(environment.action_space)

    @property
    def environment(self) -> gymnasium.Env:
        """The Gymnasium environment."""
        return self._environment

    @property
    def unwrapped(self) -> gymnasium.Env:
        """The Gymnasium environment without its wrappers."""
        return self._environment.unwrapped

    @property
    def _random(self) -> Any:
        """Gymnasium's generator; None if `unwrapped` is a simulator that is no `gymnasium.Env`."""
        return getattr(self._environment.unwrapped, "np_random", None)

    def reset(self) -> dm_env.TimeStep:
        start, self._start = self._start, None
        seed = None if start is None else start.get("seed", self._seed)
        observation = self._begin(seed=seed)
        if start is not None and "seed" not in start:
            # The seed was for the environment's generators other than Gymnasium's. Their states are
            # unknown, and without a new seed they would repeat their earlier draws.
            flat.NumpyRandomness(self._random).set(start)
            observation = self._begin()
        self._over = False
        return dm_env.restart(observation)

    def _begin(self, **seed: Any) -> Any:
        try:
            result = self._environment.reset(**seed)
        except TypeError as error:
            if "argument 'seed'" not in str(error):
                raise
            raise self._old("reset() to take seed= and options=", "one without seed=") from error
        if not _holds(result, 2):
            raise self._old("reset() to return (observation, info)", _short(result))
        return result[0]

    def _old(self, expected: str, got: str) -> EnvironmentDataError:
        """Returns an error about an environment of the interface before 0.26."""
        name = type(self.unwrapped).__qualname__
        return EnvironmentDataError(
            f"{name}: expected {expected}, as in Gymnasium, got {got}; correct it"
        )

    def step(self, action: np.ndarray) -> dm_env.TimeStep:
        if self._over:
            return self.reset()
        result = self._environment.step(action)
        if not _holds(result, 5):
            expected = "step() to return (observation, reward, terminated, truncated, info)"
            raise self._old(expected, _short(result))
        observation, reward, terminated, truncated, _ = result
        self._over = bool(terminated or truncated)
        if terminated:
            return dm_env.termination(reward, observation)
        if truncated:
            return dm_env.truncation(reward, observation)
        return dm_env.transition(reward, observation)

    def observation_spec(self) -> Any:
        return self._observation_spec

    def action_spec(self) -> Any:
        return self._action_spec

    def reward_spec(self) -> specs.Array:
        low, high = _reward_range(self._environment)
        if np.isfinite(low) and np.isfinite(high):
            return specs.BoundedArray((), np.float64, low, high, name="reward")
        return specs.Array((), np.float64, name="reward")

    def get(self) -> dict[str, Any] | None:
        """Returns the state of Gymnasium's generator, or the seed for a first reset to come.

        None if the environment has no such generator.
        """
        if self._start is not None or self._random is None:
            return self._start
        return flat.NumpyRandomness(self._random).get()

    def set(self, state: Any) -> None:
        """Makes the next reset start from a state that `get` returned."""
        self._start = state

    def close(self) -> None:
        self._environment.close()


def _holds(result: Any, count: int) -> bool:
    return isinstance(result, tuple | list) and len(result) == count


def _short(result: Any) -> str:
    is_several = isinstance(result, tuple | list)
    return f"{len(result)} values" if is_several else f"one {type(result).__name__}"


def _reward_range(environment: Any) -> tuple[float, float]:
    """Returns the outermost `reward_range`, or infinities if a wrapper may change the rewards."""
    while not hasattr(environment, "reward_range"):
        if getattr(type(environment), "step", None) not in _KEEPS_REWARDS:
            return -np.inf, np.inf
        environment = environment.env
    found = environment.reward_range
    return (-np.inf, np.inf) if found is None else found


def action_spec(space: spaces.Space) -> Any:
    """Converts a space of actions to a spec of dm_env, of whole numbers if they are discrete."""
    if isinstance(space, spaces.Discrete | spaces.MultiDiscrete):
        size = space.n if isinstance(space, spaces.Discrete) else space.nvec
        last = np.asarray(space.start) + size - 1
        return specs.BoundedArray(space.shape, space.dtype, space.start, last, name="action")
    return _spec(space, "action", _ACTIONS)


def _spec(space: spaces.Space, name: str, expected: str) -> Any:
    """Converts a space to a spec of dm_env; `expected` describes it in error messages."""
    if isinstance(space, spaces.Box):
        return specs.BoundedArray(space.shape, space.dtype, space.low, space.high, name=name)
    if isinstance(space, spaces.MultiBinary):
        return specs.BoundedArray(space.shape, space.dtype, 0, 1, name=name)
    if isinstance(space, spaces.Dict):
        return {key: _spec(item, key, expected) for key, item in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        items = enumerate(space.spaces)
        return tuple(_spec(item, f"{name}_{index}", expected) for index, item in items)
    raise EnvironmentSpecError(
        f"expected {expected} (gymnasium.spaces.Box or MultiBinary), got {space} as {name!r}; "
        "convert it in a factory, for example to a one-hot vector"
    )


def _render(
    environment: gymnasium.Env, name: str, height: int, width: int | None, camera_id: int | str
) -> np.ndarray:
    """Renders Gymnasium's own image and resizes it; without a width, it keeps its aspect.

    Several images stand side by side.

    Raises:
      EnvironmentDataError: if it is not uint8 [height, width, 3].
      EnvironmentSpecError: if a camera other than the environment's is requested.
      RenderingUnavailableError: if Gymnasium needs a package that is not installed.
    """
    if camera_id not in (0, -1):
        raise EnvironmentSpecError(
            f"expected camera 0, because Gymnasium fixes the camera in make(), got {camera_id!r}; "
            "choose the camera in a factory"
        )
    try:
        with _own_context_current(environment):
            frame = environment.render()
    except gymnasium.error.DependencyNotInstalled as error:
        reason = " ".join(str(error).split())
        raise RenderingUnavailableError(f"expected what draws {name}, got: {reason}") from error
    if getattr(frame, "ndim", 3) == 4 or isinstance(frame, (list, tuple)):
        frame = np.concatenate(frame, axis=1)  # Views of several cameras.
    frame = flat.checked_frame(frame, name)
    if width is None:  # Encoders of films take multiples of 16.
        width = max(1, round(height * frame.shape[1] / frame.shape[0] / 16)) * 16
    return _resized(frame, height, width)


@contextlib.contextmanager
def _own_context_current(environment: gymnasium.Env) -> Iterator[None]:
    """Makes the OpenGL context of a MuJoCo environment current in this thread.

    Gymnasium does so only when it makes the viewer, with the first frame. If another viewer is then
    made or freed in the same thread, the context is no longer current, and frames are black.
    """
    module: Any = sys.modules.get("gymnasium.envs.mujoco.mujoco_rendering")
    # Without a renderer, too: some environments make it when they draw their first frame.
    try:
        kind = rendering.enable().kind
    except RenderingUnavailableError:
        if module is not None:
            raise
        yield  # Others, such as those of pygame, need no OpenGL.
        return
    with rendering.previous_restored(kind):
        viewer = getattr(module and _held(environment, module.MujocoRenderer), "viewer", None)
        if viewer is not None:
            viewer.make_context_current()
        yield


def _held(environment: Any, kind: Any) -> Any:
    """Returns an object that an environment, or one that it holds, has; None if there is none."""
    values = getattr(environment.unwrapped, "__dict__", {}).values()
    own = (value for value in values if isinstance(value, kind))
    inner = (_held(value, kind) for value in values if isinstance(value, gymnasium.Env))
    return next(filter(None, itertools.chain(own, inner)), None)


def _resized(frame: np.ndarray, height: int, width: int) -> np.ndarray:
    """Resizes an image: averages pixels to shrink it and repeats them to enlarge it."""
    resized = frame.astype(np.float32)
    for axis, size in enumerate((height, width)):
        starts = np.arange(size) * frame.shape[axis] // size
        counts = np.maximum(np.diff(starts, append=frame.shape[axis]), 1)
        resized = np.add.reduceat(resized, starts, axis) / np.expand_dims(
            counts, tuple(other for other in range(3) if other != axis)
        )
    return np.rint(resized).astype(np.uint8)
