"""A node in a process of its own: its description, and its side of the control channel."""

from __future__ import annotations

import atexit
import dataclasses
import os
import pickle
import signal
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from types import FrameType

from launchpad import address_book as lp_address_book
from launchpad import errors
from launchpad import runtime as lp_runtime
from launchpad.engines import channel as lp_channel
from launchpad.engines import serialization
from launchpad.nodes import node_thread, resources
from rl_replicator.processes import signals

# A process whose launcher is gone ends within this many seconds.
_ORPHAN_SECS = 3.0
# SIGTERM to a whole program reaches its nodes before the launcher tells them to stop. So a node
# that gets one waits this long for the launcher, in seconds, once that is known to be running.
_LAUNCHER_SECS = 3.0
# Interval at which it checks that, in seconds.
_LOOK_SECS = 0.1
# The threads and exit handlers of a failed node have this long to end, in seconds.
_FAILED_SECS = 5.0
_BY_SIGTERM = "the process was ended by SIGTERM"


@dataclasses.dataclass(frozen=True)
class NodeSpec:
    """What a process needs to become a node.

    Attributes:
      label: Group of the node.
      index: Its index in the group.
      info: What all nodes of the program share.
      addresses: Address book at the start of the process.
      node: The pickled node.
      launch_config: The group's PythonProcess.
      argv: The launcher's command line, for the node's own use.
      flags: absl flags, of the launcher and then of the group; see serialization.
    """

    label: str
    index: int
    info: lp_runtime.ProgramInfo
    addresses: Mapping[str, str]
    node: bytes
    launch_config: resources.PythonProcess
    argv: Sequence[str]
    flags: Sequence[bytes]


class Child:
    """Runs a node in the main thread of this process, for the launcher behind `channel`."""

    def __init__(self, channel: lp_channel.Channel, spec: NodeSpec):
        """Installs a handler of SIGTERM, and starts to receive messages."""
        self._channel = channel
        self._spec = spec
        self._book = lp_address_book.AddressBook(spec.addresses)
        self._may_begin = threading.Event()
        self._launcher_runs = threading.Event()
        self.runtime = lp_runtime.NodeRuntime(
            spec.label,
            spec.index,
            spec.info,
            self._book,
            lp_runtime.Callbacks(
                publish=lambda key, address: channel.send("publish", key, address),
                set_state=lambda state: channel.send("state", state),
                request_stop=lambda: channel.send("stop"),
                interrupt=lambda: os.kill(os.getpid(), signal.SIGTERM),
                give_up=self._give_up,
                tell_failure=lambda error: channel.send("failed", errors.ExceptionRecord.of(error)),
            ),
            spec.launch_config,
        )
        lp_runtime.set_process_runtime(self.runtime)
        signals.override(signal.SIGTERM, self._on_sigterm)
        threading.Thread(target=self._receive, name="control", daemon=True).start()
        threading.Thread(target=self._beat, name="heartbeat", daemon=True).start()

    def run(self) -> int:
        """Runs the node to its end, and reports failures; returns the exit status.

        The node begins when the launcher allows it: by then, a guard watches this process and ends
        what the node starts, even if the launcher is killed in the next moment.
        """
        sys.argv[:] = self._spec.argv
        status = self._execute()
        if status:
            threading.Thread(target=self._end_failed, name="linger", daemon=True).start()
        # The threads and exit handlers of a node that has not failed may be saving: they have until
        # the end of the program's notice period, when the launcher kills the process.
        return status

    def _execute(self) -> int:
        try:
            self._may_begin.wait()
            serialization.load_flags(*self._spec.flags)
            node = pickle.loads(self._spec.node)
            self.runtime.owned_keys = frozenset(a.key for a in node.addresses)
            node.execute()
        except BaseException as error:  # Whatever ends a node is reported to the launcher.
            self.runtime.mark_ended()  # A stop must not interrupt the exit handlers.
            record = node_thread.failure_of(error, self.runtime)
            if record is not None:
                self._channel.send("failed", record)
                return 1
        self.runtime.set_state(lp_runtime.FINISHED)
        return 0

    def _end_failed(self) -> None:
        """Ends the process of a node that has failed, even if a thread of the node keeps running.

        The launcher treats the node as failed, and restarts it, only when its process has ended.
        """
        time.sleep(_FAILED_SECS)
        threads = threading.enumerate()
        names = [t.name for t in threads if not t.daemon and t is not threading.main_thread()]
        lp_runtime.logger.warning(
            "%s has failed, and was killed %g s later: %s did not end",
            self.runtime.name,
            _FAILED_SECS,
            f"thread {', '.join(names)}" if names else "an exit handler",
        )
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(1)

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
        self._channel.send("ping")
        # A launcher that gets no CPU time has not handled its own SIGTERM either.
        while not self.runtime.stop_event.wait(_LOOK_SECS) and not self._launcher_runs.is_set():
            pass
        if not self.runtime.stop_event.wait(_LAUNCHER_SECS):
            # Only the main thread can restore a handler, and it may be busy forever.
            self._die(errors.ExceptionRecord(errors.PROCESS_DIED, _BY_SIGTERM, ""))

    def _give_up(self, error: Exception, stuck_secs: float) -> None:
        self._die(errors.ExceptionRecord.of_stuck(error, stuck_secs))

    def _die(self, record: errors.ExceptionRecord) -> None:
        """Ends this process from any thread; the launcher treats it as one that died."""
        sys.stdout.flush()
        sys.stderr.flush()
        self._channel.send("failed", record)
        os._exit(128 + signal.SIGTERM)

    def _beat(self) -> None:
        while self._channel.send_or_drop("heartbeat"):
            time.sleep(lp_runtime.HEARTBEAT_SECS)

    def _receive(self) -> None:
        while (message := self._channel.receive()) is not None:
            kind, *details = message
            if kind == "begin":
                self._may_begin.set()
            elif kind == "address":
                self._book.publish(*details)
            elif kind == "pong":
                self._launcher_runs.set()
            elif kind == "ready":
                self.runtime.ready_event.set()
            elif kind == "release":
                self.runtime.release()
            elif kind == "stop":
                # Stop handlers are user code, and may block.
                notify = self.runtime.notify_stop_in_thread
                threading.Thread(target=notify, name="stop", daemon=True).start()
        # The launcher is gone without having stopped this process, so it ends itself.
        threading.Thread(target=self.runtime.notify_stop_in_thread, daemon=True).start()
        time.sleep(_ORPHAN_SECS)
        _kill_own_group()


def import_from(search_path: Sequence[str]) -> None:
    """Makes this process import from these directories first, as its launcher does."""
    sys.path[:] = [*search_path, *(p for p in sys.path if p not in search_path)]


def _kill_own_group() -> None:
    """Kills this process and all that it started, but no other processes."""
    if os.getpgid(0) == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


def run_exit_handlers() -> None:
    """Does what an interpreter does at exit before it tears down modules.

    The teardown of TensorFlow takes seconds, and that of native servers sometimes crashes.
    """
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
