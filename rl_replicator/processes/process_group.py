"""A child process and all that it starts."""

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
# In place of an exit status that is lost, because SIGCHLD is ignored or somebody else has asked.
UNKNOWN_STATUS = 255


def keep_statuses() -> None:
    """Lets the kernel keep the exit statuses of children; does nothing off the main thread.

    In a process that ignores SIGCHLD, as it may have inherited, all of them are lost.
    """
    is_main = threading.current_thread() is threading.main_thread()
    if is_main and signal.getsignal(signal.SIGCHLD) == signal.SIG_IGN:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)


class ProcessGroup:
    """A child process, the leader of a group of its own, and the processes that it has started.

    What the leader has started is killed when the leader ends. The leader is reaped only
    afterwards: until then, the kernel gives its number to no other process and to no other group.

    Any thread may send signals; a single thread calls `poll` and `wait`.

    Attributes:
      pid: process id of the leader, and the number of the group.
    """

    def __init__(self, pid: int, guard: guards.Guard | None = None):
        """Takes charge of a child process.

        Args:
          pid: process id of a child that leads a group.
          guard: kills the group if this process dies; None for none.
        """
        self.pid = pid
        self._guard = guard
        self._lock = threading.Lock()
        self._code: int | None = None
        if guard is not None:
            guard.watch(pid)

    @classmethod
    def start(
        cls,
        command: Sequence[str],
        environment: Mapping[str, str],
        output: IO[bytes],
        guard: guards.Guard | None = None,
    ) -> ProcessGroup:
        """Starts a command. The kernel kills it when the calling thread ends.

        It ends with status 2, and a message in its output, if there is no such command. If this
        process ignores SIGCHLD, it does so no longer: see `keep_statuses`.

        Args:
          command: the command and its arguments.
          environment: all environment variables but `signals.SUPERVISED`, which is added.
          output: file for both standard output and standard error.
          guard: see the constructor.

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
            # Ctrl-C of the terminal reaches this process only, which tells the others.
            start_new_session=True,
        )
        process.returncode = 0  # Makes `subprocess` leave the reaping to us.
        return cls(process.pid, guard)

    @property
    def is_stopped(self) -> bool:
        """Whether a signal such as SIGSTOP has stopped the leader; False under a debugger."""
        try:
            stat = Path(f"/proc/{self.pid}/stat").read_text()
        except OSError:
            return False  # It has ended.
        # The name, in parentheses, may contain anything.
        return stat.rpartition(")")[2].split()[0] == "T"

    def poll(self) -> int | None:
        """Returns the leader's exit status, or minus the signal that killed it; None if alive.

        It is `UNKNOWN_STATUS` for a leader that has ended if the kernel knows nothing of it.
        """
        if self._code is None and self._has_ended(os.WNOHANG):
            self._reap()
        return self._code

    def wait(self) -> int:
        """Waits for the leader's end; returns what `poll` returns then."""
        if self._code is None:
            self._has_ended(0)
            self._reap()
        assert self._code is not None
        return self._code

    def _has_ended(self, flags: int) -> bool:
        """Asks the kernel; waits for the end unless `flags` has WNOHANG."""
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
        """Kills the leader and all that it has started."""
        with self._lock:
            self._kill()

    def _reap(self) -> None:
        with self._lock:
            self._kill()
            try:
                _, status = os.waitpid(self.pid, 0)
            except ChildProcessError:
                self._code = UNKNOWN_STATUS
            else:
                self._code = os.waitstatus_to_exitcode(status)
        if self._guard is not None:
            self._guard.forget(self.pid)

    def _kill(self) -> None:
        if self._code is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
