"""The state of a running node: its name, its stop event, and the addresses of the other nodes.

Each node of a launched program has one `NodeRuntime`. The launcher has one too, so that `lp.stop()`
and handles also work there. `current()` finds the runtime of the calling code: by thread, then by
process, then the program launched last from this process. A thread that a node has started has no
runtime of its own: where several programs run, `unambiguous()` refuses it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import socket
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from launchpad import address_book as lp_address_book
from launchpad import errors
from launchpad.launch_type import LaunchContext, LaunchType
from rl_replicator.processes import ports

logger = logging.getLogger("launchpad")

# A wait that lasts tells its reason this often, in seconds.
WAIT_MESSAGE_SECS = 10.0

# A node's process shows that it is not frozen this often, in seconds.
HEARTBEAT_SECS = 2.0

# A node that called lp.stop() itself is interrupted this much later, in seconds.
_OWN_STOP_SECS = 1.0
_INTERRUPT_AGAIN_SECS = 2.0


@dataclasses.dataclass(frozen=True)
class ProgramInfo:
    """What all nodes of one launched program share.

    Attributes:
      program_id: Unique per launch.
      secret: Shared by all nodes; signs their calls and answers, and never travels.
      launch_type: How the program was launched.
      host: IP address that servers bind to and are reached at.
      owners: Address key -> "label/index" of the node that owns it, for messages.
    """

    program_id: str
    secret: bytes
    launch_type: LaunchType
    host: str
    owners: Mapping[str, str]


@dataclasses.dataclass(frozen=True)
class Callbacks:
    """How a runtime reaches its engine.

    Attributes:
      publish: (address key, address): tell all nodes.
      set_state: (state): tell the supervisor what the node does.
      request_stop: () -> None: ask for the end of the whole program.
      interrupt: () -> None: raise SystemExit in the node's main thread; not in a node that is no
        longer active once it is possible.
      is_leaving: () -> bool: whether the node's main thread handles a SystemExit.
      give_up: (error, seconds) -> None: end the node, whose code has been stuck for that long.
      tell_failure: (error) -> None: tell the supervisor with what the node is about to fail.
    """

    publish: Callable[[str, str], object]
    set_state: Callable[[str], object]
    request_stop: Callable[[], object]
    interrupt: Callable[[], object]
    is_leaving: Callable[[], bool]
    give_up: Callable[[Exception, float], object]
    tell_failure: Callable[[BaseException], object]


# States of a node, in order. A node in PASSIVE states does nothing on its own account.
STARTING, RUNNING, SERVING, FINISHED, ENDED = "starting", "running", "serving", "finished", "ended"
PASSIVE = (SERVING, FINISHED, ENDED)


class NodeRuntime:
    """One node's view of its program.

    Attributes:
      is_node: False for that of the launching process.
      ready_event: Set when all nodes of the program have been constructed.
      stop_event: Set when the program stops: leave `run()`.
      release_event: Set when nobody needs this node's server any more: stop serving.
      was_interrupted: True once SystemExit was raised in the node's main thread.
      published_keys: Keys of the addresses that this incarnation of the node has published.
    """

    def __init__(
        self,
        label: str,
        index: int,
        info: ProgramInfo,
        book: lp_address_book.AddressBook,
        callbacks: Callbacks,
        launch_config: Any = None,
    ):
        self.is_node = True
        self.label = label
        self.index = index
        self.info = info
        self.book = book
        self.ready_event = threading.Event()
        self.stop_event = threading.Event()
        self.release_event = threading.Event()
        self.owned_keys: frozenset[str] = frozenset()
        self.published_keys: set[str] = set()
        self.launch_context = LaunchContext(info.launch_type, launch_config, self.stop)
        self._callbacks = callbacks
        self._state = STARTING
        self.was_interrupted = False
        self._is_stop_aware = False
        self._called_stop = False
        self._handlers: list[Callable[[], Any]] = []
        # Those that this node launched: what stops them, and their ends.
        self._programs: list[tuple[Callable[[], Any], threading.Event]] = []
        self._lock = threading.RLock()
        self._placeholders: list[socket.socket] = []
        self._parts: list[NodeRuntime] = []

    @property
    def name(self) -> str:
        """ "label/index" of the node."""
        return f"{self.label}/{self.index}"

    def set_state(self, state: str) -> None:
        """Records what the node does now, and tells the supervisor."""
        self._state = state
        self._callbacks.set_state(state)

    @property
    def is_active(self) -> bool:
        """False once the node has ended, or only serves others: then nothing interrupts it."""
        return self._state not in PASSIVE

    def mark_ended(self) -> None:
        """Notes that the node's code has ended; the engine tells the supervisor why."""
        self._state = ENDED

    # -- stopping ---------------------------------------------------------------------------------

    def mark_stop_aware(self) -> None:
        """Notes that the node's code looks after stopping itself, so it is not interrupted."""
        self._is_stop_aware = True

    def stop(self, mark_as_completed: bool = False) -> None:
        """Asks for the end of the whole program; returns at once."""
        del mark_as_completed  # Upstream's argument; it means nothing outside its cluster.
        self._called_stop = True
        self._callbacks.request_stop()

    def give_up(self, error: Exception, stuck_secs: float) -> None:
        """Ends this node, although its code does not return; see `make_node_killer`."""
        if not self.stop_event.is_set():  # The end of a program has deadlines of its own.
            self._callbacks.give_up(error, stuck_secs)

    def tell_failure(self, error: BaseException) -> None:
        """Tells of a failure with which this node ends, before it has ended."""
        self._callbacks.tell_failure(error)

    def add_stop_handler(self, handler: Callable[[], Any]) -> None:
        """Calls `handler` when the program stops; at once if it is stopping already."""
        self.mark_stop_aware()
        self._add_handler(handler)

    def add_program(self, stop: Callable[[], Any], ended: threading.Event) -> None:
        """Stops a program that this node has launched with its own, before it is interrupted.

        Args:
          stop: Asks for the end of that program.
          ended: Is set when that program has ended.
        """
        with self._lock:  # Another thread of the node may launch a program, too.
            self._programs = [*self._running_programs(), (stop, ended)]
        self._add_handler(stop)

    def stop_programs(self) -> None:
        """Stops the programs that this node has launched: it has failed, and they are nobody's."""
        for part in self._parts:
            part.stop_programs()
        for stop, _ in self._running_programs():
            stop()

    def _running_programs(self) -> list[tuple[Callable[[], Any], threading.Event]]:
        return [(stop, ended) for stop, ended in self._programs if not ended.is_set()]

    def _add_handler(self, handler: Callable[[], Any]) -> None:
        with self._lock:
            if not self.stop_event.is_set():
                self._handlers.append(handler)
                return
        handler()

    def remove_stop_handler(self, handler: Callable[[], Any]) -> None:
        """Takes back what `add_stop_handler` has added."""
        with self._lock:
            if handler in self._handlers:
                self._handlers.remove(handler)

    def notify_stop(self) -> None:
        """Called by the engine once when the program stops, in a thread of its own.

        Runs the stop handlers; interrupts a node that does not look after stopping itself.
        """
        with self._lock:
            if self.stop_event.is_set():
                return
            handlers = list(self._handlers)
            self.stop_event.set()
            parts = list(self._parts)
        for part in parts:
            threading.Thread(target=part.notify_stop_in_thread, daemon=True).start()
        for handler in handlers:
            try:
                handler()
            except SystemExit:  # The other handlers run all the same.
                logger.debug("%s: a stop handler raised SystemExit", self.name)
            except Exception:
                logger.exception("%s: a stop handler failed", self.name)
        if not self._is_stop_aware:
            running = self._running_programs()
            for _, ended in running:
                ended.wait()
            # The node that asked for the end, or waits for that of its own program, gets a moment
            # to leave by itself.
            self._interrupt(_OWN_STOP_SECS if self._called_stop or running else 0.0)

    def _interrupt(self, delay_secs: float) -> None:
        """Raises SystemExit in the node's main thread until it ends or only serves.

        Again, because Python drops exceptions in callbacks and finalizers; but not in a node that
        handles the first one, and may be saving.
        """
        time.sleep(delay_secs)
        while self.is_active:
            if not (self.was_interrupted and self._callbacks.is_leaving()):
                self.was_interrupted = True
                self._callbacks.interrupt()
            time.sleep(_INTERRUPT_AGAIN_SECS)

    def notify_stop_in_thread(self) -> None:
        """Like `notify_stop`, for a thread of its own: stop handlers see this runtime."""
        set_thread_runtime(self)
        self.notify_stop()

    def release(self) -> None:
        """Called by the engine when nobody needs this node's server any more."""
        # First: a part that is added meanwhile must see it. Released twice is as well.
        self.release_event.set()
        for part in self._parts:
            part.release()

    def add_part(self, part: NodeRuntime) -> None:
        """Passes stop and release on to `part`, a node that runs inside this one."""
        self.mark_stop_aware()
        with self._lock:
            self._parts.append(part)
            is_stopping = self.stop_event.is_set()
        if is_stopping:
            threading.Thread(target=part.notify_stop_in_thread, daemon=True).start()
        if self.release_event.is_set():
            part.release()

    # -- addresses --------------------------------------------------------------------------------

    def publish(self, key: str, address: str) -> None:
        """Tells all nodes of the program that `key` is at `address` ("host:port")."""
        self.published_keys.add(key)
        self.book.publish(key, address)
        self._callbacks.publish(key, address)

    def resolve(self, key: str, name: str | None, timeout: float | None = None) -> str:
        """Returns the address of `key`, waiting until its owner has published it.

        The owner itself never waits: it gets a port, which is published at once. That of the
        incarnation before it is taken where it is one of this machine and still free.

        Raises:
          ProgramStoppedError: the program is stopping and the address is not known.
          TimeoutError: `timeout` seconds have passed.
        """
        if key in self.owned_keys and key not in self.published_keys:
            address = f"{self.info.host}:{self._reserve_again(self.book.get(key))}"
            self.publish(key, address)
            return address
        started = told = time.monotonic()
        while True:
            found = self.book.wait_for(key, 0.2)
            if found is not None:
                return found
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
            if now - told > WAIT_MESSAGE_SECS:
                told = now
                logger.warning(
                    "%s: waiting for the address of %s%s (%.0f s)",
                    self.name,
                    owner,
                    f" ({name})" if name else "",
                    now - started,
                )

    def _reserve_again(self, address: str | None) -> int:
        """Reserves the port of an earlier address of this node, or a free one."""
        host, _, port = (address or "").rpartition(":")
        if host == self.info.host and port.isdigit():
            with contextlib.suppress(OSError):
                return self.reserve_port(int(port))
        return self.reserve_port()

    def reserve_port(self, port: int = 0) -> int:
        """Returns a port that is reserved for this node while it lives; see `ports.reserve`.

        Args:
          port: The port; 0 for any free one.

        Raises:
          OSError: Somebody listens on the port.
        """
        holder = ports.reserve(self.info.host, port)
        self._placeholders.append(holder)
        return holder.getsockname()[1]

    def close(self) -> None:
        """Gives reserved ports back."""
        for part in self._parts:
            part.close()
        while self._placeholders:
            self._placeholders.pop().close()


