"""Gymnasium's environments by ID."""

from __future__ import annotations

import importlib.util
from typing import Any

from environments.errors import EnvironmentNameError, file_hint, of_user_code
from environments.libraries.similar_names import hint


def make(name: str) -> Any:
    """Makes a Gymnasium environment by its ID, with the time limit of its registration.

    Args:
      name: the id, `Pendulum-v1`, or `module:id`, which imports the module first.

    Returns:
      A `gymnasium.Env`; it renders if it could be made with `render_mode="rgb_array"`.

    Raises:
      EnvironmentNameError: if there is no such id, or it needs a package that is not installed.
      EnvironmentConstructionError: if the module or the constructor raises; its error is the cause.
    """
    import gymnasium

    module, _, identifier = name.rpartition(":")
    try:
        if module:
            package = module.partition(".")[0]
            if not package or importlib.util.find_spec(package) is None:
                raise ModuleNotFoundError(f"no module named {module!r}{file_hint(module)}")
            with of_user_code(f"the module {module}", "be imported"):
                importlib.import_module(module)
        spec = gymnasium.spec(identifier)
    except (gymnasium.error.Error, ModuleNotFoundError) as error:
        known = gymnasium.registry
        raise EnvironmentNameError(
            f"expected the id of a Gymnasium environment after 'gym:', got {name!r}: "
            f"{_first_line(error)}{hint('gym:', name, known)}"
        ) from None
    with of_user_code(f"the constructor of gym:{name}", "return an environment"):
        try:
            return _construct(spec)
        except gymnasium.error.DependencyNotInstalled as error:
            raise EnvironmentNameError(
                f"gym:{name} needs a package that is missing: {_first_line(error)}"
            ) from None
        except ImportError as error:  # For example, it has moved to another package.
            raise EnvironmentNameError(
                f"gym:{name} cannot be imported: {_first_line(error).rstrip('.')}; install what "
                "it needs, or choose another one"
            ) from None


def _construct(spec: Any) -> Any:
    import gymnasium

    # Without Gymnasium's own checks, which only warn where `timesteps` raises an error.
    options: dict[str, Any] = {"disable_env_checker": True}
    try:
        return gymnasium.make(spec, render_mode="rgb_array", **options)
    except Exception:
        # The constructor accepts no render mode or not this one, or needs a renderer that is
        # missing. If the mode was not the reason, this raises the same error again.
        return gymnasium.make(spec, **options)


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
