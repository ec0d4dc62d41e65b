"""Errors that a Launchpad program raises."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import pickle
import sys
import traceback
import types
from typing import Any

from launchpad import pickling


class LaunchpadError(RuntimeError):
    """Base class of the errors of this package."""


class ProgramStoppedError(LaunchpadError):
    """An operation was abandoned because the program is stopping or has ended."""


class StatusNotOk(LaunchpadError):  # noqa: N818 - upstream's name
    """A remote call failed: upstream's name and codes, for programs that catch it.

    An exception of a server's method is raised in the client as one of its own class and of this.

    Attributes:
      code: Number of the status, as in absl and gRPC.
    """

    code = 2  # Unknown.


class CourierError(StatusNotOk):
    """Base class of the errors of remote calls."""


class CourierUnavailableError(CourierError):
    """The server could not be reached, or went away during the call."""

    code = 14


class CourierDeadlineError(CourierError, TimeoutError):
    """The call took longer than its deadline."""

    code = 4


class CourierAuthenticationError(CourierError):
    """Client and server have different secrets, such as those of different programs."""

    code = 16


class RemoteError(CourierError):
    """A server-side exception that could not be rebuilt in the client."""


class RemoteTraceback(Exception):  # noqa: N818 - a note, never raised by itself.
    """Cause of a re-raised server-side exception: prints the traceback of the server."""

    def __str__(self) -> str:
        return f"\n\nTraceback of the server:\n{self.args[0]}"


@dataclasses.dataclass(frozen=True)
class ExceptionRecord:
    """An exception in a form that can always be sent between processes.

    Attributes:
      type_name: Qualified name of the exception's class.
      message: `str()` of the exception.
      traceback_text: The formatted traceback, with causes.
      module: Module of the exception's class.
      pickled: The exception itself, or None if it does not pickle.
      is_collateral: True if it was caused by the loss of a peer, not by this code.
      stuck_secs: Seconds before the failure in which the node made no progress.
      exit_code: Exit status of a command, or the negative number of the signal that killed it.
    """

    type_name: str
    message: str
    traceback_text: str
    module: str = "builtins"
    pickled: bytes | None = None
    is_collateral: bool = False
    stuck_secs: float = 0.0
    exit_code: int | None = None

    @classmethod
    def of(cls, error: BaseException) -> ExceptionRecord:
        """Records `error`; never raises."""
        kind = type(error)
        name = kind.__qualname__ if kind.__module__ == "builtins" else ""
        try:
            pickled = _dumps(error)
        except Exception:
            pickled = None
        return cls(
            type_name=name or f"{kind.__module__}.{kind.__qualname__}",
            message=_message(error),
            traceback_text="".join(traceback.format_exception(error)),
            module=kind.__module__,
            pickled=pickled,
            is_collateral=isinstance(
                error, (CourierUnavailableError, CourierAuthenticationError, ProgramStoppedError)
            ),
        )

    @property
    def lines_below(self) -> str:
        """The traceback, as lines to put below a message; empty if there is none."""
        return f"\n{self.traceback_text.rstrip()}" if self.traceback_text else ""

    def rebuild(self) -> BaseException | None:
        """Returns the exception, or None if that is impossible.

        Only classes whose top-level package is already imported here are rebuilt: an error of
        TensorFlow must not import TensorFlow into a process that does not use it.
        """
        if self.pickled is None or self.module.partition(".")[0] not in sys.modules:
            return None
        try:
            error = pickle.loads(self.pickled)
        except Exception:
            return None
        return error if isinstance(error, BaseException) else None


def _message(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # A broken __str__ must not hide the failure itself.
        return "<the exception's __str__ failed>"


def _messages(error: BaseException) -> list[str]:
    """Returns the message of an exception, and those of the members of a group."""
    members = error.exceptions if isinstance(error, BaseExceptionGroup) else ()
    return [_message(error), *(text for member in members for text in _messages(member))]


def _dumps(error: BaseException) -> bytes:
    """Pickles an exception so that it loads, with its messages if that is possible.

    Raises:
      Exception: it can't be pickled and loaded again.
    """
    # Often, an __init__ of its own takes other arguments, or builds the message from one.
    for pickler in (pickling.Pickler, _Pickler):
        with contextlib.suppress(Exception):
            file = io.BytesIO()
            pickler(file).dump(error)
            if _messages(pickle.loads(file.getvalue())) == _messages(error):
                return file.getvalue()
    pickled = pickling.dumps(error)  # An exception without messages is better than none.
    pickle.loads(pickled)
    return pickled


class _Pickler(pickling.Pickler):
    """Makes exceptions load through the `__init__` of their built-in base, not their own."""

    def reducer_override(self, obj: Any) -> Any:
        if not isinstance(obj, BaseException):
            return super().reducer_override(obj)
        base: Any = type(obj)
        while base.__module__ != "builtins":
            base = base.__base__
        return _restore, (base, *base.__reduce__(obj))


def _restore(
    base: type[BaseException],
    kind: type[BaseException],
    args: tuple[Any, ...],
    state: dict[str, Any] | None = None,
) -> BaseException:
    error = base.__new__(kind, *args)
    base.__init__(error, *args)
    error.__setstate__(state)
    return error


def as_status(error: Exception) -> Exception:
    """Returns `error` as an exception of its own class that is a StatusNotOk, too.

    If that is impossible, because of what its class does, it is returned as it is.
    """
    kind = type(error)
    if isinstance(error, StatusNotOk):
        return error
    bases = (StatusNotOk,) if issubclass(StatusNotOk, kind) else (kind, StatusNotOk)
    members = {
        "__module__": kind.__module__,
        "__qualname__": kind.__qualname__,
        "__reduce__": lambda self: (as_status, (error,)),  # The class has no importable name.
    }
    base: Any = kind
    while base.__module__ != "builtins":
        base = base.__base__
    try:
        both = types.new_class(kind.__name__, bases, {}, lambda scope: scope.update(members))
        found: Any = _restore(base, both, *base.__reduce__(error)[1:])
        return found if _messages(found) == _messages(error) else error
    except Exception:
        return error


# `ExceptionRecord.type_name` of a process that ended without reporting why.
PROCESS_DIED = "ProcessDied"
# `ExceptionRecord.type_name` of a command whose exit status says that a restart would not help.
COMMAND_FAILED = "CommandFailed"


class NodeFailedError(LaunchpadError):
    """A node failed, and the program was stopped because of it.

    Attributes:
      label: Group of the node that failed first.
      index: Its index in the group.
      exception_type: Name of the original exception's class, or "ProcessDied".
      message: Message of the original exception.
      traceback_text: Traceback of the original exception as text; empty for a process that died.
      exit_code: Exit status of a command, or the negative number of the signal that killed it.
    """

    def __init__(self, label: str, index: int, record: ExceptionRecord):
        self.label = label
        self.index = index
        self.exception_type = record.type_name
        self.message = record.message
        self.traceback_text = record.traceback_text
        self.exit_code = record.exit_code
        self._record = record
        text = f"node {label}/{index} failed: {record.type_name}: {record.message}"
        if record.traceback_text:
            text = f"{record.traceback_text.rstrip()}\n{text}"
        super().__init__(text)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.label, self.index, self._record)
