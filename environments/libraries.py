"""Environments of other collections by name: Gymnasium's, and dm_control's beside its suite."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any

import numpy as np

from environments.errors import EnvironmentNameError
from environments.pixels import rendering

# dm:locomotion/TASK: those that observe no pictures. A task of dm_control's that observes one draws
# it at every step, whatever an agent looks at.
_LOCOMOTION = ("cmu_humanoid_go_to_target",)
_FEATURES = "features"


def make_gymnasium(name: str) -> Any:
    """Makes the environment that Gymnasium calls by an id, with the time limit of its registration.

    Args:
      name: the id, `Pendulum-v1`, or `module:id`, which imports the module first.

    Returns:
      A `gymnasium.Env`; it renders if it can render to arrays.

    Raises:
      EnvironmentNameError: if there is no such id, or it needs a package that is not installed.
    """
    import gymnasium

    try:
        spec = gymnasium.spec(name)
        # Without Gymnasium's own checks, which warn where `timesteps` refuses.
        options: dict[str, Any] = {"disable_env_checker": True}
        try:
            return gymnasium.make(spec, render_mode="rgb_array", **options)
        except TypeError:  # Its constructor takes no render mode.
            return gymnasium.make(spec, **options)
    except gymnasium.error.DependencyNotInstalled as error:
        text = str(error).strip().splitlines()[0]
        raise EnvironmentNameError(f"gym:{name} needs a package that is missing: {text}") from None
    except (gymnasium.error.Error, ModuleNotFoundError) as error:
        known = gymnasium.registry
        raise EnvironmentNameError(
            f"expected the id of a Gymnasium environment after 'gym:', got {name!r}: "
            f"{str(error).strip().splitlines()[0]}{_hint('gym:', name, known)}"
        ) from None


def make_dm_control(name: str, seed: int) -> Any:
    """Makes an environment of dm_control's manipulation or locomotion tasks.

    Args:
      name: `manipulation/TASK` or `locomotion/TASK`, see `dm_control_names`.
      seed: seed of everything random in it.

    Returns:
      A `dm_env.Environment`.

    Raises:
      EnvironmentNameError: if there is no such task, or it observes pictures.
    """
    known = dm_control_names()
    if name not in known:
        raise EnvironmentNameError(
            "expected 'dm:manipulation/TASK' or 'dm:locomotion/TASK' with a task that observes no "
            f"pictures, got 'dm:{name}'{_hint('dm:', name, known)}"
        )
    collection, _, task = name.partition("/")
    if collection == "manipulation":
        return _manipulation().load(task, seed)
    with rendering.without_gl():
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
    with rendering.without_gl():
        from dm_control import manipulation
    return manipulation


def _hint(prefix: str, name: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, known, n=2)
    return f"; did you mean {' or '.join(prefix + other for other in near)}?" if near else ""
