"""The errors that users of this package may have to handle."""

import contextlib
import errno
import operator
from collections.abc import Iterator
from typing import Any


class UsageError(ValueError):
    """Bad input. The command line prints it as one line and exits with status 2."""

    ag_pass_through = True  # AutoGraph must not wrap it in its own error.


class ConfigError(UsageError):
    """An invalid setting. The message says what was expected, what was found, and what to do."""


def check_option(is_good: bool, option: str, expected: str, received: object) -> None:
    """Checks a setting; the error names it as the command line does.

    Args:
      is_good: whether the setting is valid.
      option: path of the setting, such as "agent.n_step".
      expected: description of valid values.
      received: the value.

    Raises:
      ConfigError: unless `is_good`.
    """
    if not is_good:
        name = option.replace("_", "-")
        raise ConfigError(f"--{name}: expected {expected}, got {received}")


def check_count(name: str, number: Any, remedy: str) -> int:
    """Returns a number of things, which may be an integer of NumPy, as one of Python.

    Args:
      name: name of the number, for the error.
      number: the number.
      remedy: what to do, for the error.

    Raises:
      ConfigError: if it is not an integer, or below 1.
    """
    try:
        count = operator.index(number)
    except TypeError:
        count = 0
    if count < 1:
        raise ConfigError(
            f"expected {name} to be a whole number of at least 1, got {number!r}; {remedy}"
        )
    return count


def check_seconds(**seconds: float) -> None:
    """Checks durations, given by their names.

    Raises:
      ConfigError: if one of them is not positive.
    """
    for name, value in seconds.items():
        if not value > 0:
            raise ConfigError(
                f"expected {name} above 0 seconds, got {value}; omit it for its default"
            )


def created_outside(variable: str) -> ConfigError:
    """Returns the error for a step with a variable that was not created in the replicator's scope.

    Args:
      variable: description of the variable.
    """
    return ConfigError(
        "expected every variable of the step to be created in replicator.scope(), found "
        f"{variable} from outside; create it inside `with replicator.scope():`"
    )


class CheckpointError(UsageError):
    """A checkpoint that cannot be written, is corrupt, or does not fit the program."""


class Diverged(UsageError):  # noqa: N818 - named like those below
    """A metric or a variable of a run is NaN or infinite."""


# Exit status of a command that ends with a `DiskError`: "input/output error" in sysexits.h. Unlike
# status 2, it does not mean that the settings are wrong.
DISK_STATUS = 74


class DiskError(UsageError):
    """The files of a run cannot be written, most likely because the disk is full.

    The command line exits with status 74. Once there is space, the same command continues.
    """


class CheckpointDiskError(CheckpointError, DiskError):
    """A checkpoint cannot be written, most likely because the disk is full."""


def is_disk_full(error: OSError) -> bool:
    """Returns whether a write failed because the disk is full or a quota or size limit is reached.

    Args:
      error: the error that the write raised.
    """
    return error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def remedy(error: OSError) -> str:
    """Returns what to do about a failed write.

    Args:
      error: the error that the write raised.
    """
    if error.errno == errno.EFBIG:
        return "raise the limit on the size of a file (ulimit -f)"
    if error.errno in (errno.EMFILE, errno.ENFILE):
        return "raise the limit on open files (ulimit -n)"
    return "free some space" if is_disk_full(error) else "check the disk and its permissions"


def cannot_write(message: str, error: OSError) -> UsageError:
    """Returns the error for a file that cannot be written: a `DiskError` if there is no space.

    Args:
      message: one line that names the file and the reason.
      error: the error that the write raised.
    """
    return (DiskError if is_disk_full(error) else UsageError)(message)


@contextlib.contextmanager
def continuable(what: str) -> Iterator[None]:
    """Turns an `OSError` into a one-line error that says how to continue the work.

    Args:
      what: the work that the same command continues, such as "the sweep in runs/sweep".

    Raises:
      DiskError: if the disk is full.
      UsageError: after any other `OSError`.
    """
    try:
        yield
    except OSError as error:
        raise cannot_write(
            f"{what} has stopped: {error}; the same command continues it", error
        ) from error


class StepCancelled(Exception):  # noqa: N818 - an event, not an error
    """`cancel()` ended a step before it changed anything. Every earlier step is complete.

    Attributes:
      outputs: the outputs of the k steps that the call had already taken, with a leading axis [k];
        None if k is 0, without `steps_per_call`, and with asynchronous workers.
    """

    outputs: Any = None


class EndOfData(Exception):  # noqa: N818 - an event, not an error
    """A finite dataset has no element left for the step."""


class StepFailed(RuntimeError):  # noqa: N818 - named like the two above
    """A step failed in another process, so the step ended in all processes."""


class ReplicasDiffer(UsageError):  # noqa: N818 - named like those above
    """Copies of a variable that must be equal differ between replicas."""


# Exit status of a process that ends because it lost another one. It tells the supervisor to restart
# the whole group.
WORKER_LOST_STATUS = 75


class WorkerLost(RuntimeError):  # noqa: N818 - an event, not an error
    """Another process of the group died, froze or was restarted, so the group cannot continue.

    Attributes:
      workers: indices of the lost processes; empty if unknown.
    """

    def __init__(self, message: str, workers: tuple[int, ...] = ()):
        """Stores the message.

        Args:
          message: what happened, and what to do.
          workers: indices of the lost processes.
        """
        super().__init__(message)
        self.workers = workers
