"""A child process and all processes that it starts."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from rl_replicator.processes import command_entry, signals
from rl_replicator.processes import guard as guards

_ENTRY = Path(command_entry.__file__)
# Replaces an exit status that is lost, because SIGCHLD is ignored or other code has read it.
UNKNOWN_STATUS = 255


def is_stopped(pid: int) -> bool:
    """Returns whether a signal such as SIGSTOP has stopped a process; False under a debugger."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False  # It has ended.
    # The process name, in parentheses, may contain any characters.
    return stat.rpartition(")")[2].split()[0] == "T"


def keep_statuses() -> None:
    """Makes the kernel keep the exit statuses of children; does nothing outside the main thread.

    They are lost in a process that ignores SIGCHLD, a setting that it may have inherited.
    """
    is_main = threading.current_thread() is threading.main_thread()
    if is_main and signal.getsignal(signal.SIGCHLD) == signal.SIG_IGN:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)


class ProcessGroup:
    """A child process, the leader of its own process group, and the processes that it starts.

    When the leader ends, the rest of the group is killed. The leader is reaped only afterwards:
    until then, the kernel gives its id to no other process or group.

    Any thread may send signals; only a single thread may call `poll` and `wait`.

    Attributes:
      pid: process id of the leader, and id of the group.
    """

    def __init__(self, pid: int):
        """Takes charge of a child process.

        Args:
          pid: process id of a child that leads a group.
        """
        self.pid = pid
        self._guard: guards.Guard | None = None
        self._lock = threading.Lock()
        self._code: int | None = None

    def guarded_by(self, guard: guards.Guard) -> None:
        """Makes a guard kill the group if this process dies."""
        self._guard = guard
        guard.watch(self.pid)

    @classmethod
    def start(
        cls,
        command: Sequence[str],
        environment: Mapping[str, str],
        output: IO[bytes] | int,
    ) -> ProcessGroup:
        """Starts a command. The kernel kills it when the calling thread ends.

        If there is no such command, the process ends with status 2 and a message in its output. If
        this process ignores SIGCHLD, it no longer does afterwards; see `keep_statuses`.

        Args:
          command: the command and its arguments.
          environment: all environment variables except `signals.SUPERVISED`, which is added.
          output: file or descriptor for both standard output and standard error.

        Raises:
          OSError: if this machine cannot start another process.
        """
        keep_statuses()
        process = subprocess.Popen(
            [sys.executable, "-IS", str(_ENTRY), str(os.getpid()), *command],
            env={**environment, signals.SUPERVISED: "1"},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            # Ctrl-C in the terminal reaches only this process, which asks the others to end.
            start_new_session=True,
        )
        process.returncode = 0  # Makes `subprocess` leave reaping to this class.
        return cls(process.pid)

    @property
    def is_stopped(self) -> bool:
        """Whether a signal such as SIGSTOP has stopped the leader; False under a debugger."""
        return is_stopped(self.pid)

    def poll(self) -> int | None:
        """Returns the leader's exit status, or minus the signal that killed it; None if alive.

        Returns `UNKNOWN_STATUS` if the leader has ended and the kernel has lost its status.
        """
        if self._code is None and self._has_ended(os.WNOHANG):
            self._reap()
        return self._code

    def wait(self) -> int:
        """Waits until the leader has ended; returns the result of `poll`."""
        if self._code is None:
            self._has_ended(0)
            self._reap()
        assert self._code is not None
        return self._code

    def _has_ended(self, flags: int) -> bool:
        """Whether the leader has ended; waits until it has, unless `flags` has WNOHANG."""
        try:
            found = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT | flags)
        except ChildProcessError:
            return True
        return found is not None

    def send_signal(self, number: int) -> None:
        """Sends a signal to the leader unless it has ended."""
        with self._lock:
            if self._code is None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(self.pid, number)

    def kill(self) -> None:
        """Kills the leader and the rest of its group."""
        with self._lock:
            self._kill()

    def _reap(self) -> None:
        with self._lock:
            self._kill()
            self._code = self._exit_code()
        if self._guard is not None:
            self._guard.forget(self.pid)

    def _exit_code(self) -> int:
        """Returns the exit status of the leader, which has ended, and frees its process id."""
        try:
            return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        except ChildProcessError:
            return UNKNOWN_STATUS

    def _kill(self) -> None:
        if self._code is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
