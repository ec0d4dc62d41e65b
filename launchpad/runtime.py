"""The state of a running node: its name, its stop event, and the addresses of the other nodes.

Each node of a launched program has one `NodeRuntime`. The launcher has one too, so that `lp.stop()`
and handles also work there. `current()` finds the runtime of the calling code: by thread, then by
process, then the program launched last from this process. A thread started by a node has no runtime
of its own: where nodes are threads, it belongs to the program launched last.
"""

from __future__ import annotations

import dataclasses
import enum
import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from launchpad import errors
from rl_replicator.processes import ports

logger = logging.getLogger("launchpad")

# Interval at which a long wait logs its reason, in seconds.
WAIT_MESSAGE_SECS = 10.0

# Interval of the heartbeats by which a node's process shows that it is not frozen, in seconds.
HEARTBEAT_SECS = 2.0

# Pause between two looks for an address that is not published yet, in seconds.
_POLL_SECS = 0.02

# Delay before a node that called lp.stop() itself is interrupted, in seconds.
_OWN_STOP_SECS = 1.0


class LaunchType(enum.Enum):
    """How a program is run: `lp.launch(program, launch_type=...)` or `--lp_launch_type`."""

    LOCAL_MULTI_THREADING = "local_mt"  # Every node is a thread of this process.
    LOCAL_MULTI_PROCESSING = "local_mp"  # Every node is a process of this machine.
    TEST_MULTI_THREADING = "test_mt"  # Threads; signals are not handled, exit stops the program.
    TEST_MULTI_PROCESSING = "test_mp"  # Processes; likewise.
    LOCAL_DOCKER = "local_docker"  # Upstream's name; refused by `launch`.
    VERTEX_AI = "vertex_ai"  # Upstream's name; refused by `launch`.
    RAY = "ray"  # Every node is placed by Ray.


_LOCAL = (LaunchType.LOCAL_MULTI_THREADING, LaunchType.LOCAL_MULTI_PROCESSING)
_TEST = (LaunchType.TEST_MULTI_THREADING, LaunchType.TEST_MULTI_PROCESSING)


def is_local_launch(launch_type: LaunchType | str) -> bool:
    """True for threads and processes of this machine, excluding the test types."""
    return LaunchType(launch_type) in _LOCAL


def is_local_launch_or_test(launch_type: LaunchType | str) -> bool:
    """True for threads and processes of this machine, including the test types."""
    return LaunchType(launch_type) in _LOCAL + _TEST


class LaunchContext:
    """Information for a node's code about its launch; created when the node starts.

    Attributes:
      launch_type: How the program was launched.
      launch_config: The group's entry in `local_resources`, or else an `lp.PythonProcess()`; None
        in the launching process.
      program_stopper: Callable that stops the program.
    """

    def __init__(
        self,
        launch_type: LaunchType,
        launch_config: Any,
        program_stopper: Callable[..., None],
    ):
        self.launch_type = launch_type
        self.launch_config = launch_config
        self.program_stopper = program_stopper


@dataclasses.dataclass(frozen=True)
class ProgramInfo:
    """What all nodes of one launched program share.

    Attributes:
      program_id: Unique per launch.
      secret: Shared by all nodes; signs their calls and answers, and is never sent with them.
      launch_type: How the program was launched.
      host: IP address that servers bind to and are reached at.
      owners: Address key -> "label/index" of the node that owns it, for messages.
    """

    program_id: str
    secret: bytes
    launch_type: LaunchType
    host: str
    owners: Mapping[str, str]


# States of a node, in order. A node in a PASSIVE state has no work of its own to do.
STARTING, RUNNING, SERVING, FINISHED, ENDED = "starting", "running", "serving", "finished", "ended"
STATES = (STARTING, RUNNING, SERVING, FINISHED, ENDED)
PASSIVE = STATES[2:]


