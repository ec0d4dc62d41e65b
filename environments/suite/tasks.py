"""The tasks of the dm_control suite."""

from __future__ import annotations

import contextlib
import functools
import logging
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from dm_env import specs

from environments import flat
from environments.pixels import camera, rendering
from environments.suite import fast_physics

# In dm_control, the LQR tasks have no time limit, no action limits, and no lower bound of rewards.
# Agents need the first two, so these tasks get the step limit of all others and this action range.
_STEPS_IF_UNLIMITED = 1000
_RANGE_IF_UNLIMITED = 1.0
_WITHOUT_REWARD_BOUNDS = ("lqr",)


@functools.cache
def _dm_control_suite() -> Any:
    with rendering.opengl_disabled():
        from dm_control import suite
    return suite


@functools.cache
def names() -> tuple[str, ...]:
    """Returns all tasks as 'domain:task', sorted."""
    return tuple(sorted(f"{domain}:{task}" for domain, task in _dm_control_suite().ALL_TASKS))


def domains() -> frozenset[str]:
    """Returns the parts of the names before the colon."""
    return frozenset(name.partition(":")[0] for name in names())


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
        environment = _load(domain, task, random)
    _keep_gl_out(environment.physics)
    fast_physics.speed_up(environment.physics)
    return flat.Environment(
        environment,
        action_spec=_limited(environment.action_spec()),
        reward_spec=_reward_spec(domain),
        random=flat.NumpyRandomness(random),
        render=camera.VideoCamera(lambda: environment.physics),
        name=f"{domain}:{task}",
    )


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


def _load(domain: str, task: str, random: np.random.RandomState) -> Any:
    suite = _dm_control_suite()
    start = random.get_state(legacy=False)
    environment = suite.load(domain, task, task_kwargs={"random": random})
    if math.isfinite(environment._step_limit):
        return environment
    # Half a step less than the limit keeps rounding from adding a step.
    limit = (_STEPS_IF_UNLIMITED - 0.5) * environment.control_timestep()
    random.set_state(start)
    return suite.load(domain, task, task_kwargs={"random": random, "time_limit": limit})


def _limited(spec: specs.BoundedArray) -> specs.BoundedArray:
    unlimited = np.abs(spec.maximum) >= flat.NO_LIMIT
    return specs.BoundedArray(
        spec.shape,
        spec.dtype,
        np.where(unlimited, -_RANGE_IF_UNLIMITED, spec.minimum),
        np.where(unlimited, _RANGE_IF_UNLIMITED, spec.maximum),
    )


def _reward_spec(domain: str) -> specs.BoundedArray:
    lowest = -np.inf if domain in _WITHOUT_REWARD_BOUNDS else 0.0
    return specs.BoundedArray((), np.float32, lowest, 1.0)


class _DrawsOnDemand:
    """Overrides methods of a physics so that a reset of its task opens no OpenGL context.

    `quadruped:escape` uploads its new terrain to dm_control's renderer at every reset, which would
    load OpenGL even for training from state. `environments.pixels.camera` has its own contexts, and
    reads the terrain from the model. The terrain is still uploaded if a user has rendered with
    dm_control's contexts.
    """

    _contexts: Any
    _is_resetting = False

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


def _keep_gl_out(physics: Any) -> None:
    """Prevents a task from opening dm_control's OpenGL contexts."""
    parent = type(physics)
    body = {"__module__": parent.__module__}
    physics.__class__ = type(parent.__name__, (_DrawsOnDemand, parent), body)
