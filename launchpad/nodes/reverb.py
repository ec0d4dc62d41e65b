"""A node that serves Reverb tables."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import logging
import time
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from launchpad import address as lp_address
from launchpad import runtime as lp_runtime
from launchpad.nodes import base, python, tunnel
from launchpad.rpc import tls
from rl_replicator.processes import ports

if TYPE_CHECKING:
    import reverb

logger = logging.getLogger("launchpad")

REVERB_PORT_NAME = "reverb"
_BIND_ATTEMPTS = 5
# How long open writers may take to send their last items, all of them together.
_FLUSH_SECS = 1.0


# Writers of this process, by the address of their server.
_writers: dict[str, weakref.WeakSet[Any]] = {}


@functools.cache
def _client_class() -> type[reverb.Client]:
    """Returns the class of the clients of nodes, which remembers their writers."""
    import reverb  # Here, so that only nodes that use the tables load it and TensorFlow.

    class RememberingClient(reverb.Client):
        def writer(self, *args: Any, **kwargs: Any) -> reverb.Writer:
            return self._remember(super().writer(*args, **kwargs))

        def trajectory_writer(self, *args: Any, **kwargs: Any) -> reverb.TrajectoryWriter:
            return self._remember(super().trajectory_writer(*args, **kwargs))

        def structured_writer(self, *args: Any, **kwargs: Any) -> reverb.StructuredWriter:
            return self._remember(super().structured_writer(*args, **kwargs))

        def _remember(self, writer: Any) -> Any:
            _writers.setdefault(self.server_address, weakref.WeakSet()).add(writer)
            return writer

        def __reduce__(self) -> Any:
            return reverb.Client, (self.server_address,)

    return RememberingClient


def _close_writers(address: str) -> None:
    """Closes the writers of this process that their nodes have left open.

    Otherwise, the interpreter's last garbage collection would destroy them, and then they try to
    reach their server, for ever. Their owners may flush and close them when they are destroyed,
    too; that does nothing any more, in place of waiting for a table that takes no rows.
    """
    end = time.monotonic() + _FLUSH_SECS
    for writer in list(_writers.pop(address, ())):
        # It was closed before, has rows that do not fit, or is a Writer, which `close` flushes.
        with contextlib.suppress(Exception):
            writer.flush(timeout_ms=max(1, round(1000 * (end - time.monotonic()))))
        if hasattr(writer, "close"):
            with contextlib.suppress(Exception):
                writer.close()
            writer.flush = writer.close = _do_nothing
        else:  # A StructuredWriter can't be closed, so it must never be destroyed.
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(writer))


def _do_nothing(*args: Any, **kwargs: Any) -> None:
    """Takes the place of methods of a closed writer."""


class ReverbHandle(base.Handle["reverb.Client"]):
    """Handle of a ReverbNode; becomes a `reverb.Client` in the node that gets it.

    Between machines, the client's connections are encrypted; see `tunnel`.
    """

    def __init__(self, address: lp_address.Address):
        self._address = address

    @property
    def address_key(self) -> str:
        """Key of the address, for the supervisor: a `reverb.Client` can't follow its changes."""
        return self._address.key

    def dereference(self) -> reverb.Client:
        """Returns a Reverb client of the server."""
        make = _client_class()
        address = self._address.resolve()
        host, _, port = address.rpartition(":")
        runtime = self._address.runtime()
        ports.bypass_proxy([host, tls.LOOPBACK])
        if runtime is None or host == tls.LOOPBACK:
            return make(address)
        if host == runtime.info.host:
            return make(f"{tls.LOOPBACK}:{port}")
        return make(tunnel.connect(address, runtime.info.secret))


class ReverbNode(python.RunNode[ReverbHandle]):
    """Serves Reverb tables until all other nodes have ended."""

    stops_last = True
    imports = ("reverb",)

    def __init__(
        self,
        priority_tables_fn: Callable[[], Sequence[reverb.Table]],
        checkpoint_ctor: Callable[[], Any] | None = None,
        checkpoint_time_delta_minutes: int | None = None,
    ):
        """Describes the node; nothing is constructed yet.

        Args:
          priority_tables_fn: Makes the tables, in the node.
          checkpoint_ctor: Makes the Reverb checkpointer, in the node; None for Reverb's default.
          checkpoint_time_delta_minutes: Minutes between checkpoints; None for none.

        Raises:
          ValueError: `checkpoint_time_delta_minutes` is not positive.
        """
        super().__init__()
        if checkpoint_time_delta_minutes is not None and checkpoint_time_delta_minutes <= 0:
            raise ValueError("checkpoint_time_delta_minutes must be positive, or None")
        self._priority_tables_fn = priority_tables_fn
        self._checkpoint_ctor = checkpoint_ctor
        self._checkpoint_secs = (
            None if checkpoint_time_delta_minutes is None else checkpoint_time_delta_minutes * 60.0
        )
        self._address = lp_address.Address(REVERB_PORT_NAME)
        self.allocate_address(self._address)

    @property
    def reverb_address(self) -> lp_address.Address:
        """Address of the server of this node."""
        return self._address

    def create_handle(self) -> ReverbHandle:
        """Returns a handle that becomes a Reverb client."""
        return self._track_handle(ReverbHandle(self._address))

    def run(self) -> None:
        """Makes the tables and serves them until the program ends."""
        runtime = lp_runtime.require_current()
        server = self._start_server(runtime)
        try:
            runtime.publish(self._address.key, f"{runtime.info.host}:{server.port}")
            runtime.set_state(lp_runtime.SERVING)
            while not runtime.release_event.wait(self._checkpoint_secs):
                server.localhost_client().checkpoint()
        finally:
            _close_writers(f"{tls.LOOPBACK}:{server.port}")
            server.stop()

    def _start_server(self, runtime: lp_runtime.NodeRuntime) -> reverb.Server:
        """Starts a server on a port on which no other process listens.

        Reverb binds with SO_REUSEPORT: on a taken port it would start without an error, and
        clients would reach one server or the other. So the port is checked before and afterwards.
        """
        import reverb

        make_checkpointer = self._checkpoint_ctor or (lambda: None)
        before = runtime.book.get(self._address.key)
        port = lp_address.get_port_from_address(before) if before else ports.choose()
        for _ in range(_BIND_ATTEMPTS):
            if not ports.count_foreign(port):
                server = reverb.Server(
                    tables=self._priority_tables_fn(), port=port, checkpointer=make_checkpointer()
                )
                if not ports.count_foreign(port):
                    ports.confine_to_loopback(port, "Reverb", "the replay")
                    if runtime.info.host != tls.LOOPBACK:
                        tunnel.serve(runtime.info.host, port, runtime.info.secret)
                    return server
                server.stop()
            logger.warning("%s: another server listens on port %d", runtime.name, port)
            port = ports.choose()
        raise OSError(f"found no free port for Reverb in {_BIND_ATTEMPTS} attempts")
