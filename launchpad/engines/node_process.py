"""A node in a process of its own: its description, and its end of the control channel."""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import os
import pickle
import signal
import socket
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from types import FrameType
from typing import Any

from launchpad import errors
from launchpad import runtime as lp_runtime
from launchpad.engines import channel as lp_channel
from launchpad.engines import serialization
from launchpad.nodes import node_thread, python
from rl_replicator.processes import signals

# A process whose launcher is gone ends within this many seconds.
_ORPHAN_SECS = 3.0
# SIGTERM to a whole program reaches its nodes before the launcher, which may get little CPU time,
# tells them to stop. A node waits this long for it, in seconds.
_LAUNCHER_SECS = 5.0


@dataclasses.dataclass(frozen=True)
class NodeSpec:
    """What a process needs to become a node.

    Attributes:
      label: Group of the node.
      index: Its index in the group.
      info: What all nodes of the program share.
      addresses: The published addresses at the start of the process.
      node: The pickled node.
      launch_config: The group's PythonProcess.
      argv: The launcher's command line, for the node's own use.
      flags: absl flags, of the launcher and then of the group; see serialization.
      environment: Environment variables; None for one that must not be set.
      directory: The working directory; if it does not exist, that of the process is kept.
      search_path: Directories from which Python imports first.
    """

    label: str
    index: int
    info: lp_runtime.ProgramInfo
    addresses: Mapping[str, str]
    node: bytes
    launch_config: python.PythonProcess
    argv: Sequence[str]
    flags: Sequence[bytes]
    environment: Mapping[str, str | None]
    directory: str
    search_path: Sequence[str]

    def enter(self) -> None:
        """Sets what the node's code finds in this process, before the code is loaded."""
        for name, value in self.environment.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value
        with contextlib.suppress(OSError):
            os.chdir(self.directory)
        import_from(self.search_path)


class Child:
    """Runs a node in the main thread of this process, for the launcher behind `channel`."""

    def __init__(self, channel: lp_channel.Channel, spec: NodeSpec):
        """Installs a handler of SIGTERM."""
        self._channel = channel
        self._spec = spec
        self._may_begin = threading.Event()
        self.runtime = lp_runtime.NodeRuntime(
            spec.label,
            spec.index,
            spec.info,
            dict(spec.addresses),
            self._tell,
            spec.launch_config,
        )
        self.runtime.interrupt = lambda: os.kill(os.getpid(), signal.SIGTERM)
        lp_runtime.set_process_runtime(self.runtime)
        signals.override(signal.SIGTERM, self._on_sigterm)

    def run(self) -> int:
        """Runs the node to its end, and reports failures; returns the exit status.

        The node begins when the launcher allows it: by then, a guard watches this process and ends
        what the node starts, even if the launcher is killed in the next moment. The threads and
        exit handlers of a node that has not failed may be saving: they have until the end of the
        program's notice period, when the launcher kills the process.
        """
        sys.argv[:] = self._spec.argv
        try:  # From the first message to `mark_ended`, a stop may raise SystemExit.
            threading.Thread(target=self._receive, name="control", daemon=True).start()
            threading.Thread(target=self._beat, name="heartbeat", daemon=True).start()
            self._may_begin.wait()
            # The node's modules may read flags, and may give those that they define their defaults.
            serialization.load_flags(*self._spec.flags)
            node = pickle.loads(self._spec.node)
            serialization.load_flags(*self._spec.flags)
            self.runtime.owned_keys = frozenset(a.key for a in node.addresses)
            node.execute()
            self.runtime.mark_ended()
        except BaseException as error:  # Whatever ends a node is reported to the launcher.
            self.runtime.mark_ended()  # A stop must not interrupt the exit handlers.
            if node_thread.is_failure(error, self.runtime):
                self._channel.send("failed", errors.ExceptionRecord.of(error))
                return 1
        self.runtime.set_state(lp_runtime.FINISHED)
        return 0

    def _on_sigterm(self, number: int, frame: FrameType | None) -> None:
        # The node may have left its run() by itself since the interrupt was sent.
        if self.runtime.was_interrupted and self.runtime.is_active:
            raise SystemExit(0)
        if not self.runtime.stop_event.is_set():
            threading.Thread(target=self._obey_stranger, name="sigterm", daemon=True).start()

    def _obey_stranger(self) -> None:
        """Ends this process after a SIGTERM that was sent to it alone, not to the whole program.

        The launcher sees a process that died, and applies the node's restart policy.
        """
        if not self.runtime.stop_event.wait(_LAUNCHER_SECS):
            # Only the main thread can restore a handler, and it may be busy forever.
            text = "the process was ended by SIGTERM"
            self._die(errors.ExceptionRecord(errors.PROCESS_DIED, text, ""))

    def _tell(self, kind: str, *details: Any) -> None:
        if kind == "stuck":  # Unlike a thread, this process can end itself.
            self._die(*details)
        self._channel.send(kind, *details)

    def _die(self, record: errors.ExceptionRecord) -> None:
        """Ends this process from any thread; the launcher treats it as one that died."""
        sys.stdout.flush()
        sys.stderr.flush()
        died = dataclasses.replace(record, type_name=errors.PROCESS_DIED, traceback_text="")
        self._channel.send("failed", died)
        os._exit(128 + signal.SIGTERM)

    def _beat(self) -> None:
        while self._channel.send("heartbeat"):
            time.sleep(lp_runtime.HEARTBEAT_SECS)

    def _receive(self) -> None:
        while (message := self._channel.receive()) is not None:
            kind, *details = message
            if kind == "begin":
                self._may_begin.set()
            elif kind == "address":
                self.runtime.book[details[0]] = details[1]
            elif kind == "release":
                self.runtime.release()
            elif kind == "stop":
                self.runtime.begin_stop()
        # The launcher is gone without having stopped this process, so it ends itself.
        self.runtime.begin_stop()
        time.sleep(_ORPHAN_SECS)
        if os.getpgid(0) == os.getpid():  # Kill what it has started, too, but nothing else.
            os.killpg(0, signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)


def import_from(search_path: Sequence[str]) -> None:
    """Makes this process import from these directories first, as its launcher does."""
    sys.path[:] = [*search_path, *(p for p in sys.path if p not in search_path)]


def run(connection: int, memory: int) -> int:
    """Becomes the node that the launcher describes, and runs it to its end.

    Args:
      connection: Descriptor of the control channel.
      memory: Descriptor of the memory file with a `NodeSpec`.

    Returns:
      The exit status.
    """
    # SIGINT does nothing: the launcher tells its processes to stop. It is not ignored, because
    # programs that this process executes or forks would inherit that.
    signals.override(signal.SIGINT, lambda number, frame: None)
    with os.fdopen(memory, "rb") as file:
        spec: NodeSpec = pickle.loads(file.read())
    spec.enter()
    return Child(lp_channel.Channel(socket.socket(fileno=connection)), spec).run()


def run_exit_handlers() -> None:
    """Does what an interpreter does at exit before it tears down modules.

    The teardown of TensorFlow takes seconds, and that of native servers sometimes crashes.
    """
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()


def leave(status: int) -> None:
    """Ends this process like an interpreter, but without the teardown of modules."""
    run_exit_handlers()
    os._exit(status)