class NodeRuntime:
    """One node's view of its program.

    Attributes:
      is_node: False for the runtime of the launching process.
      stop_event: Set when the program stops: the node should leave `run()`.
      release_event: Set when this node's server is no longer needed: it should stop serving.
      was_interrupted: True once SystemExit was raised in the node's main thread.
      interrupt: Raises SystemExit in the node's main thread, unless the node is no longer active
        when that becomes possible; does nothing until whoever runs the node sets it.
      owned_keys: Keys of the addresses that the node serves.
      book: The addresses published so far, by key.
      published_keys: Keys of the addresses that this incarnation of the node has published.
    """

    def __init__(
        self,
        label: str,
        index: int,
        info: ProgramInfo,
        book: dict[str, str],
        tell: Callable[..., object],
        launch_config: Any = None,
    ):
        """Makes the runtime of one incarnation of a node.

        Args:
          label: Group of the node.
          index: Its index in the group.
          info: What all nodes of the program share.
          book: The published addresses, by key.
          tell: Takes the name and the details of an event of the node; see `Supervisor.post`.
          launch_config: The launch configuration of the group.
        """
        self.is_node = True
        self.label = label
        self.index = index
        self.info = info
        self.book = book
        self.stop_event = threading.Event()
        self.release_event = threading.Event()
        self.owned_keys: frozenset[str] = frozenset()
        self.published_keys: set[str] = set()
        self.launch_context = LaunchContext(info.launch_type, launch_config, self.stop)
        self.interrupt: Callable[[], object] = lambda: None
        self._tell = tell
        self._state = STARTING
        self.was_interrupted = False
        self._is_stop_aware = False
        self._called_stop = False
        self._handlers: list[Callable[[], Any]] = []
        self._lock = threading.RLock()
        self._parts: list[NodeRuntime] = []

    @property
    def name(self) -> str:
        """ "label/index" of the node."""
        return f"{self.label}/{self.index}"

    def set_state(self, state: str) -> None:
        """Records the node's state and reports it to the supervisor."""
        self._state = state
        self._tell("state", state)

    @property
    def is_active(self) -> bool:
        """False once the node has ended or only serves others; then it is not interrupted."""
        return self._state not in PASSIVE

    def mark_ended(self) -> None:
        """Marks the node's code as ended; the engine reports the reason to the supervisor."""
        self._state = ENDED

    # -- stopping ---------------------------------------------------------------------------------

    def mark_stop_aware(self) -> None:
        """Marks the node as one that stops by itself, so that it is not interrupted."""
        self._is_stop_aware = True

    def stop(self, mark_as_completed: bool = False) -> None:
        """Requests that the whole program stops; returns immediately."""
        del mark_as_completed  # Upstream's argument; it means nothing outside its cluster.
        self._called_stop = True
        self._tell("stop")

    def give_up(self, error: Exception, stuck_secs: float) -> None:
        """Ends this node, whose code is stuck; see `make_node_killer`."""
        if not self.stop_event.is_set():  # A shutdown has deadlines of its own.
            record = errors.ExceptionRecord.of(error)
            self._tell("stuck", dataclasses.replace(record, stuck_secs=stuck_secs))

    def tell_failure(self, error: BaseException) -> None:
        """Reports the failure with which this node is about to end."""
        self._tell("failing", errors.ExceptionRecord.of(error))

    def add_stop_handler(self, handler: Callable[[], Any]) -> None:
        """Calls `handler` when the program stops; immediately if it is already stopping."""
        self.mark_stop_aware()
        self.call_at_stop(handler)

    def call_at_stop(self, handler: Callable[[], Any]) -> None:
        """Like `add_stop_handler`, but the node is interrupted after the handler has returned."""
        with self._lock:
            if not self.stop_event.is_set():
                self._handlers.append(handler)
                return
        handler()

    def remove_stop_handler(self, handler: Callable[[], Any]) -> None:
        """Removes a handler added by `add_stop_handler`; does nothing if there is none."""
        with self._lock:
            if handler in self._handlers:
                self._handlers.remove(handler)

    def begin_stop(self) -> threading.Thread:
        """Called by the engine when the program stops; returns immediately.

        Runs the stop handlers, which are user code and may block, in a thread of their own; then
        interrupts a node that does not stop by itself. Does nothing the second time.

        Returns:
          The thread.
        """
        thread = threading.Thread(target=self._stop, name=f"{self.name} stop", daemon=True)
        thread.start()
        return thread

    def _stop(self) -> None:
        set_thread_runtime(self)
        with self._lock:
            if self.stop_event.is_set():
                return
            handlers = list(self._handlers)
            self.stop_event.set()
            parts = list(self._parts)
        for part in parts:
            part.begin_stop()
        for handler in handlers:
            try:
                handler()
            except SystemExit:  # The other handlers still run.
                logger.debug("%s: a stop handler raised SystemExit", self.name)
            except Exception:
                logger.exception("%s: a stop handler failed", self.name)
        if not self._is_stop_aware:
            # A node that requested the stop, or was waiting for a program that it launched, gets a
            # moment to leave by itself.
            self._interrupt(_OWN_STOP_SECS if self._called_stop or handlers else 0.0)

    def _interrupt(self, delay_secs: float) -> None:
        """Raises SystemExit in the node's main thread, unless the node has ended or only serves."""
        time.sleep(delay_secs)
        if self.is_active:
            self.was_interrupted = True
            self.interrupt()

    def release(self) -> None:
        """Called by the engine when this node's server is no longer needed."""
        self.release_event.set()

    def make_part(self, set_state: Callable[[str], object]) -> NodeRuntime:
        """Returns the runtime of a node inside this one, which `add_part` then connects.

        Args:
          set_state: Takes the states of this part; all its other events are those of this node.
        """

        def tell(kind: str, *details: Any) -> None:
            set_state(*details) if kind == "state" else self._tell(kind, *details)

        config = self.launch_context.launch_config
        part = NodeRuntime(self.label, self.index, self.info, self.book, tell, config)
        part.published_keys, part.release_event = self.published_keys, self.release_event
        return part

    def add_part(self, part: NodeRuntime) -> None:
        """Forwards the stop to `part`, a node that runs inside this one."""
        self.mark_stop_aware()
        with self._lock:
            self._parts.append(part)
            is_stopping = self.stop_event.is_set()
        if is_stopping:
            part.begin_stop()

    # -- addresses --------------------------------------------------------------------------------

    def publish(self, key: str, address: str) -> None:
        """Publishes `address` ("host:port") as that of `key` to all nodes of the program."""
        self.published_keys.add(key)
        self.book[key] = address
        self._tell("publish", key, address)

    def resolve(self, key: str, name: str | None, timeout: float | None = None) -> str:
        """Returns the address of `key`, waiting until its owner has published it.

        The owner itself never waits: a port is chosen for it and published immediately, that of its
        previous incarnation if it is on this machine and free.

        Raises:
          ProgramStoppedError: the program is stopping and the address is not known.
          TimeoutError: `timeout` seconds have passed.
        """
        if key in self.owned_keys and key not in self.published_keys:
            host, _, port = (self.book.get(key) or "").rpartition(":")
            before = int(port) if host == self.info.host and port.isdigit() else 0
            address = f"{self.info.host}:{ports.choose(self.info.host, before)}"
            self.publish(key, address)
            return address
        started = told = time.monotonic()
        while True:
            if key in self.book:
                return self.book[key]
            now = time.monotonic()
            owner = self.info.owners.get(key, "a node outside this program")
            if self.stop_event.is_set():
                raise errors.ProgramStoppedError(
                    f"{self.name}: gave up waiting for {owner}: the program is stopping"
                )
            if timeout is not None and now - started > timeout:
                raise TimeoutError(
                    f"{self.name}: {owner} has published no address in {timeout:g} s"
                )
            # A stop may interrupt this thread anywhere: Python's own waits could keep a lock then.
            time.sleep(_POLL_SECS)
            if now - told > WAIT_MESSAGE_SECS:
                told = now
                logger.warning(
                    "%s: waiting for the address of %s%s (%.0f s)",
                    self.name,
                    owner,
                    f" ({name})" if name else "",
                    now - started,
                )


