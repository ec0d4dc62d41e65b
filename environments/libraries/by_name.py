"""Environments of libraries by name: Gymnasium's, and dm_control's outside its suite."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import json
from typing import Any

import numpy as np

from environments.errors import EnvironmentNameError, file_hint, nearest, of_user_code
from environments.pixels import rendering

# dm:locomotion/TASK: the tasks without camera observations. dm_control renders a camera observation
# at every step, even if the agent does not use it.
_LOCOMOTION = ("cmu_humanoid_go_to_target",)
_FEATURES = "features"


def make_dm_control(name: str, seed: int) -> Any:
    """Makes an environment of dm_control's manipulation or locomotion tasks.

    Args:
      name: `manipulation/TASK` or `locomotion/TASK`, see `dm_control_names`.
      seed: seed of everything random in it.

    Returns:
      A `dm_env.Environment`.

    Raises:
      EnvironmentNameError: if there is no such task, or it has camera observations.
    """
    known = dm_control_names()
    if name not in known:
        raise EnvironmentNameError(
            "expected 'dm:manipulation/TASK' or 'dm:locomotion/TASK' with a task without camera "
            f"observations, got 'dm:{name}'{nearest(name, known, 'dm:')}"
        )
    collection, _, task = name.partition("/")
    if collection == "manipulation":
        return _manipulation().load(task, seed)
    with rendering.opengl_disabled():
        from dm_control.locomotion.examples import basic_cmu_2019
    return getattr(basic_cmu_2019, task)(np.random.RandomState(seed))


def dm_control_names() -> tuple[str, ...]:
    """Returns the names that `make_dm_control` takes, sorted. Imports dm_control."""
    tasks = _manipulation().get_environments_by_tag(_FEATURES)
    return tuple(
        sorted(
            [f"manipulation/{task}" for task in tasks] + [f"locomotion/{x}" for x in _LOCOMOTION]
        )
    )


def _manipulation() -> Any:
    with rendering.opengl_disabled():
        from dm_control import manipulation
    return manipulation


def make_gymnasium(name: str) -> Any:
    """Makes a Gymnasium environment by its ID, with the time limit of its registration.

    Args:
      name: the id, `Pendulum-v1`, or `module:id`, which imports the module first; options for the
        constructor may follow, as a JSON object.

    Returns:
      A `gymnasium.Env`; it renders if it could be made with `render_mode="rgb_array"`.

    Raises:
      EnvironmentNameError: if there is no such id, it needs a package that is not installed, or its
        options are not a JSON object.
      EnvironmentConstructionError: if the module or the constructor raises; its error is the cause.
    """
    import gymnasium

    identity, brace, text = name.partition("{")
    options = _options(brace + text)
    module, _, identifier = identity.rpartition(":")
    expected = f"expected the id of a Gymnasium environment after 'gym:', got {identity!r}"
    try:
        if module:
            package = module.partition(".")[0]
            if not package or importlib.util.find_spec(package) is None:
                remedy = file_hint(module) or "; install its package, or correct its name"
                raise EnvironmentNameError(f"{expected}: no module named {module!r}{remedy}")
            with of_user_code(f"the module {module}", "be imported"):
                importlib.import_module(module)
        if identifier not in gymnasium.registry:
            _register(identifier.partition("/")[0])
        spec = gymnasium.spec(identifier)
    except gymnasium.error.Error as error:
        known = gymnasium.registry
        prefix = f"gym:{module}:" if module else "gym:"
        remedy = "" if module else "; gym:MODULE:ID first imports the module that registers it"
        raise EnvironmentNameError(
            f"{expected}: {_first_line(error)}{nearest(identifier, known, prefix) or remedy}"
        ) from None
    with of_user_code(f"the constructor of gym:{name}", "return an environment"):
        try:
            return _construct(spec, options)
        except gymnasium.error.DependencyNotInstalled as error:
            raise EnvironmentNameError(
                f"gym:{name} needs a package that is missing: {_first_line(error)}"
            ) from None
        except ImportError as error:  # For example, it has moved to another package.
            raise EnvironmentNameError(
                f"gym:{name} cannot be imported: {_first_line(error).rstrip('.')}; install what "
                "it needs, or choose another one"
            ) from None


def _register(namespace: str) -> None:
    """Calls what a package names for its namespace, as Gymnasium did before version 1."""
    for plugin in importlib.metadata.entry_points(group="gymnasium.envs", name=namespace):
        with of_user_code(f"the entry point {plugin.value}", "register environments"):
            plugin.load()()


def _options(text: str) -> dict[str, Any]:
    try:
        options = json.loads(text or "{}")
    except ValueError as error:
        raise EnvironmentNameError(
            f"expected the options of a Gymnasium environment as a JSON object, such as "
            f'{{"g": 9.81}}, got {text!r}: {error}'
        ) from None
    return dict(options)


def _construct(spec: Any, options: dict[str, Any]) -> Any:
    import gymnasium

    # Without Gymnasium's own checks, which only warn where `timesteps` raises an error.
    options = {**options, "disable_env_checker": True}
    try:
        return gymnasium.make(spec, render_mode="rgb_array", **options)
    except Exception:
        # The constructor accepts no render mode or not this one, or needs a renderer that is
        # missing. If the mode was not the reason, this raises the same error again.
        return gymnasium.make(spec, **options)


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
