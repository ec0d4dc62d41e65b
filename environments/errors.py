"""Errors about the environments that a user chooses. Each message is one line."""

import contextlib
import difflib
import importlib
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator
from typing import Any


class EnvironmentUsageError(ValueError):
    """The base class of errors in a user's choice or definition of an environment."""


class EnvironmentNameError(EnvironmentUsageError):
    """No environment has this name."""


class EnvironmentSpecError(EnvironmentUsageError):
    """The environment's actions, observations, rewards or frames are not supported."""


class EnvironmentActionError(EnvironmentUsageError):
    """An action holds NaN."""


class EnvironmentDataError(EnvironmentUsageError):
    """The environment returned an observation, reward or frame that violates its specs."""


class EnvironmentConstructionError(EnvironmentUsageError):
    """A user's module, factory or wrapper raised; its error is the cause."""


class RenderingUnavailableError(RuntimeError):
    """This machine cannot render frames: off-screen OpenGL or a package is missing."""


# The errors that the command line prints as one line; registered in pyproject.toml.
USAGE_ERRORS = (EnvironmentUsageError, RenderingUnavailableError)


@contextlib.contextmanager
def of_user_code(name: str, purpose: str) -> Iterator[None]:
    """Returns a context for user code that turns its exceptions into one-line errors.

    Args:
      name: what the code is, such as `the factory my_module:make`.
      purpose: what it should do, such as `return an environment`.

    Raises:
      EnvironmentConstructionError: if the code raises. The message names the line that raised, and
        the cause is the error itself. Errors of this module pass through unchanged.
    """
    try:
        yield
    except USAGE_ERRORS:
        raise
    except Exception as error:
        text = " ".join(f"{type(error).__name__}: {error}".split())
        raise EnvironmentConstructionError(
            f"expected {name} to {purpose}, got {text}{place(error)}; correct it"
        ) from error


def import_function(path: str, expected: str) -> Callable[..., Any]:
    """Imports a user's function.

    Args:
      path: `package.module:function`.
      expected: what was expected, for the error messages.

    Raises:
      EnvironmentNameError: if there is no such function.
      EnvironmentConstructionError: if its module raises while it is imported.
    """
    name, _, attribute = path.partition(":")
    if not (name and attribute):
        raise EnvironmentNameError(f"{expected}, got {path!r}")
    with of_user_code(f"the module {name}", "be imported"):
        try:
            if name.startswith("."):  # Relative, without a parent package.
                raise ModuleNotFoundError(name=name)
            module = importlib.import_module(name)
        except ModuleNotFoundError as error:
            if not lacks(name, error):
                raise
            raise EnvironmentNameError(
                f"{expected}, got {path!r}: no module {error.name!r} was found in the working "
                f"directory or on PYTHONPATH{file_hint(name)}{_namesake(name)}"
            ) from None
    function: Callable[..., Any] | None = getattr(module, attribute, None)
    if function is None:
        raise EnvironmentNameError(
            f"{expected}, got {path!r}: no function in {name}{_near(attribute, module)}"
        )
    if not callable(function):
        raise EnvironmentNameError(
            f"{expected}, got {path!r}, which is no function{_near(attribute, module)}"
        )
    return function


def _near(attribute: str, module: Any) -> str:
    """Returns a hint: a module's own functions and classes of similar names, or Gymnasium's."""
    name = module.__name__
    if re.search(r"-v\d+$", attribute):  # In Gymnasium, module:Id-v0 names an environment.
        return f"; did you mean gym:{name}:{attribute}?"
    own = [key for key, x in vars(module).items() if getattr(x, "__module__", None) == name]
    return nearest(attribute, own, f"{name}:")


def file_hint(path: str) -> str:
    """Returns a hint for an error message if a module was given as a file; otherwise ""."""
    is_file = "/" in path or path.startswith(".") or path.endswith(".py")
    return "; name it as in an import, package.module, not by its file" if is_file else ""


def _namesake(name: str) -> str:
    """Returns a hint if a folder has the name of a package that was imported from elsewhere."""
    top = name.partition(".")[0]
    there = [os.path.abspath(path) for path in getattr(sys.modules.get(top), "__path__", [])]
    here = os.path.abspath(top)
    is_other = bool(there) and os.path.isdir(here) and here not in there
    return f"; {top} is the package in {there[0]}, so rename {here}" if is_other else ""


def nearest(name: str, known: Iterable[str], prefix: str = "") -> str:
    """Returns a suggestion of up to three similar names for an error message; "" if none is."""
    near = difflib.get_close_matches(name, known, n=3)
    return f"; did you mean {' or '.join(prefix + other for other in near)}?" if near else ""


def lacks(module: str, error: ModuleNotFoundError) -> bool:
    """Returns whether a module or its package is missing, rather than one that it imports.

    Args:
      module: its path, `package.module`.
      error: the error that its import raised.
    """
    return error.name is not None and f"{module}.".startswith(f"{error.name}.")


def place(error: BaseException) -> str:
    """Returns the file and line that raised; "" if the error's own text names them."""
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith("<frozen ")  # Python's import machinery.
    ]
    if isinstance(error, SyntaxError) or not frames:
        return ""
    return f" ({frames[-1].filename}, line {frames[-1].lineno})"
