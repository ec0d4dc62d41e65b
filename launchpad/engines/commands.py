"""A command of the engine of processes, as the supervisor sees it."""

from __future__ import annotations

import os
import signal
import threading

from launchpad import errors
from launchpad import runtime as lp_runtime
from launchpad.engines import member as lp_member
from launchpad.engines import supervisor as lp_supervisor
from launchpad.nodes import command
from rl_replicator.processes import guard, output, process_group

# Longest wait for the last lines of a command, in case nobody reads the output.
_OUTPUT_SECS = 20.0


class CommandWorker:
    """A command in a process of its own, which leads a session of its own."""

    is_killable = True
    silent_secs = 0.0
    is_stopped = False

    def __init__(
        self,
        node: command.CommandNode,
        member: lp_member.Member,
        supervisor: lp_supervisor.Supervisor,
        environment: dict[str, str],
        watchman: guard.Guard,
    ):
        """Prepares the worker; `start()` starts the command.

        Args:
          node: The node.
          member: The same node, as the supervisor sees it.
          supervisor: Receives the node's events.
          environment: All environment variables of the command.
          watchman: Kills the command if this process dies.
        """
        self._node = node
        self._name = member.name
        self._supervisor = supervisor
        self._environment = environment
        self._guard = watchman
        self._group: process_group.ProcessGroup | None = None
        self._must_end = False
        self._life = threading.Lock()

    @property
    def pid(self) -> int | None:
        """Process id of the command; None before it is started."""
        return self._group.pid if self._group is not None else None

    def start(self) -> None:
        """Starts the command, in a thread that lives as long: the kernel kills it otherwise."""
        threading.Thread(target=self._live, name=self._name, daemon=True).start()

    def notify_stop(self) -> None:
        """Asks the command to end, unless it serves others until the end."""
        if not self._node.stops_last:
            self._signal(signal.SIGTERM)

    def notify_ready(self) -> None:
        """Does nothing: a command knows nothing of the others."""

    def release(self) -> None:
        """Asks the command to end."""
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """Kills the command and what it has started."""
        self._signal(signal.SIGKILL)

    def send_address(self, key: str, address: str) -> None:
        """Does nothing: a command knows nothing of the others."""

    def close(self) -> None:
        """Does nothing: nothing is left of a command."""

    def end_frozen(self, secs: float) -> None:
        """Does nothing; never called, because `silent_secs` is 0."""

    def _signal(self, number: int) -> None:
        with self._life:
            self._must_end = True
            if self._group is None:
                return  # `_live` sees it.
            if number == signal.SIGKILL:
                self._group.kill()
                return
            self._group.send_signal(number)
            self._group.send_signal(signal.SIGCONT)  # A stopped process would not handle SIGTERM.

    def _live(self) -> None:
        try:
            record = self._run()
        except Exception as error:  # For example too many open files.
            record = errors.ExceptionRecord.of(error)
        self._supervisor.post_ended(self, None if self._must_end else record)

    def _run(self) -> errors.ExceptionRecord | None:
        reading, writing = os.pipe()
        write = output.prefixed(f"{self._name} | ")
        copier = output.LineCopier(write, {"stdout": os.fdopen(reading, "rb")})
        with self._life, os.fdopen(writing, "wb") as pipe:
            if self._must_end:
                return None
            group = self._group = process_group.ProcessGroup.start(
                self._node.command, self._environment, pipe, self._guard
            )
        is_server = self._node.stops_last
        state = lp_runtime.SERVING if is_server else lp_runtime.RUNNING
        self._supervisor.post_state(self, state)
        code = group.wait()
        copier.drain(_OUTPUT_SECS)
        return self._record_of(code) if code else None

    def _record_of(self, code: int) -> errors.ExceptionRecord:
        is_final = code in self._node.final_statuses
        is_collateral = code == self._node.collateral_status
        message = "lost another process" if is_collateral else output.describe_end(code)
        return errors.ExceptionRecord(
            errors.COMMAND_FAILED if is_final else errors.PROCESS_DIED,
            f"{message} (see its error)" if is_final else message,
            "",
            is_collateral=is_collateral,
            exit_code=code,
        )
