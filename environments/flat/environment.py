"""The interface through which agents use environments."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import dm_env
import numpy as np
from dm_env import specs

from environments.errors import EnvironmentDataError, EnvironmentSpecError, of_user_code
from environments.flat import timesteps
from environments.flat.actions import make_actions


class Randomness(Protocol):
    """Reads and writes the random state of an environment."""

    def get(self) -> Any:
        """Returns the random state as plain data."""

    def set(self, state: Any) -> None:
        """Restores the random state.

        Args:
          state: return value of `get`.
        """


class NumpyRandomness(Randomness):
    """The random state of an environment that uses a single NumPy generator.

    It is dicts, lists, strings and numbers, which JSON preserves.
    """

    def __init__(self, random: np.random.RandomState | np.random.Generator):
        """Stores the generator."""
        self._random = random

    def get(self) -> Any:
        random = self._random
        if isinstance(random, np.random.RandomState):
            return _plain(random.get_state(legacy=False))
        return _plain(random.bit_generator.state)

    def set(self, state: Any) -> None:
        random = self._random
        if isinstance(random, np.random.RandomState):
            random.set_state(state)
        else:
            random.bit_generator.state = state


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    return value.tolist() if isinstance(value, (np.ndarray, np.generic)) else value


# (height, width, camera) -> pixels; a renderer that keeps its aspect also takes None for the width.
Render = Callable[[int, Any, int | str], np.ndarray]


def checked_frame(
    frame: Any, name: str, height: int | None = None, width: int | None = None
) -> np.ndarray:
    """Checks what an environment rendered, and returns a copy.

    Args:
      frame: what its `render` returned.
      name: name of the environment, for the error message.
      height: requested height; None if the environment chooses the size.
      width: requested width, likewise.

    Returns:
      A new array, [height, width, 3] uint8.

    Raises:
      EnvironmentDataError: if it is anything else, but the transparency of RGBA is left out.
        Nothing is cast: floats from 0 to 1 would turn black.
    """
    pixels = np.array(frame)
    if pixels.ndim == 3 and pixels.shape[2] == 4:
        pixels = pixels[..., :3].copy()
    sizes = [height or pixels.shape[0], width or pixels.shape[1], 3] if pixels.ndim == 3 else []
    if pixels.dtype == np.uint8 and pixels.size and list(pixels.shape) == sizes:
        return pixels
    expected = f"uint8 [{height or 'height'}, {width or 'width'}, 3]"
    got = "None" if frame is None else f"{pixels.dtype} {list(pixels.shape)}"
    remedy = (
        "scale it to 0..255 and to the requested size" if height else "convert it to RGB, 0..255"
    )
    raise EnvironmentDataError(
        f"{name}: frame: expected {expected} from its render(), got {got}; {remedy}"
    )


class Environment(dm_env.Environment):
    """A `dm_env.Environment` with flat float32 observations, and actions in the agents' form.

    An observation is a vector, [n] float32: the arrays of the wrapped environment, each in C order,
    in the order of its observation spec; a mask of discrete actions comes last (`MaskedArray`).
    `observation_fields` names them. Continuous actions are [m] float32, clipped to [-1, 1] and
    mapped linearly to the wrapped environment's range; discrete ones are int32 (`DiscreteActions`).
    Rewards and discounts are float32 scalars, and None at the first step of an episode. The
    discount of the last step is the wrapped environment's: 0 after a termination, 1 after a time
    limit.

    Every step returns a new observation array, which callers may keep.

    Attributes:
      actions: the mapping between the agents' actions and the wrapped environment's.
      drops_images: whether images among the observations are left out; otherwise they are refused.
      is_redrawn: whether frames come from a method `render`, its own or a wrapper's, and not from
        its physics.
      keeps_aspect: whether frames have the aspect of the environment's own unless a width is given.
    """

    is_redrawn = keeps_aspect = False
    _is_closed = False

    def __init__(
        self,
        environment: dm_env.Environment,
        *,
        action_spec: specs.BoundedArray | None = None,
        reward_spec: specs.Array | None = None,
        random: Randomness | None = None,
        render: Render | str = "",
        name: str = "",
        drops_images: bool = False,
    ):
        """Wraps an environment.

        Args:
          environment: environment with one bounded array of actions and a scalar reward.
          action_spec: overrides the environment's own spec.
          reward_spec: overrides the environment's own spec, for tighter bounds.
          random: reads and writes the random state. None to look for a NumPy generator in the
            environment's `random_state`, `task.random`, `random` and `_random`.
          render: maps (height, width, camera_id) to pixels, [height, width, 3] uint8. A string is
            the error message of an environment that cannot render.
          name: name of the environment, for error messages. Default: the name of its class.
          drops_images: whether to leave out images among the observations instead of refusing them.

        Raises:
          EnvironmentConstructionError: if the environment raises instead of returning a spec.
          EnvironmentSpecError: if actions, observations or rewards are not supported.
        """
        self._environment = environment
        self.drops_images = drops_images
        self._render = render or (
            f"expected an environment that renders, got {type(environment).__qualname__}, which "
            "cannot; give it a method render(height, width, camera_id)"
        )
        self._random = random or find_randomness(environment)
        self._name = name = name or type(environment).__qualname__
        with of_user_code(f"the specs of {name}", "be returned"):
            own_specs = (
                environment.observation_spec(),
                reward_spec or environment.reward_spec(),
                action_spec or environment.action_spec(),
            )
        self.actions = make_actions(own_specs[2], name)
        num_actions = getattr(self.actions.spec, "num_values", 0)
        self._timesteps = timesteps.TimeStepConverter(
            name, *own_specs[:2], drops_images, num_actions
        )
        self._begin, self._convert = self._timesteps.begin, self._timesteps.convert
        self._own_action = self.actions.own

    @property
    def wrapped(self) -> dm_env.Environment:
        """The wrapped environment."""
        return self._environment

    @property
    def own_action_spec(self) -> specs.BoundedArray:
        """The action spec of the wrapped environment, to which the agents' actions are mapped."""
        return self.actions.own_spec

    @property
    def observation_fields(self) -> dict[str, slice]:
        """Slices of the flat observation, by the name of the wrapped environment's array."""
        return {
            field.name: field.where
            if isinstance(field.where, slice)
            else slice(field.where, field.where + 1)
            for field in self._timesteps.fields
        }

    @property
    def observation_bounds(self) -> np.ndarray:
        """[2, n] float64: bounds in the wrapped environment's spec, which agents do not need."""
        return self._timesteps.observation_bounds

    @property
    def random_state(self) -> Any:
        """The random generator's state as plain data; None if the environment exposes none.

        After setting it, the next episode is the one that would have followed the saved state. It
        does not contain the simulator's state, so an episode in progress is not saved.
        """
        return None if self._random is None else self._random.get()

    @random_state.setter
    def random_state(self, state: Any) -> None:
        if self._random is not None:
            self._random.set(state)
        elif state is not None:
            raise ValueError(
                f"expected no random state for {type(self._environment).__qualname__}, which "
                "exposes none, got one; use the environment with which it was saved"
            )

    def limit_steps(self, limit: int) -> None:
        """Truncates episodes after a number of steps, if they have not ended by then.

        Args:
          limit: at least 1.
        """
        self._timesteps.limit = min(limit, self._timesteps.limit)

    def start(self) -> dict[str, float]:
        """Returns the numbers of the first observation of the newest episode, by name.

        Those of an array of several numbers are `name[0]`, `name[1]` and so on.
        """
        return {
            f"{name}[{i}]" if part.stop - part.start > 1 else name: float(value)
            for name, part in self.observation_fields.items()
            for i, value in enumerate(self._first_observation[part])
        }

    def reset(self) -> dm_env.TimeStep:
        timestep = self._begin(self._environment.reset())
        self._first_observation = timestep.observation
        return timestep

    def step(self, action: np.ndarray) -> dm_env.TimeStep:
        """Takes an action; starts a new episode after the last step of one.

        Args:
          action: [m] float32 in [-1, 1], or the number of a discrete action.

        Raises:
          ValueError: if the action has another shape, or there is no such action.
          EnvironmentActionError: if the action holds NaN.
          EnvironmentDataError: if the wrapped environment violates its specs.
        """
        if self._timesteps.is_truncated:
            return self.reset()
        return self._convert(self._environment.step(self._own_action(action)))

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """Height, width and channels of the only image among the environment's own observations.

        Raises:
          EnvironmentSpecError: if there is none, or there are several.
        """
        return self._timesteps.image_shape

    def image(self) -> np.ndarray:
        """Returns the newest one, [height, width, channels] uint8, as a new array."""
        return self._timesteps.image()

    def observation_spec(self) -> specs.Array:
        return self._timesteps.observation_spec

    def action_spec(self) -> specs.BoundedArray:
        return self.actions.spec

    def reward_spec(self) -> specs.Array:
        return self._timesteps.reward_spec

    def discount_spec(self) -> specs.BoundedArray:
        """Returns the spec of the discount, a float32 scalar in [0, 1]."""
        return specs.BoundedArray((), np.float32, 0.0, 1.0, name="discount")

    def render(
        self, height: int = 240, width: int | None = None, camera_id: int | str = 0
    ) -> np.ndarray:
        """Renders the current state. The first call loads OpenGL.

        Args:
          height: height of the image in pixels.
          width: width of the image in pixels. Default: that of the environment's own aspect if it
            draws frames of a fixed size, otherwise 4/3 of the height.
          camera_id: index or name of a camera.

        Returns:
          A new array, [height, width, 3] uint8.

        Raises:
          RenderingUnavailableError: if OpenGL is unavailable on this machine.
          EnvironmentSpecError: if the environment cannot render.
          EnvironmentDataError: if the environment returns anything else.
        """
        if width is None and not self.keeps_aspect:
            width = 4 * height // 3
        return self.renderer()(height, width, camera_id)

    def renderer(self) -> Render:
        """Returns the function that `render` calls, which checks what the environment renders.

        Raises:
          EnvironmentSpecError: if the environment cannot render.
        """
        if isinstance(self._render, str):
            raise EnvironmentSpecError(self._render)
        draw, name = self._render, self._name

        def render(height: int, width: int | None, camera_id: int | str) -> np.ndarray:
            return checked_frame(draw(height, width, camera_id), name, height, width)

        return render

    def close(self) -> None:
        """Closes the wrapped environment. Later calls do nothing."""
        if not self._is_closed:
            self._is_closed = True
            self._environment.close()


def own_render(environment: dm_env.Environment) -> Render | str:
    """Returns the method `render` of a user's environment.

    Returns:
      The method; "" if there is none that takes height, width and camera_id.
    """
    own: Any = getattr(environment, "render", None)
    try:
        inspect.signature(own).bind(height=1, width=1, camera_id=0)
    except (TypeError, ValueError):
        return ""
    return lambda height, width, camera_id: own(height=height, width=width, camera_id=camera_id)


def find_randomness(environment: Any) -> Randomness | None:
    """Finds the NumPy generator of an environment.

    Args:
      environment: searched for it in `random_state`, `task.random`, `random` and `_random`.

    Returns:
      The random state; None if there is none.
    """
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
