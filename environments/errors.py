"""The errors of environments that a user names. Each message is one line."""

import contextlib
import traceback
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
    """This machine lacks what draws frames: OpenGL without a screen, or a package."""


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
