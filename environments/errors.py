"""The errors of environments that a user names. Each message is one line."""

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

    def reason(self) -> str:
        """Returns the type and the text of the cause; the whole message if there is no cause."""
        cause = self.__cause__
        return str(self) if cause is None else f"{type(cause).__name__}: {cause}"


class RenderingUnavailableError(RuntimeError):
    """This machine cannot draw frames: it lacks off-screen OpenGL, or a package."""


# The errors that the command line prints as one line; registered in pyproject.toml.
USAGE_ERRORS = (EnvironmentUsageError, RenderingUnavailableError)


@contextlib.contextmanager
def of_user_code(name: str, purpose: str) -> Iterator[None]:
    """Returns a context for code of the user's: what it raises becomes one line.

    Args:
      name: what the user calls the code, `the factory my_module:make`.
      purpose: what it should do.

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
            f"expected {name} to {purpose}, got {text}{_place(error)}; correct it"
        ) from error


def import_user_module(path: str) -> types.ModuleType:
    """Imports a module of the user's.

    Args:
      path: `package.module`.

    Raises:
      EnvironmentNameError: if there is none. The message says no more than that.
      EnvironmentConstructionError: if it raises.
    """
    with of_user_code(f"the module {path}", "be imported"):
        try:
            if path.startswith("."):  # A relative one, in a package that nobody has named.
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
    """Returns the part of a message on a module that is named by its file; "" for others."""
    is_file = "/" in path or path.startswith(".") or path.endswith(".py")
    return "; name it as in an import, package.module, not by its file" if is_file else ""


def lacks(module: str, error: ModuleNotFoundError) -> bool:
    """Returns whether a module itself is missing, and not one that it imports.

    Args:
      module: its path, `package.module`.
      error: what its import has raised.
    """
    return error.name is not None and f"{module}.".startswith(f"{error.name}.")


def _place(error: Exception) -> str:
    """Returns the line that raised; empty if the error's own text has it."""
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith("<frozen ")  # Python's import of a module.
    ]
    if isinstance(error, SyntaxError) or not frames:
        return ""
    return f" ({frames[-1].filename}, line {frames[-1].lineno})"
