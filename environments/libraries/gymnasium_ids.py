"""Gymnasium's environments by their ids."""

from __future__ import annotations

from typing import Any

from environments.errors import EnvironmentNameError
from environments.libraries.similar_names import hint


def make(name: str) -> Any:
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
            f"{str(error).strip().splitlines()[0]}{hint('gym:', name, known)}"
        ) from None
