"""The tasks of the dm_control suite that EnvPool has, and their names in it."""

from __future__ import annotations

import importlib.metadata
from typing import Any

from environments import suite
from environments.errors import EnvironmentUsageError

# The version whose tasks were compared with those of dm_control.
VERSION = "1.2.5"
# Tasks that could not be compared with those of dm_control: their observations do not determine the
# state, so an error in them would go unnoticed.
NOT_COMPARED = frozenset(
    {
        *("dog:fetch", "dog:run", "dog:stand", "dog:trot", "dog:walk"),
        *("quadruped:escape", "quadruped:fetch", "quadruped:run", "quadruped:walk"),
        "fish:swim",
    }
)


def imported() -> Any:
    """Imports EnvPool, which loads an OpenGL library of its own.

    Raises:
      EnvironmentUsageError: if it is not installed, or its version differs.
    """
    _check_version()
    import envpool

    return envpool


def check(name: str) -> None:
    """Refuses a task that was not compared with dm_control's.

    It does not import EnvPool, because a process that has loaded an OpenGL library must not fork.

    Args:
      name: the name of an environment.

    Raises:
      EnvironmentUsageError: if the task is refused, or EnvPool is not installed.
    """
    expected = "expected a task of the dm_control suite for --env-engine envpool"
    if name not in suite.names():
        raise EnvironmentUsageError(f"{expected}, got {name!r}; leave --env-engine out")
    if name in NOT_COMPARED:
        raise EnvironmentUsageError(
            f"{expected} that is known to be the same in EnvPool, got {name!r}, which could not be "
            "compared; leave --env-engine out"
        )
    _check_version()


def _check_version() -> None:
    try:
        found = f"version {importlib.metadata.version('envpool')}"
    except importlib.metadata.PackageNotFoundError:
        found = "none"
    if found != f"version {VERSION}":
        raise EnvironmentUsageError(
            f"expected EnvPool {VERSION} for --env-engine envpool, found {found}; install it: pip "
            "install 'rl-replicator[envpool]'"
        )


def identifier(name: str) -> str:
    """Returns EnvPool's name of a task: `BallInCupCatch-v1` for `ball_in_cup:catch`."""
    words = name.replace(":", "_").split("_")
    return "".join(word[:1].upper() + word[1:] for word in words) + "-v1"
