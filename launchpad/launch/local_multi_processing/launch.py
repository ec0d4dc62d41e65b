"""The engine that runs every node as a process of this machine."""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
import time
from typing import IO

from launchpad import errors
from launchpad.launch import channel as lp_channel
from launchpad.launch import child, engine, remote_worker
from launchpad.launch import member as lp_member
from launchpad.launch import supervisor as lp_supervisor
from launchpad.launch.local_multi_processing import guard, placement

# Output of a process that has ended is awaited this long, in seconds.
_OUTPUT_SECS = 1.0

_output_lock = threading.Lock()


class ProcessEngine:
    """Makes processes of this machine."""

    def __init__(self, launch: engine.Launch):
        """Pickles the nodes and hands out the GPUs: an error is raised before anything starts."""
        self._launch = launch
        self._nodes = engine.dump_nodes(launch)
        self._environments = placement.environments(launch.members)
        self._guard = guard.Guard()

    def make_worker(
        self, member: lp_member.Member, supervisor: lp_supervisor.Supervisor
    ) -> ProcessWorker:
        """Returns a new incarnation of a node, not started yet."""
        spec = engine.make_spec(self._launch, member, self._nodes[member.name])
        environment = self._environments[member.name]
        return ProcessWorker(member, supervisor, spec, environment, self._guard)

    def close(self) -> None:
        """Ends the guard; all nodes have ended."""
        self._guard.close()


class ProcessWorker(remote_worker.RemoteWorker):
    """A node in a fresh interpreter, in a session of its own."""

    def __init__(
        self,
        member: lp_member.Member,
        supervisor: lp_supervisor.Supervisor,
        spec: child.NodeSpec,
        environment: dict[str, str],
        watchman: guard.Guard,
    ):
        super().__init__(member, supervisor)
        self._spec = spec
        self._environment = environment
        self._guard = watchman
        self._process: subprocess.Popen[bytes] | None = None
        self._pumps: list[threading.Thread] = []

    @property
    def pid(self) -> int | None:
        """Process id of the node; None before it is started."""
        return self._process.pid if self._process else None

    def start(self) -> None:
        """Starts the interpreter and sends it the description of the node."""
        # Called by the supervisor's thread, which outlives the process: the kernel kills a child
        # when the thread that started it ends.
        ours, theirs = socket.socketpair()
        memory = os.memfd_create("launchpad")
        with os.fdopen(memory, "wb", closefd=False) as file:
            file.write(pickle.dumps((os.getpid(), os.environ.get("PYTHONPATH"), self._spec)))
        os.lseek(memory, 0, os.SEEK_SET)
        try:
            self._process = subprocess.Popen(
                self._command(theirs.fileno(), memory),
                env={
                    **os.environ,
                    "PYTHONUNBUFFERED": "1",
                    **self._environment,
                    "PYTHONPATH": os.pathsep.join(engine.search_path()),
                },
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                pass_fds=(theirs.fileno(), memory),
                start_new_session=True,  # The terminal's Ctrl-C goes to the launcher alone.
            )
        except OSError as error:
            ours.close()
            self.report_end(errors.ExceptionRecord.of(error))
            return
        finally:
            theirs.close()
            os.close(memory)
        self._guard.watch(self._process.pid)
        self.attach(lp_channel.Channel(ours))
        for stream, target in ((self._process.stdout, "stdout"), (self._process.stderr, "stderr")):
            self._pumps.append(self._thread(self._pump, target, stream, target))
        self._thread(self._await_end, "wait")

    def kill(self) -> None:
        """Kills the process and what it has started."""
        if self._process is None or self._process.returncode is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)  # What it started itself goes too.

    def _command(self, channel: int, memory: int) -> list[str]:
        return [
            self._spec.launch_config.absolute_interpreter_path,
            *subprocess._args_from_interpreter_flags(),  # type: ignore[attr-defined]
            "-P",  # The working directory must not come before what the launcher imports from.
            "-m",
            "launchpad.launch.process_entry",
            self.name,
            str(channel),
            str(memory),
        ]

    def _await_end(self) -> None:
        assert self._process is not None
        pid = self._process.pid
        # Not reaped yet: until then nobody else's group can have this number.
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)  # What it started must not outlive it.
        code = self._process.wait()
        self._guard.forget(pid)
        deadline = time.monotonic() + _OUTPUT_SECS
        for pump in self._pumps:
            pump.join(max(0.0, deadline - time.monotonic()))
        death = errors.ExceptionRecord(errors.PROCESS_DIED, _describe(code), "") if code else None
        self.report_end(death)

    def _pump(self, stream: IO[bytes], target: str) -> None:
        for line in iter(stream.readline, b""):
            text = line.decode(errors="replace")
            text = text if text.endswith("\n") else text + "\n"
            try:
                with _output_lock:
                    out = getattr(sys, target)
                    out.write(f"[{self.name}] {text}")
                    out.flush()
            except (OSError, ValueError):
                pass  # Nobody reads the launcher's output; go on emptying the pipe.


def _describe(code: int) -> str:
    if code >= 0:
        return f"the process ended with status {code}"
    try:
        return f"the process was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"the process was killed by signal {-code}"
