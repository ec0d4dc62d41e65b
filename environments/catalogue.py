"""Makes environments by name."""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, overload

from environments.errors import (
    EnvironmentNameError,
    EnvironmentSpecError,
    file_hint,
    import_user_module,
    lacks,
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
_LIBRARIES = ("gym", "dm")
_SEE_LIST = "'rl-replicator envs' lists the tasks"


def names() -> tuple[str, ...]:
    """Returns all dm_control suite tasks as 'domain:task', sorted. Imports dm_control."""
    from environments import suite

    return suite.names()


@overload
def make(
    name: str,
    seed: int,
    pixels: None = None,
    wrap: Sequence[str] = (),
    time_limit: int | None = None,
) -> Environment: ...


@overload
def make(
    name: str,
    seed: int,
    pixels: PixelConfig,
    wrap: Sequence[str] = (),
    time_limit: int | None = None,
) -> PixelEnvironment: ...


@overload
def make(
    name: str,
    seed: int,
    pixels: PixelConfig | None,
    wrap: Sequence[str] = (),
    time_limit: int | None = None,
) -> Environment | PixelEnvironment: ...


def make(
    name: str,
    seed: int,
    pixels: PixelConfig | None = None,
    wrap: Sequence[str] = (),
    time_limit: int | None = None,
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

    Returns:
      The environment.

    Raises:
      EnvironmentNameError: if there is no environment of that name.
      EnvironmentConstructionError: if the factory, the constructor of a Gymnasium ID, or a wrapper
        raises; its error is the cause.
      EnvironmentSpecError: if the actions are not continuous and bounded, or the environment cannot
        render frames.
      RenderingUnavailableError: if frames are requested and OpenGL is unavailable on this machine.
    """
    environment = _make(name, seed, drops_images=pixels is not None)
    return surround(environment, name, seed, pixels, wrap, time_limit)


def surround(
    environment: Environment,
    name: str,
    seed: int,
    pixels: PixelConfig | None,
    wrap: Sequence[str],
    time_limit: int | None,
) -> Environment | PixelEnvironment:
    """Adds wrappers, a time limit and a frame renderer to an environment, as requested.

    Args:
      environment: an environment that drops images if `pixels` is given.
      name: its name, see `PixelConfig.repeats`.
      seed: seed from which the wrappers' seeds are derived.
      pixels: see `make`.
      wrap: see `make`.
      time_limit: see `make`.
    """
    if wrap or time_limit is not None:
        from environments import wrappers

        environment = wrappers.wrap(environment, wrap, time_limit, name, seed)
    if pixels is None:
        return environment
    from environments.pixels.environment import PixelEnvironment

    return PixelEnvironment(environment, pixels, name)


def _make(name: str, seed: int, drops_images: bool) -> Environment:
    if not 0 <= seed < 2**32:
        raise EnvironmentSpecError(f"expected an environment seed from 0 to 2**32 - 1, got {seed}")
    from environments.pixels import rendering

    rendering.prepare()  # On every path: a library's module may draw by itself, like a user's.
    left, colon, right = name.partition(":")
    if left in _LIBRARIES and right:
        from environments.libraries import by_name

        if left == "gym":
            return adapt(by_name.make_gymnasium(right), seed, name, drops_images)
        return adapt(by_name.make_dm_control(right, seed), seed, name, drops_images)
    if not (colon and left and right) or ":" in right:
        raise EnvironmentNameError(f"{_EXPECTED}, got {name!r}; {_nearest(name)}{_SEE_LIST}")
    from environments import suite

    if name in suite.names():
        return suite.make(left, right, seed)
    if left in suite.domains():
        raise EnvironmentNameError(f"{_EXPECTED}, got {name!r}; {_nearest(name)}{_SEE_LIST}")
    if not _is_module(left):
        raise EnvironmentNameError(
            f"{_EXPECTED}, got {name!r}; {_nearest(name)}no domain and no module {left!r} was "
            f"found in the working directory or on PYTHONPATH{file_hint(left)}; {_SEE_LIST}"
        )
    return adapt(_call_factory(name, seed), seed, name, drops_images)


def adapt(
    environment: Any, seed: int = 0, name: str = "", drops_images: bool = False
) -> Environment:
    """Adapts a continuous-control environment to the interface of environments from `make`.

    Args:
      environment: a `dm_env.Environment` or a `gymnasium.Env` with bounded continuous actions.
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
    raise EnvironmentSpecError(
        f"expected a dm_env.Environment or a gymnasium.Env, got {type(environment).__module__}."
        f"{type(environment).__qualname__}; subclass one of them"
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
    path, _, attribute = name.partition(":")
    module = import_user_module(path)
    factory = getattr(module, attribute, None)
    if not callable(factory):
        near = difflib.get_close_matches(
            attribute, [n for n in vars(module) if not n.startswith("_")], n=1
        )
        hint = f"; did you mean {path}:{near[0]}?" if near else ""
        raise EnvironmentNameError(f"expected a function in module {path}, got {attribute!r}{hint}")
    try:
        inspect.signature(factory).bind(seed=seed)
    except TypeError as error:
        raise EnvironmentNameError(
            f"expected the factory {name} to be callable as {attribute}(seed=...), got: {error}"
        ) from None
    with of_user_code(f"the factory {name}", "return an environment"):
        return factory(seed=seed)


def _is_module(path: str) -> bool:
    """Returns whether a module exists. Imports its parent packages.

    Raises:
      EnvironmentConstructionError: if one of them raises.
    """
    if path in sys.modules:
        return True
    if not all(part.isidentifier() for part in path.split(".")):
        return False
    with of_user_code(f"the package of {path}", "be imported"):
        try:
            return importlib.util.find_spec(path) is not None
        except ModuleNotFoundError as error:
            if not lacks(path, error):
                raise
            return False


def _nearest(name: str) -> str:
    """Returns a suggestion of up to three tasks with similar names; '' if there are none."""
    known = names()
    near = difflib.get_close_matches(
        name.replace(" ", ":").replace("-", ":"), known, n=3, cutoff=0.5
    )
    return f"did you mean {' or '.join(near)}? " if near else ""
