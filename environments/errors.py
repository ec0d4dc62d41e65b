"""Errors about the environments that a user chooses. Each message is one line."""

import contextlib
import importlib
import traceback
import types
from collections.abc import Iterator


class EnvironmentUsageError(ValueError):
    """The base class of errors in a user's choice or definition of an environment."""


class EnvironmentNameError(EnvironmentUsageError):
    """No environment has this name."""


class EnvironmentSpecError(EnvironmentUsageError):
    """The environment's actions, observations, rewards or frames do not fit continuous control."""


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


def import_user_module(path: str) -> types.ModuleType:
    """Imports a user's module.

    Args:
      path: `package.module`.

    Raises:
      EnvironmentNameError: if there is no such module. The message says only that.
      EnvironmentConstructionError: if the module raises.
    """
    with of_user_code(f"the module {path}", "be imported"):
        try:
            if path.startswith("."):  # Relative, without a parent package.
                raise ModuleNotFoundError(name=path)
            return importlib.import_module(path)
        except ModuleNotFoundError as error:
            if not lacks(path, error):
                raise
            raise EnvironmentNameError(
                f"no module {error.name!r} was found in the working directory or on "
                f"PYTHONPATH{file_hint(path)}"
            ) from None


def file_hint(path: str) -> str:
    """Returns a hint for an error message if a module was given as a file; otherwise ""."""
    is_file = "/" in path or path.startswith(".") or path.endswith(".py")
    return "; name it as in an import, package.module, not by its file" if is_file else ""


def lacks(module: str, error: ModuleNotFoundError) -> bool:
    """Returns whether a module or its package is missing, rather than one that it imports.

    Args:
      module: its path, `package.module`.
      error: the error that its import raised.
    """
    return error.name is not None and f"{module}.".startswith(f"{error.name}.")


def place(error: Exception) -> str:
    """Returns the file and line that raised; "" if the error's own text names them."""
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith("<frozen ")  # Python's import machinery.
    ]
    if isinstance(error, SyntaxError) or not frames:
        return ""
    return f" ({frames[-1].filename}, line {frames[-1].lineno})"