_thread = threading.local()
_process_runtime: NodeRuntime | None = None
_launcher_runtimes: list[NodeRuntime] = []


def current() -> NodeRuntime | None:
    """Returns the runtime of the calling code, or None outside a program."""
    found = getattr(_thread, "runtime", None) or _process_runtime
    if found is None and (launchers := list(_launcher_runtimes)):  # Programs may end meanwhile.
        found = launchers[-1]
    return found


def owner_of(key: str) -> NodeRuntime | None:
    """Returns this process's runtime of the program that serves address `key`, or None."""
    here = (getattr(_thread, "runtime", None), _process_runtime, *list(_launcher_runtimes))
    return next((found for found in here if found is not None and key in found.info.owners), None)


def require_current() -> NodeRuntime:
    """Returns the runtime of the calling code.

    Raises:
      RuntimeError: outside a running program.
    """
    found = current()
    if found is None:
        raise RuntimeError(
            "no Launchpad program runs here: call this from a node, or after lp.launch()"
        )
    return found


def current_node() -> NodeRuntime | None:
    """Returns the runtime of the node that the calling code belongs to; None outside of nodes."""
    found = current()
    return found if found is not None and found.is_node else None


def is_launcher(runtime: NodeRuntime | None) -> bool:
    """Whether `runtime` is that of the launching process in a running program."""
    return runtime in _launcher_runtimes


def set_thread_runtime(runtime: NodeRuntime | None) -> NodeRuntime | None:
    """Makes `runtime` the current one of this thread; returns the previous one."""
    previous = getattr(_thread, "runtime", None)
    _thread.runtime = runtime
    return previous


def set_process_runtime(runtime: NodeRuntime | None) -> None:
    """Makes `runtime` the current one of all threads of this process."""
    global _process_runtime
    _process_runtime = runtime


def add_launcher_runtime(runtime: NodeRuntime) -> None:
    """Makes `runtime` the current one of code outside any node."""
    _launcher_runtimes.append(runtime)


def remove_launcher_runtime(runtime: NodeRuntime) -> None:
    """Undoes `add_launcher_runtime(runtime)`."""
    if runtime in _launcher_runtimes:
        _launcher_runtimes.remove(runtime)
