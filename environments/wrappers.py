"""Puts wrappers around any environment: a user's own, a time limit, and repeated actions."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import dm_env
import numpy as np
from dm_env import specs

from environments import flat
from environments.errors import (
    EnvironmentSpecError,
    import_function,
    of_user_code,
)

Wrapper = Callable[..., dm_env.Environment]


class WrappedEnvironment(flat.Environment):
    """An environment with wrappers around it.

    It renders as before, unless the class of `outer` has a method `render` of its own that takes
    height, width and camera_id. Its random state is that of `inner`, or of both if `outer` has a
    NumPy generator.
    """

    def __init__(self, outer: dm_env.Environment, inner: flat.Environment, name: str):
        """Wraps `outer` as `flat.Environment` does.

        Args:
          outer: the wrapper around `inner`.
          inner: the wrapped environment.
          name: the name of the environment, for error messages.

        Raises:
          EnvironmentSpecError: if the specs of `outer` are not supported.
        """
        random = _RandomnessOf(inner, flat.find_randomness(outer))
        # Looks at the class: many wrapper objects forward the inner environment's attributes.
        is_own = getattr(type(outer), "render", flat.Environment.render)
        own = "" if is_own is flat.Environment.render else flat.own_render(outer)
        super().__init__(
            outer,
            random=random,
            render=own or _render_of(inner),
            name=name,
            drops_images=inner.drops_images,
        )
        if flat.mask_size(inner.observation_spec()) != flat.mask_size(self.observation_spec()):
            raise EnvironmentSpecError(
                "expected a wrapper that keeps the mask of actions at the end of an observation, "
                f"got {self.observation_spec()} from {name}; return a spec of "
                "environments.flat.MaskedArray"
            )
        self._inner = inner
        self.is_redrawn = bool(own) or inner.is_redrawn
        self.keeps_aspect = not own and inner.keeps_aspect

    @property
    def wrapped(self) -> dm_env.Environment:
        """The innermost environment, which has the physics, if there is any."""
        return self._inner.wrapped

    @property
    def own_action_spec(self) -> specs.BoundedArray:
        """The action range of the innermost environment, unless a wrapper has changed the range."""
        same = self._environment.action_spec() == self._inner.action_spec()
        return self._inner.own_action_spec if same else super().own_action_spec

    @property
    def observation_fields(self) -> dict[str, slice]:
        """See `flat.Environment`; those of `inner` unless a wrapper has changed the spec."""
        same = self._environment.observation_spec() == self._inner.observation_spec()
        return self._inner.observation_fields if same else super().observation_fields

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """See `flat.Environment`; that of `inner`, as wrappers see no images."""
        return self._inner.image_shape

    def image(self) -> np.ndarray:
        """See `flat.Environment`."""
        return self._inner.image()

    def close(self) -> None:
        """Closes the wrapper and the environment, because many wrappers have no `close`."""
        try:
            super().close()
        finally:
            self._inner.close()


class RepeatedActions(dm_env.Environment):
    """An environment in which each action is repeated, or until the episode ends.

    Discounts are multiplied over these steps, and rewards are summed, each weighted by the
    discounts of the steps before it, as in a return over single steps. Both are float32 scalars,
    and None at the first step of an episode.
    """

    def __init__(self, environment: flat.Environment, times: int):
        """Wraps an environment.

        Args:
          environment: the environment.
          times: environment steps for each action.

        Raises:
          EnvironmentSpecError: if `times` is less than 1, or more with a mask of actions.
        """
        if times < 1:
            raise EnvironmentSpecError(f"expected an action repeat of at least 1, got {times}")
        if times > 1 and flat.mask_size(environment.observation_spec()):
            raise EnvironmentSpecError(
                "expected --action-repeat 1 with a mask of actions, which each step may change, "
                f"got {times}"
            )
        self._environment, self._times = environment, times

    def reset(self) -> dm_env.TimeStep:
        return self._environment.reset()

    def step(self, action: np.ndarray) -> dm_env.TimeStep:
        """Repeats an action; starts a new episode after the last step of one.

        Args:
          action: see `flat.Environment.step`.
        """
        reward, discount = 0.0, 1.0
        for _ in range(self._times):
            timestep = self._environment.step(action)
            if timestep.step_type is dm_env.StepType.FIRST:
                return timestep
            reward += discount * float(timestep.reward)
            discount *= float(timestep.discount)
            if timestep.step_type is dm_env.StepType.LAST:
                break
        return timestep._replace(reward=np.float32(reward), discount=np.float32(discount))

    def observation_spec(self) -> specs.Array:
        return self._environment.observation_spec()

    def action_spec(self) -> specs.BoundedArray:
        return self._environment.action_spec()

    def reward_spec(self) -> specs.Array:
        """Returns the spec of a sum of one to `times` rewards."""
        spec = self._environment.reward_spec()
        if not isinstance(spec, specs.BoundedArray):
            return spec
        low, high = float(spec.minimum), float(spec.maximum)
        most = self._times
        return spec.replace(minimum=min(low, low * most), maximum=max(high, high * most))


class HiddenVelocities(dm_env.Environment):
    """An environment without the parts of its observations whose names contain "veloc"."""

    def __init__(self, environment: flat.Environment):
        """Wraps an environment.

        Args:
          environment: the environment.

        Raises:
          EnvironmentSpecError: if no part has such a name, or all have.
        """
        fields, self._environment = environment.observation_fields, environment
        self._shown = {k: part for k, part in fields.items() if "veloc" not in k}
        if not 0 < len(self._shown) < len(fields):
            raise EnvironmentSpecError(
                f"expected velocities and other parts in an observation, got {', '.join(fields)}; "
                "leave hide_velocities out"
            )

    def reset(self) -> dm_env.TimeStep:
        return self._hidden(self._environment.reset())

    def step(self, action: np.ndarray) -> dm_env.TimeStep:
        return self._hidden(self._environment.step(action))

    def observation_spec(self) -> Mapping[str, specs.Array]:
        sizes = {name: part.stop - part.start for name, part in self._shown.items()}
        return {name: specs.Array((size,), np.float32, name) for name, size in sizes.items()}

    def action_spec(self) -> specs.BoundedArray:
        return self._environment.action_spec()

    def reward_spec(self) -> specs.Array:
        return self._environment.reward_spec()

    def _hidden(self, timestep: dm_env.TimeStep) -> dm_env.TimeStep:
        parts = {name: timestep.observation[part] for name, part in self._shown.items()}
        return timestep._replace(observation=parts)


def hide_velocities(environment: flat.Environment) -> HiddenVelocities:
    """Hides velocities, for agents with a memory: `--wrap environments.wrappers:hide_velocities`.

    Args:
      environment: the environment.
    """
    return HiddenVelocities(environment)


class _RandomnessOf:
    """The random state of an environment, and of the wrapper around it, if it has one."""

    def __init__(self, inner: flat.Environment, outer: flat.Randomness | None):
        self._inner, self._outer = inner, outer

    def get(self) -> Any:
        inner = self._inner.random_state
        return inner if self._outer is None else {"inner": inner, "outer": self._outer.get()}

    def set(self, state: Any) -> None:
        if self._outer is not None:
            self._outer.set(state["outer"])
            state = state["inner"]
        self._inner.random_state = state


def innermost(state: Any) -> Any:
    """Returns the part of a random state that belongs to the environment within all wrappers.

    Args:
      state: the `random_state` of an environment, with wrappers or without.

    Returns:
      Plain data; None if the environment exposes no random state.
    """
    while isinstance(state, Mapping) and "outer" in state:
        state = state["inner"]
    return state


def wrap(
    environment: flat.Environment,
    wrappers: Sequence[str],
    time_limit: int | None,
    name: str,
    seed: int,
) -> flat.Environment:
    """Puts wrappers around an environment, the first one innermost, and then the time limit.

    Args:
      environment: the environment as agents see it; the first wrapper receives it.
      wrappers: import paths `package.module:function`; each function takes a `dm_env.Environment`
        and returns one. If it accepts `seed=`, it gets its own seed.
      time_limit: maximum number of steps of an episode; None to keep only the environment's own
        limit.
      name: the name of the environment, for error messages.
      seed: seed of the environment, from which the wrappers' seeds are derived. They differ from
        it, so that a wrapper does not draw the same numbers as the environment.

    Raises:
      EnvironmentNameError: if there is no such function.
      EnvironmentConstructionError: if a wrapper raises.
      EnvironmentSpecError: if a wrapper returns anything but an environment, or the limit is less
        than 1.
    """
    for index, path in enumerate(wrappers):
        wrapper = import_function(path, "expected a wrapper 'package.module:function'")
        own_seed = int(np.random.SeedSequence([seed, index]).generate_state(1)[0])
        with of_user_code(f"the wrapper {path}", "return an environment"):
            seeds = {"seed": own_seed} if _accepts_seed(wrapper) else {}
            outer = wrapper(environment, **seeds)
        if not isinstance(outer, dm_env.Environment):
            raise EnvironmentSpecError(
                f"expected {path} to return a dm_env.Environment, got {type(outer).__name__}; "
                "return the wrapped environment"
            )
        environment = WrappedEnvironment(outer, environment, f"{name} in {path}")
    if time_limit is not None:
        if time_limit < 1:
            raise EnvironmentSpecError(f"expected a time limit of at least 1, got {time_limit}")
        environment.limit_steps(time_limit)
    return environment


def _accepts_seed(wrapper: Wrapper) -> bool:
    parameter = inspect.signature(wrapper).parameters.get("seed")
    by_name = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return parameter is not None and parameter.kind in by_name


def _render_of(inner: flat.Environment) -> flat.Render | str:
    try:
        return inner.renderer()
    except EnvironmentSpecError as error:
        return str(error)
