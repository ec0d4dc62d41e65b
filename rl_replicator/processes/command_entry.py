"""A script that runs a command in a process that cannot outlive the process that starts it.

    python -IS command_entry.py PARENT_PID COMMAND [ARGUMENT ...]

It is run by its path and imports nothing from this project, so it starts in a few milliseconds.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1
_USAGE = 2


def die_with_parent() -> None:
    """Makes the kernel kill this process when the thread that started it ends."""
    # Unlike most settings of a process, this one survives `exec`.
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def main(argv: list[str]) -> int:
    """Replaces this process with the command.

    Args:
      argv: path of this script, process id of the parent, command, and its arguments.

    Returns:
      The exit status, if the command cannot be executed.
    """
    die_with_parent()
    if os.getppid() != int(argv[1]):
        return 1  # The parent died before the call above.
    # A command that a shell script starts with `&` ignores SIGINT, because Ctrl-C is meant for the
    # foreground. Ctrl-C does not reach this session: here, SIGINT comes only from the parent, which
    # asks the command to end.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    # Ray's processes block signals, and a process inherits that.
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    # Python ignores these two, but other programs rely on their default actions.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    try:
        os.execvp(argv[2], argv[2:])
    except OSError as error:
        print(
            f"expected an executable command, got {argv[2]!r} ({error.strerror}); correct it",
            file=sys.stderr,
        )
    return _USAGE


if __name__ == "__main__":
    sys.exit(main(sys.argv))
