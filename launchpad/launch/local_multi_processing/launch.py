"""The engine that runs every node as a process of this machine."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from typing import IO, Any

from launchpad import address_book as lp_address_book
from launchpad import errors
from launchpad import runtime as lp_runtime
from launchpad.launch import channel as lp_channel
from launchpad.launch import member as lp_member
from launchpad.launch import serialization
from launchpad.launch import supervisor as lp_supervisor
from launchpad.nodes import base
from launchpad.nodes.python import local_multi_processing

# Output of a process that has ended is awaited this long, in seconds.
_OUTPUT_SECS = 1.0

_output_lock = threading.Lock()


@dataclasses.dataclass(frozen=True)
class ChildSpec:
    """What a process needs to become a node; it travels through a memory file.

    Attributes:
      label: Group of the node.
      index: Its index in the group.
      info: What all nodes of the program share.
      addresses: Address book at the start of the process.
      node: The pickled node.
      launch_config: The group's PythonProcess.
      argv: The launcher's command line, for the node's own use.
      flags: absl flags; see serialization.
      python_path: The launcher's PYTHONPATH, to be restored, or None.
      parent_pid: The launcher.
    """

    label: str
    index: int
    info: lp_runtime.ProgramInfo
    addresses: Mapping[str, str]
    node: bytes
    launch_config: local_multi_processing.PythonProcess
    argv: Sequence[str]
    flags: bytes
    python_path: str | None
    parent_pid: int


def pickle_node(node: base.Node, label: str, index: int) -> bytes:
    """Pickles a node for another process.

    Raises:
      TypeError: it holds something that does not pickle.
    """
    try:
        return serialization.dumps(node)
    except Exception as error:
        raise TypeError(
            f"node {label}/{index} can't be sent to a process: {error}. Pass a function that makes "
            "the object, or wrap it in lp.Deferred, so that it is made in the node"
        ) from error


class ProcessWorker:
    """A node in a fresh interpreter, in a session of its own."""

    def __init__(
        self,
        member: lp_member.Member,
        supervisor: lp_supervisor.Supervisor,
        info: lp_runtime.ProgramInfo,
        book: lp_address_book.AddressBook,
        node: bytes,
    ):
        self._name = member.name
        self._supervisor = supervisor
        self._config = member.launch_config or local_multi_processing.PythonProcess()
        self._spec = ChildSpec(
            label=member.label,
            index=member.index,
            info=info,
            addresses=book.snapshot(),
            node=node,
            launch_config=self._config,
            argv=list(sys.argv),
            flags=serialization.dump_flags(self._config.args),
            python_path=os.environ.get("PYTHONPATH"),
            parent_pid=os.getpid(),
        )
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: lp_channel.Channel | None = None
        self._reader: threading.Thread | None = None
        self._pumps: list[threading.Thread] = []
        self._record: errors.ExceptionRecord | None = None
        self._has_finished = False

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    def start(self) -> None:
        # Called by the supervisor's thread, which outlives the process: the kernel kills a child
        # when the thread that started it ends.
        ours, theirs = socket.socketpair()
        memory = os.memfd_create("launchpad")
        with os.fdopen(memory, "wb", closefd=False) as file:
            file.write(pickle.dumps(self._spec))
        os.lseek(memory, 0, os.SEEK_SET)
        try:
            self._process = subprocess.Popen(
                self._command(theirs.fileno(), memory),
                env=self._environment(),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                pass_fds=(theirs.fileno(), memory),
                start_new_session=True,  # The terminal's Ctrl-C goes to the launcher alone.
            )
        except OSError as error:
            ours.close()
            self._supervisor.post_ended(self, errors.ExceptionRecord.of(error))
            return
        finally:
            theirs.close()
            os.close(memory)
        self._channel = lp_channel.Channel(ours)
        self._reader = self._thread(self._read, "control")
        for stream, target in ((self._process.stdout, "stdout"), (self._process.stderr, "stderr")):
            self._pumps.append(self._thread(self._pump, target, stream, target))
        self._thread(self._await_end, "wait")

    def notify_stop(self) -> None:
        self._send("stop")

    def release(self) -> None:
        self._send("release")

    def send_address(self, key: str, address: str) -> None:
        self._send("address", key, address)

    def kill(self) -> None:
        if self._process is None or self._process.returncode is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)  # What it started itself goes too.

    def close(self) -> None:
        for pump in self._pumps:
            pump.join(_OUTPUT_SECS)
        if self._channel is not None:
            self._channel.close()

    # -- start-up ---------------------------------------------------------------------------------

    def _command(self, channel: int, memory: int) -> list[str]:
        return [
            self._config.absolute_interpreter_path,
            *subprocess._args_from_interpreter_flags(),  # type: ignore[attr-defined]
            "-P",  # The working directory must not come before what the launcher imports from.
            "-m",
            "launchpad.launch.process_entry",
            self._name,
            str(channel),
            str(memory),
        ]

    def _environment(self) -> dict[str, str]:
        ours = {str(k): str(v) for k, v in self._config.env.items()}
        path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
        return {**os.environ, "PYTHONUNBUFFERED": "1", **ours, "PYTHONPATH": path}

    # -- threads ----------------------------------------------------------------------------------

    def _thread(self, target: Any, role: str, *args: Any) -> threading.Thread:
        thread = threading.Thread(
            target=target, args=args, name=f"{self._name} {role}", daemon=True
        )
        thread.start()
        return thread

    def _send(self, *message: Any) -> None:
        if self._channel is not None:
            self._channel.send(*message)

    def _read(self) -> None:
        assert self._channel is not None
        while (message := self._channel.receive()) is not None:
            kind, *details = message
            if kind == "state":
                self._has_finished |= details[0] == lp_runtime.FINISHED
                self._supervisor.post_state(self, details[0])
            elif kind == "publish":
                self._supervisor.post_publish(*details)
            elif kind == "stop":
                self._supervisor.post_stop()
            elif kind == "failed":
                self._record = details[0]

    def _await_end(self) -> None:
        assert self._process is not None and self._reader is not None
        code = self._process.wait()
        self._reader.join(_OUTPUT_SECS)  # A last message may be on its way.
        record = self._record
        if record is None and code != 0 and not self._has_finished:
            record = errors.ExceptionRecord(errors.PROCESS_DIED, _describe(code), "")
        self._supervisor.post_ended(self, record)

    def _pump(self, stream: IO[bytes], target: str) -> None:
        for line in iter(stream.readline, b""):
            text = line.decode(errors="replace")
            text = text if text.endswith("\n") else text + "\n"
            try:
                with _output_lock:
                    out = getattr(sys, target)
                    out.write(f"[{self._name}] {text}")
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
