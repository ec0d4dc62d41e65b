"""The one form in which agents see an environment: a float32 vector in, a float32 vector out."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Protocol

import dm_env
import numpy as np
from dm_env import specs

from environments import randomness, timesteps
from environments.errors import EnvironmentSpecError

# MuJoCo's largest number: dm_control writes it where an actuator has no limits.
NO_LIMIT = 1e10


class Randomness(Protocol):
    """Reads and writes an environment's random state as plain data."""

    def get(self) -> Any: ...

    def set(self, state: Any) -> None: ...


class NumpyRandomness:
    """The random state of an environment that draws everything from one NumPy generator."""

    def __init__(self, random: randomness.NumpyRandom):
        self._random = random

    def get(self) -> dict[str, Any]:
        return randomness.snapshot(self._random)

    def set(self, state: Any) -> None:
        randomness.restore(self._random, state)


Render = Callable[[int, int, int | str], np.ndarray]


class Environment(dm_env.Environment):
    """A `dm_env.Environment` in the agents' form.

    Observations are one float32 vector [n]: the arrays of the wrapped environment, each in C order,
    in the order of its observation spec (for dm_control the order in which the task writes them;
    `observation_fields` names them). Actions are float32 [m] in [-1, 1]; they are clipped to that
    range and mapped linearly to the real one. Rewards and discounts are float32 scalars, None at
    the first step of an episode as dm_env has it. The last step has discount 0 after a termination,
    and keeps the environment's (1) when the time was up.

    Every step returns a fresh observation array, so that callers may keep it.
    """

    def __init__(
        self,
        environment: dm_env.Environment,
        *,
        action_spec: specs.BoundedArray | None = None,
        reward_spec: specs.Array | None = None,
        random: Randomness | None = None,
        render: Render | str = "",
        name: str = "",
    ):
        """Wraps `environment`.

        Args:
          environment: any environment with one bounded continuous action and a scalar reward.
          action_spec: the real action range, where the environment does not declare it.
          reward_spec: bounds of the reward, where they are known better than the environment
            declares them.
          random: reads and writes the random state; found by itself in environments that keep a
            NumPy generator as `random_state`, `task.random`, `random` or `_random`.
          render: `(height, width, camera_id)` to pixels, uint8 [height, width, 3]; or the line
            that says why there are none.
          name: of the environment, for error messages; its class by default.

        Raises:
          EnvironmentSpecError: if actions, observations or rewards do not fit.
        """
        self._environment = environment
        self._render = render or (
            f"expected an environment that renders, got {type(environment).__qualname__}, which "
            "cannot"
        )
        self._random = random or _find_randomness(environment)
        self._timesteps = timesteps.TimeStepConverter(
            name or type(environment).__qualname__,
            environment.observation_spec(),
            reward_spec or environment.reward_spec(),
        )
        self._convert = self._timesteps.convert
        self._set_action_range(action_spec or environment.action_spec())

    def _set_action_range(self, real: Any) -> None:
        _check_action_spec(real)
        self._real_shape, self._real_dtype = real.shape, real.dtype
        size = math.prod(real.shape)
        low = np.broadcast_to(real.minimum, real.shape).astype(np.float64).reshape(size)
        high = np.broadcast_to(real.maximum, real.shape).astype(np.float64).reshape(size)
        self._low, self._high = low, high
        self._scale, self._offset = (high - low) / 2, (high + low) / 2
        # Most suite tasks already use [-1, 1]: then only the clipping is left.
        self._is_unit = bool(np.all(low == -1) and np.all(high == 1))
        self._is_plain = real.shape == (size,) and real.dtype == np.float64
        self._action_shape = (size,)
        self._action_spec = specs.BoundedArray((size,), np.float32, -1.0, 1.0, name="action")

    @property
    def wrapped(self) -> dm_env.Environment:
        """The environment underneath."""
        return self._environment

    @property
    def observation_fields(self) -> dict[str, slice]:
        """Where each named array of the wrapped environment lies in the flat observation."""
        return {
            field.name: field.where
            if isinstance(field.where, slice)
            else slice(field.where, field.where + 1)
            for field in self._timesteps.fields
        }

    @property
    def random_state(self) -> Any:
        """The random generator's state as plain data (JSON, pickle); None where there is none.

        Setting it makes the next episode start where the saved stream stood. It holds no simulator
        state: an episode in progress is not saved.
        """
        return None if self._random is None else self._random.get()

    @random_state.setter
    def random_state(self, state: Any) -> None:
        if self._random is not None:
            self._random.set(state)
        elif state is not None:
            raise ValueError(
                f"expected no random state for {type(self._environment).__qualname__}, which shows "
                "none, got one"
            )

    def reset(self) -> dm_env.TimeStep:
        return self._convert(self._environment.reset())

    def step(self, action: np.ndarray) -> dm_env.TimeStep:
        """Takes a float32 [m] action in [-1, 1]. After a last step it starts a new episode."""
        return self._convert(self._environment.step(self._real_action(action)))

    def _real_action(self, action: np.ndarray) -> np.ndarray:
        if getattr(action, "shape", None) != self._action_shape:
            raise ValueError(
                f"expected an action array of shape {self._action_shape}, got "
                f"{type(action).__name__} of shape {np.shape(action)}"
            )
        # The bounds are float64 arrays, so the result is float64 and no scalar has to be converted.
        real = action if self._is_unit else action * self._scale + self._offset
        real = np.minimum(np.maximum(real, self._low), self._high)
        return real if self._is_plain else real.astype(self._real_dtype).reshape(self._real_shape)

    def observation_spec(self) -> specs.Array:
        return specs.Array((self._timesteps.size,), np.float32, name="observation")

    def action_spec(self) -> specs.BoundedArray:
        return self._action_spec

    def reward_spec(self) -> specs.Array:
        return self._timesteps.reward_spec

    def discount_spec(self) -> specs.BoundedArray:
        return specs.BoundedArray((), np.float32, 0.0, 1.0, name="discount")

    def render(self, height: int = 240, width: int = 320, camera_id: int | str = 0) -> np.ndarray:
        """A picture of the present state, uint8 [height, width, 3]; the first one loads OpenGL.

        Raises:
          RenderingUnavailableError: if nothing on this machine draws without a screen.
          EnvironmentSpecError: if the environment has no pictures.
        """
        return self.renderer()(height, width, camera_id)

    def renderer(self) -> Render:
        """What `render` calls.

        Raises:
          EnvironmentSpecError: if the environment has no pictures.
        """
        if isinstance(self._render, str):
            raise EnvironmentSpecError(self._render)
        return self._render

    def close(self) -> None:
        self._environment.close()