_thread = threading.local()
_process_runtime: NodeRuntime | None = None
_launcher_runtimes: list[NodeRuntime] = []


def current() -> NodeRuntime | None:
    """Returns the runtime of the calling code, or None outside a program."""
    found = getattr(_thread, "runtime", None) or _process_runtime
    if found is None and (launchers := list(_launcher_runtimes)):  # Its end may remove the last.
        found = launchers[-1]
    return found


def owner_of(key: str) -> NodeRuntime | None:
    """Returns the runtime, here, of the program with a node that serves address `key`, or None."""
    here = (getattr(_thread, "runtime", None), _process_runtime, *list(_launcher_runtimes))
    return next((found for found in here if found is not None and key in found.info.owners), None)


def unambiguous() -> NodeRuntime | None:
    """Returns the runtime of the calling code, or None outside a program.

    Raises:
      RuntimeError: in a thread that may belong to several programs.
    """
    is_node = getattr(_thread, "runtime", None) is not None
    num_programs = len(_launcher_runtimes)
    if _process_runtime is not None:  # The node runs in the main thread of its process.
        is_node |= threading.current_thread() is threading.main_thread()
        num_programs += 1
    if num_programs > 1 and not is_node:
        raise RuntimeError(
            f"{num_programs} Launchpad programs run here, and this thread belongs to no node of "
            "them: call this in the node's own thread, or use what lp.launch() returned"
        )
    return current()


def require_current() -> NodeRuntime:
    """Returns the runtime of the calling code.

    Raises:
      RuntimeError: outside a running program, or in a thread that may belong to several.
    """
    found = unambiguous()
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
    """Whether `runtime` is the launching process's own, of a program that runs."""
    return runtime in _launcher_runtimes


def set_thread_runtime(runtime: NodeRuntime | None) -> NodeRuntime | None:
    """Makes `runtime` the current one of this thread; returns what was set before."""
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
    """Takes back what `add_launcher_runtime` has done."""
    if runtime in _launcher_runtimes:
        _launcher_runtimes.remove(runtime)
