"""Becomes a task's command, in a process that cannot outlive its supervisor.

    python -IS task_entry.py SUPERVISOR_PID COMMAND [ARGUMENT ...]

Run by path and without any import of this project, so that it costs a few milliseconds.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1
_USAGE = 2


def main(argv: list[str]) -> int:
    # Survives the exec below: the kernel kills this process when the supervisor dies.
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != int(argv[1]):
        return 1  # It died before the kernel was told to watch it.
    try:
        os.execvp(argv[2], argv[2:])
    except OSError as error:
        print(
            f"expected a command that can be run, got {argv[2]!r} ({error.strerror}); correct it",
            file=sys.stderr,
        )
    return _USAGE


if __name__ == "__main__":
    sys.exit(main(sys.argv))
