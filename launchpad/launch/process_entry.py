"""The main module of a node's process: `python -m launchpad.launch.process_entry NAME FD FD`."""

from __future__ import annotations

import atexit
import ctypes
import os
import pickle
import signal
import socket
import sys
import threading
import time

_PR_SET_PDEATHSIG = 1

# A process whose launcher is gone ends within this many seconds.
_ORPHAN_SECS = 3.0
# A finished node gets this long for its interpreter to end once the program stops, in seconds.
_LINGER_SECS = 2.0


def _die_with_parent() -> None:
    """Makes the kernel kill this process when the launcher dies, whatever it is doing then."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


class _Child:
    """The node's side of the control channel."""

    def __init__(self, connection: socket.socket, spec) -> None:
        from launchpad import address_book as lp_address_book
        from launchpad import runtime as lp_runtime
        from launchpad.launch import channel as lp_channel

        self._channel = lp_channel.Channel(connection)
        self._book = lp_address_book.AddressBook(spec.addresses)
        self.runtime = lp_runtime.NodeRuntime(
            spec.label,
            spec.index,
            spec.info,
            self._book,
            lp_runtime.Callbacks(
                publish=lambda key, address: self._channel.send("publish", key, address),
                set_state=lambda state: self._channel.send("state", state),
                request_stop=lambda: self._channel.send("stop"),
                interrupt=lambda: os.kill(os.getpid(), signal.SIGTERM),
            ),
            spec.launch_config,
        )
        lp_runtime.set_process_runtime(self.runtime)
        signal.signal(signal.SIGTERM, self._on_sigterm)
        threading.Thread(target=self._receive, name="control", daemon=True).start()

    def run(self, node_data: bytes) -> int:
        """Runs the node; returns the exit status."""
        from launchpad import runtime as lp_runtime
        from launchpad.launch.local_multi_threading import launch as threads

        try:
            node = pickle.loads(node_data)
            self.runtime.owned_keys = frozenset(a.key for a in node.addresses)
            node.execute()
        except BaseException as error:  # Whatever ends a node must reach the launcher.
            record = threads.failure_of(error, self.runtime)
            if record is not None:
                self._channel.send("failed", record)
                return 1
        self.runtime.set_state(lp_runtime.FINISHED)
        return 0

    def linger(self) -> None:
        """Ends the process soon after the stop, even if the interpreter's end hangs."""
        self.runtime.stop_event.wait()
        time.sleep(_LINGER_SECS)
        os._exit(0)

    def _on_sigterm(self, number: int, frame) -> None:
        if self.runtime.was_interrupted:
            raise SystemExit(0)
        if not self.runtime.stop_event.is_set():
            self.runtime.stop()  # Sent by somebody else, who wants the program to end in order.

    def _receive(self) -> None:
        while (message := self._channel.receive()) is not None:
            kind, *details = message
            if kind == "address":
                self._book.publish(*details)
            elif kind == "release":
                self.runtime.release()
            elif kind == "stop":
                # Stop handlers are the users' code, and may block.
                threading.Thread(target=self.runtime.notify_stop, name="stop", daemon=True).start()
        # The launcher is gone without a word: nobody would end this process.
        threading.Thread(target=self.runtime.notify_stop, daemon=True).start()
        time.sleep(_ORPHAN_SECS)
        os.killpg(0, signal.SIGKILL)


def main(argv: list[str]) -> int:
    """Becomes the node that the launcher describes in a memory file."""
    _die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    connection = socket.socket(fileno=int(argv[2]))
    with os.fdopen(int(argv[3]), "rb") as memory:
        spec = pickle.loads(memory.read())
    if os.getppid() != spec.parent_pid:
        return 1  # The launcher died before the kernel was told to watch it.
    os.environ.pop("PYTHONPATH", None)
    if spec.python_path is not None:
        os.environ["PYTHONPATH"] = spec.python_path
    sys.argv[:] = spec.argv
    from launchpad.launch import serialization

    child = _Child(connection, spec)
    serialization.load_flags(spec.flags)
    status = child.run(spec.node)
    threading.Thread(target=child.linger, name="linger", daemon=True).start()
    return status


def _exit(status: int) -> None:
    """Ends the process after its threads and exit handlers, but without tearing modules down.

    The teardown of TensorFlow takes seconds, and that of native servers crashes at times.
    """
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    _exit(main(sys.argv))