def _check_action_spec(spec: Any) -> None:
    wanted = "expected continuous actions with finite bounds"
    if isinstance(spec, specs.DiscreteArray):
        raise EnvironmentSpecError(f"{wanted}, got {spec.num_values} discrete actions")
    if not isinstance(spec, specs.Array):
        raise EnvironmentSpecError(f"{wanted} in one array, got {type(spec).__name__} of arrays")
    if spec.dtype.kind != "f":
        raise EnvironmentSpecError(f"{wanted}, got actions of dtype {spec.dtype}")
    if math.prod(spec.shape) == 0:
        raise EnvironmentSpecError(f"{wanted}, got an action of shape {spec.shape}")
    if not isinstance(spec, specs.BoundedArray):
        raise EnvironmentSpecError(f"{wanted}, got no bounds")
    bounds = np.concatenate([spec.minimum.ravel(), spec.maximum.ravel()]).astype(np.float64)
    if not np.all(np.isfinite(bounds)) or np.any(np.abs(bounds) >= NO_LIMIT):
        raise EnvironmentSpecError(
            f"{wanted}, got the range {spec.minimum.tolist()} to {spec.maximum.tolist()}; "
            "bound it in a factory"
        )


def _find_randomness(environment: Any) -> Randomness | None:
    task = getattr(environment, "task", None)
    for owner, name in (
        (environment, "random_state"),
        (task, "random"),
        (environment, "random"),
        (environment, "_random"),
    ):
        random = getattr(owner, name, None)
        if isinstance(random, (np.random.RandomState, np.random.Generator)):
            return NumpyRandomness(random)
    return None
