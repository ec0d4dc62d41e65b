"""Makes environments by name."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from environments.errors import (
    EnvironmentNameError,
    EnvironmentSpecError,
    import_function,
    nearest,
    of_user_code,
)

if TYPE_CHECKING:
    from environments import flat
    from environments.flat import Environment
    from environments.pixels.config import PixelConfig
    from environments.pixels.environment import PixelEnvironment

_EXPECTED = (
    "expected a task 'domain:task', 'gym:ID', 'dm:manipulation/TASK', 'dm:locomotion/TASK' or a "
    "factory 'package.module:function'"
)
# From PlaNet (Hafner et al. 2019, arXiv:1811.04551); most work on pixels has used them since.
_ACTION_REPEATS_FROM_PIXELS = {"cartpole": 8, "ball_in_cup": 4, "cheetah": 4, "reacher": 4}
# By the package of an environment that is neither of dm_env nor of Gymnasium.
_REMEDIES = {
    "gym": "return shimmy.GymV26CompatibilityV0(env=...), before 0.26 GymV21CompatibilityV0",
    "pettingzoo": "return a gymnasium.Env of one agent, in which the others act by a policy of "
    "yours",
}


def names() -> tuple[str, ...]:
    """Returns all dm_control suite tasks as 'domain:task', sorted. Imports dm_control."""
    from environments import suite

    return suite.names()


def make(
    name: str,
    seed: int,
    pixels: PixelConfig | None = None,
    wrap: Sequence[str] = (),
    time_limit: int | None = None,
    action_repeat: int | None = None,
) -> Environment | PixelEnvironment:
    """Makes an environment. The same seed gives the same episodes.

    Args:
      name: a task of the dm_control suite, `cartpole:swingup`; a Gymnasium ID, `gym:Pendulum-v1`,
        with a JSON object of options for its constructor, `gym:Pendulum-v1{"g": 9.81}`; another
        task of dm_control, `dm:manipulation/reach_site_features`; or a factory,
        `package.module:function`, which is called with `seed=seed` and returns a
        `dm_env.Environment` or a `gymnasium.Env`.
      seed: seed of the environment, from 0 to 2**32 - 1.
      pixels: configuration of the frames, [height, width, 3] uint8, to observe instead of the
        state; None to observe the state.
      wrap: import paths of wrappers, see `environments.wrappers`.
      time_limit: environment steps after which an episode is truncated, if it has not ended; None
        to keep only the environment's own limit.
      action_repeat: environment steps for each action (`environments.wrappers.RepeatedActions`).
        Default: `default_action_repeat`.

    Returns:
      The environment.

    Raises:
      EnvironmentNameError: if there is no environment of that name.
      EnvironmentConstructionError: if the factory, the constructor of a Gymnasium ID, or a wrapper
        raises; its error is the cause.
      EnvironmentSpecError: if the actions are not in one bounded array, or the environment cannot
        render frames.
      RenderingUnavailableError: if frames are requested and OpenGL is unavailable on this machine.
    """
    environment = _make(name, seed, drops_images=pixels is not None)
    return surround(environment, name, seed, pixels, wrap, time_limit, action_repeat)


def default_action_repeat(name: str, pixels: PixelConfig | None) -> int:
    """Returns the environment steps for each action: 1 from state, PlaNet's from pixels.

    From pixels these are 8 for cartpole, 4 for ball_in_cup, cheetah and reacher, 2 for all others.

    Args:
      name: name of the environment, whose domain decides.
      pixels: see `make`.
    """
    if pixels is None:
        return 1
    return _ACTION_REPEATS_FROM_PIXELS.get(name.partition(":")[0], 2)


def surround(
    environment: Environment,
    name: str,
    seed: int,
    pixels: PixelConfig | None,
    wrap: Sequence[str],
    time_limit: int | None,
    action_repeat: int | None,
) -> Environment | PixelEnvironment:
    """Adds wrappers, a time limit, repeats and a frame renderer to an environment, as requested.

    Args:
      environment: an environment that drops images if `pixels` is given.
      name: its name.
      seed: seed from which the wrappers' seeds are derived.
      pixels: see `make`.
      wrap: see `make`.
      time_limit: see `make`.
      action_repeat: see `make`.
    """
    repeats = default_action_repeat(name, pixels) if action_repeat is None else action_repeat
    if wrap or time_limit is not None:
        from environments import wrappers

        environment = wrappers.wrap(environment, wrap, time_limit, name, seed)
    if pixels is not None:
        from environments.pixels.environment import PixelEnvironment

        return PixelEnvironment(environment, pixels, repeats)
    if repeats == 1:
        return environment
    from environments import wrappers

    repeated = wrappers.RepeatedActions(environment, repeats)
    return wrappers.WrappedEnvironment(repeated, environment, name)


def imported_module(name: str) -> str:
    """Returns the module that the name of an environment makes `make` import; "" for a library's.

    Args:
      name: see `make`; or the import path of a wrapper.
    """
    from environments import suite

    left, _, right = name.partition(":")
    if left == "gym":
        return right.partition("{")[0].rpartition(":")[0]
    is_of_library = left == "dm" or ("." not in left and name in suite.names())
    return "" if is_of_library else left


def _make(name: str, seed: int, drops_images: bool) -> Environment:
    if not 0 <= seed < 2**32:
        raise EnvironmentSpecError(f"expected an environment seed from 0 to 2**32 - 1, got {seed}")
    from environments import suite
    from environments.libraries import by_name
    from environments.pixels import rendering

    rendering.prepare()  # On every path: a library's module may draw by itself, like a user's.
    left, _, right = name.partition(":")
    if left == "gym" and right:
        return adapt(by_name.make_gymnasium(right), seed, name, drops_images)
    if left == "dm" and right:
        return adapt(by_name.make_dm_control(right, seed), seed, name, drops_images)
    # The suite's domains have no dot; a factory's process need not import them all.
    if "." not in left and name in suite.names():
        return suite.make(left, right, seed)
    return adapt(_call_factory(name, seed), seed, name, drops_images)


def adapt(
    environment: Any, seed: int = 0, name: str = "", drops_images: bool = False
) -> Environment:
    """Adapts an environment to the interface of environments from `make`.

    Args:
      environment: a `dm_env.Environment` or a `gymnasium.Env` with one bounded array of actions.
      seed: seed for the first reset of a `gymnasium.Env`. A `dm_env.Environment` must be seeded
        when it is built.
      name: name of the environment, for error messages. Default: the name of its class.
      drops_images: whether to leave out images among the observations instead of refusing them;
        for a `PixelEnvironment`.

    Returns:
      The environment.

    Raises:
      EnvironmentSpecError: if its actions or observations are not supported, or it is neither kind
        of environment.
    """
    import dm_env

    from environments import flat

    if isinstance(environment, flat.Environment):
        return environment
    if isinstance(environment, dm_env.Environment):
        own = flat.own_render(environment)
        adapted = flat.Environment(
            environment,
            render=own or _physics_render(environment),
            name=name,
            drops_images=drops_images,
        )
        adapted.is_redrawn = bool(own)
        return adapted
    # Compares module names instead of classes, to avoid importing gymnasium unnecessarily.
    if any(base.__module__.split(".")[0] == "gymnasium" for base in type(environment).__mro__):
        from environments.libraries import gymnasium_adapter

        return gymnasium_adapter.adapt(environment, seed, name, drops_images)
    kind = type(environment)
    remedy = _REMEDIES.get(kind.__module__.split(".")[0], "subclass one of them")
    raise EnvironmentSpecError(
        f"expected a dm_env.Environment or a gymnasium.Env, got {kind.__module__}."
        f"{kind.__qualname__}; {remedy}"
    )


def _physics_render(environment: Any) -> flat.Render | str:
    """Returns the renderer of an environment's physics; "" if it has none."""
    from environments.pixels import camera

    if not camera.is_physics(getattr(environment, "physics", None)):
        return ""
    # Looked up for each frame, because some environments make a new physics for each episode.
    return camera.Camera(lambda: environment.physics)


def _call_factory(name: str, seed: int) -> Any:
    """Imports and calls a factory."""
    try:
        factory = import_function(name, _EXPECTED)
    except EnvironmentNameError as error:
        task = nearest(name.replace(" ", ":").replace("-", ":"), names())
        raise EnvironmentNameError(f"{error}{task}; 'rl-replicator envs' lists the tasks") from None
    try:
        inspect.signature(factory).bind(seed=seed)
    except (TypeError, ValueError) as error:  # Functions in C may have no signature.
        raise EnvironmentNameError(
            f"expected {name}, as the factory of an environment, to be callable with seed=...: "
            f"{error}; give it that parameter"
        ) from None
    with of_user_code(f"the factory {name}", "return an environment"):
        return factory(seed=seed)
