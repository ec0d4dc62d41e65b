"""Two faster paths through dm_control's physics step, with bitwise equal results.

They save a tenth to a quarter of the step. dm_control converts names of bodies and joints to array
indices at every access; here the indices are cached. It guards the physics step with a context
manager that repeats all lookups; here the guard is one comparison. Tests compare every task with
plain dm_control, bit by bit.

The replacement of a method references its object only weakly. Otherwise an environment of many
megabytes, of which each evaluation makes one, would stay until the garbage collector finds the
cycle.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import numpy as np


def speed_up(physics: Any) -> None:
    """Replaces the slow methods of a physics.

    Args:
      physics: a `dm_control.mujoco.Physics`. Its model must not be reloaded afterwards.
    """
    axes = {
        id(axis): axis
        for struct in (physics.named.model, physics.named.data)
        for field in struct._asdict().values()
        for axis in field.axes
        if axis is not None
    }
    for axis in axes.values():
        axis.convert_key_item = _cached(weakref.WeakMethod(axis.convert_key_item))
    physics.step = _stepper(physics)


def _cached(method: Callable[[], Any]) -> Callable[[Any], Any]:
    """Caches a pure method, given as a weak reference, for names and lists of names."""
    known: dict[Any, Any] = {}

    def convert_key_item(item: Any) -> Any:
        kind = type(item)
        if kind is slice:
            return item
        if kind is str:
            key = item
        elif kind is list and all(type(part) is str for part in item):
            key = tuple(item)
        else:
            return method()(item)
        if key not in known:
            known[key] = method()(item)
        return known[key]

    return convert_key_item


def _stepper(physics: Any) -> Callable[..., None]:
    """Returns a function equivalent to `physics.step`, with all lookups done beforehand."""
    import mujoco

    model, data = physics.model.ptr, physics.data.ptr
    step, first_half, second_half = mujoco.mj_step, mujoco.mj_step1, mujoco.mj_step2
    runge_kutta = mujoco.mjtIntegrator.mjINT_RK4.value
    options = physics.model.opt
    warnings, before = physics._warnings, np.empty_like(physics._warnings)
    ordinary_step = type(physics).step
    reference = weakref.ref(physics)

    def fast_step(nstep: int = 1) -> None:
        physics: Any = reference()  # Still alive: this function is its attribute.
        if not physics.legacy_step or options.integrator == runge_kutta:
            ordinary_step(physics, nstep)
            return
        np.copyto(before, warnings)
        second_half(model, data)
        if nstep > 1:
            step(model, data, nstep - 1)
        first_half(model, data)
        if (warnings > before).any():
            # dm_control's guard compares at its exit, and then raises or logs as configured.
            with physics.check_invalid_state():
                np.copyto(physics._warnings_before, before)

    return fast_step
