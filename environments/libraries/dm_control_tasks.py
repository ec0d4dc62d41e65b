"""Tasks of dm_control outside its suite."""

from __future__ import annotations

from typing import Any

import numpy as np

from environments.errors import EnvironmentNameError
from environments.libraries.similar_names import hint
from environments.pixels import rendering

# dm:locomotion/TASK: the tasks without camera observations. dm_control renders a camera observation
# at every step, even if the agent does not use it.
_LOCOMOTION = ("cmu_humanoid_go_to_target",)
_FEATURES = "features"


def make(name: str, seed: int) -> Any:
    """Makes an environment of dm_control's manipulation or locomotion tasks.

    Args:
      name: `manipulation/TASK` or `locomotion/TASK`, see `names`.
      seed: seed of everything random in it.

    Returns:
      A `dm_env.Environment`.

    Raises:
      EnvironmentNameError: if there is no such task, or it has camera observations.
    """
    known = names()
    if name not in known:
        raise EnvironmentNameError(
            "expected 'dm:manipulation/TASK' or 'dm:locomotion/TASK' with a task without camera "
            f"observations, got 'dm:{name}'{hint('dm:', name, known)}"
        )
    collection, _, task = name.partition("/")
    if collection == "manipulation":
        return _manipulation().load(task, seed)
    with rendering.opengl_disabled():
        from dm_control.locomotion.examples import basic_cmu_2019
    return getattr(basic_cmu_2019, task)(np.random.RandomState(seed))


def names() -> tuple[str, ...]:
    """Returns the names that `make` takes, sorted. Imports dm_control."""
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
