"""The tasks of the dm_control suite, with a faster physics step.

Two faster paths through dm_control's physics step save a tenth to a quarter of it. dm_control
converts names of bodies and joints to array indices at every access; here the indices are cached.
It guards the physics step with a context manager that repeats all lookups; here the guard is one
comparison. Tests compare every task with plain dm_control, bit by bit.
"""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Iterator
from typing import Any

import numpy as np
from dm_env import specs

from environments import flat
from environments.pixels import camera, rendering

# In dm_control, the LQR tasks have no time limit, no action limits, and no lower bound of rewards.
# Agents need the first two, so these tasks get the step limit of all others and this action range.
_STEPS_IF_UNLIMITED = 1000
_RANGE_IF_UNLIMITED = 1.0
_UNLIMITED = ("lqr",)


@functools.cache
def _dm_control_suite() -> Any:
    with rendering.opengl_disabled():
        from dm_control import suite
    return suite


@functools.cache
def names() -> tuple[str, ...]:
    """Returns all tasks as 'domain:task', sorted."""
    return tuple(sorted(f"{domain}:{task}" for domain, task in _dm_control_suite().ALL_TASKS))


def make(domain: str, task: str, seed: int) -> flat.Environment:
    """Loads a task.

    Args:
      domain: domain of the suite, such as 'cartpole'.
      task: task of the domain, such as 'swingup'.
      seed: seed of the `RandomState` from which the task draws all random numbers.

    Returns:
      The environment.
    """
    random = np.random.RandomState(seed)
    with _without_deprecations():
        environment = _dm_control_suite().load(domain, task, task_kwargs={"random": random})
    physics = environment.physics
    kind: Any = type(physics)
    fast = _fast(kind)(physics.data)
    fast.legacy_step = physics.legacy_step
    environment._physics = fast
    is_unlimited = domain in _UNLIMITED
    made = flat.Environment(
        environment,
        action_spec=_limited(environment.action_spec()),
        reward_spec=specs.BoundedArray((), np.float32, -np.inf if is_unlimited else 0.0, 1.0),
        render=camera.Camera(lambda: environment.physics),
        name=f"{domain}:{task}",
    )
    if is_unlimited:
        made.limit_steps(_STEPS_IF_UNLIMITED)
    return made


@contextlib.contextmanager
def _without_deprecations() -> Iterator[None]:
    """Suppresses MuJoCo's warnings about deprecated attributes in the suite's own models."""

    def is_of_interest(record: logging.LogRecord) -> bool:
        return "is deprecated" not in record.getMessage()

    logger = logging.getLogger("absl")
    logger.addFilter(is_of_interest)
    try:
        yield
    finally:
        logger.removeFilter(is_of_interest)


def _limited(spec: specs.BoundedArray) -> specs.BoundedArray:
    unlimited = np.abs(spec.maximum) >= flat.NO_LIMIT
    return specs.BoundedArray(
        spec.shape,
        spec.dtype,
        np.where(unlimited, -_RANGE_IF_UNLIMITED, spec.minimum),
        np.where(unlimited, _RANGE_IF_UNLIMITED, spec.maximum),
    )


@functools.cache
def _fast(domain_physics: Any) -> Any:
    """Returns a subclass of a domain's class of physics."""
    return type(domain_physics.__name__, (_FastPhysics, domain_physics), {})


class _FastPhysics:
    """Methods of a `dm_control.mujoco.Physics` that are faster, or open no OpenGL context.

    `quadruped:escape` uploads its new terrain to dm_control's renderer at every reset, which would
    load OpenGL even for training from state. `environments.pixels.camera` has its own contexts, and
    reads the terrain from the model. The terrain is still uploaded if a user has rendered with
    dm_control's contexts.
    """

    named: Any = None
    model: Any
    data: Any
    legacy_step: bool
    _contexts: Any
    _warnings: np.ndarray
    _is_resetting = False

    def _reload_from_data(self, data: Any) -> None:
        """Prepares a new or another model; also called by the constructor."""
        super()._reload_from_data(data)  # type: ignore[misc]
        import mujoco
        from dm_control.mujoco import engine, index

        axes = index.make_axis_indexers(self.model)
        axes.update({size: _CachedAxis(axis) for size, axis in axes.items()})
        self.named = engine.NamedIndexStructs(
            model=index.struct_indexer(self.model, "mjmodel", axes),
            data=index.struct_indexer(self.data, "mjdata", axes),
        )
        self._pointers = self.model.ptr, self.data.ptr
        self._options, self._runge_kutta = self.model.opt, mujoco.mjtIntegrator.mjINT_RK4.value
        self._steps = mujoco.mj_step1, mujoco.mj_step2, mujoco.mj_step
        self._warned = np.empty_like(self._warnings)

    def step(self, nstep: int = 1) -> None:
        """Does what `Physics.step` does, with all lookups done beforehand."""
        if not self.legacy_step or self._options.integrator == self._runge_kutta:
            super().step(nstep)  # type: ignore[misc]
            return
        first_half, second_half, step = self._steps
        np.copyto(self._warned, self._warnings)
        second_half(*self._pointers)
        if nstep > 1:
            step(*self._pointers, nstep - 1)
        first_half(*self._pointers)
        if (self._warnings > self._warned).any():
            # dm_control's guard compares at its exit, and then raises or logs as configured.
            with self.check_invalid_state():  # type: ignore[attr-defined]
                np.copyto(self._warnings_before, self._warned)  # type: ignore[attr-defined]

    @contextlib.contextmanager
    def reset_context(self) -> Iterator[Any]:
        before, self._is_resetting = self._is_resetting, True  # A task may reset within a reset.
        try:
            with super().reset_context() as physics:  # type: ignore[misc]
                yield physics
        finally:
            self._is_resetting = before

    @property
    def contexts(self) -> Any:
        return self._contexts if self._is_resetting else super().contexts  # type: ignore[misc]


class _CachedAxis:
    """An axis of named elements that remembers the indices of names and of lists of names."""

    def __init__(self, axis: Any):
        self._axis = axis
        self._known: dict[Any, Any] = {}

    def convert_key_item(self, item: Any) -> Any:
        """Returns the index of an item."""
        kind = type(item)
        if kind is slice:
            return item
        if kind is str:
            key = item
        elif kind is list and all(type(part) is str for part in item):
            key = tuple(item)
        else:
            return self._axis.convert_key_item(item)
        if key not in self._known:
            self._known[key] = self._axis.convert_key_item(item)
        return self._known[key]

    @property
    def names(self) -> Any:
        return self._axis.names
