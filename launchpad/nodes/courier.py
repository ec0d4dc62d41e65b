"""A node that serves the methods of a Python object."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

from launchpad import address as lp_address
from launchpad import runtime as lp_runtime
from launchpad.nodes import base, python
from launchpad.rpc import client as rpc_client
from launchpad.rpc import server as rpc_server
from launchpad.rpc import tls

WorkerType = TypeVar("WorkerType")
CourierClient = rpc_client.CourierClient

COURIER_PORT_NAME = "courier"


class CourierHandle(base.Handle[CourierClient]):
    """Handle of a CourierNode; becomes a CourierClient in the node that gets it."""

    def __init__(self, address: lp_address.Address, **kwargs: Any):
        self._address = address
        self._kwargs = kwargs

    def set_client_kwargs(self, **kwargs: Any) -> None:
        """Sets the arguments of the CourierClient, such as `call_timeout`."""
        self._kwargs = kwargs

    def dereference(self) -> CourierClient:
        """Returns a client of the node."""
        return CourierClient(self._address, **self._kwargs)


class CourierNode(python.PyClassNode[CourierHandle, WorkerType], Generic[WorkerType]):
    """Constructs an object in the node and serves its public methods and `__call__`.

    `run()` is called once the object is served. The node serves until the program stops and all
    nodes have left their `run()`, so its methods can still be called while others clean up.

    An object with a `set_courier_server()` method gets the server and starts and stops it itself.
    """

    def __init__(
        self,
        constructor: Callable[..., WorkerType],
        *args: Any,
        courier_kwargs: Mapping[str, Any] | None = None,
        courier_client_kwargs: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ):
        """Describes the node; nothing is constructed yet.

        Args:
          constructor: Makes the object, in the node.
          *args: Arguments of the constructor; handles among them become clients.
          courier_kwargs: Arguments of the server: `port`, `thread_pool_size`. Without a port, a
            program on one machine uses no network. If another process uses the port, the node
            fails with OSError.
          courier_client_kwargs: Arguments of the clients: see CourierClient.
          **kwargs: Keyword arguments of the constructor.
        """
        super().__init__(constructor, *args, **kwargs)
        self._courier_kwargs = dict(courier_kwargs or {})
        self._client_kwargs = dict(courier_client_kwargs or {})
        self._address = lp_address.Address(COURIER_PORT_NAME)
        self.allocate_address(self._address)

    @property
    def courier_address(self) -> lp_address.Address:
        """Address of the server of this node."""
        return self._address

    def configure(self, *args: Any, **kwargs: Any) -> None:
        """Replaces the constructor's arguments: for nodes that need each other's handles."""
        self._args = args
        self._kwargs = kwargs
        self._collect_input_handles()

    def create_handle(self) -> CourierHandle:
        """Returns a handle that becomes a client of this node."""
        return self._track_handle(CourierHandle(self._address, **self._client_kwargs))

    def _run_in_program(self) -> None:
        """Constructs the object, serves it, and calls its `run()`."""
        runtime = lp_runtime.require_current()
        server = make_server(runtime, self._address, self._courier_kwargs)
        takes_server = False
        try:
            # The port is already bound, so nodes can look up each other's addresses while they are
            # constructed. Calls wait until the server starts.
            runtime.publish(self._address.key, server.address)
            instance = self._construct_instance()
            server.bind_methods(instance)
            takes_server = _hand_over(server, instance)
            self._run_until_serving(runtime, instance)
            runtime.release_event.wait()
        finally:
            if not takes_server:
                server.stop()

    def _run_until_serving(self, runtime: lp_runtime.NodeRuntime, instance: WorkerType) -> None:
        """Calls `run()`; after its end or an interrupt, the node keeps serving others."""
        has_begun = False
        # An interrupt may also arrive when run() has returned by itself.
        while True:
            try:
                if not has_begun:
                    has_begun = True
                    self.run_instance(instance)
                runtime.set_state(lp_runtime.SERVING)
                return
            except SystemExit as request:  # The program stops, or run() ended itself.
                if request.code not in (None, 0) and not runtime.stop_event.is_set():
                    raise

    def run(self) -> None:
        """Runs the node in the calling thread.

        Without a program, its address must be bound (`bind_addresses`). It then serves until the
        object's `run()` ends, or forever if there is none.

        Raises:
          OSError: the port of its address is taken.
        """
        if lp_runtime.current() is not None:
            return self._run_in_program()
        instance = self._construct_instance()
        server = make_server(None, self._address, self._courier_kwargs)
        server.bind_methods(instance)
        if _hand_over(server, instance):
            self.run_instance(instance)
            return None
        if not self.run_instance(instance):
            server.Join()
        server.stop()
        return None


def _hand_over(server: rpc_server.MethodServer, instance: Any) -> bool:
    """Starts the server, unless the object takes it over; returns whether it does."""
    if not hasattr(type(instance), "set_courier_server"):  # A mock itself has every attribute.
        server.start()
        return False
    instance.set_courier_server(server)
    return True


def make_server(
    runtime: lp_runtime.NodeRuntime | None, address: lp_address.Address, kwargs: Mapping[str, Any]
) -> rpc_server.MethodServer:
    """Binds the server of a node; nothing is served or published yet.

    Args:
      runtime: The runtime of the node; None outside a program.
      address: The address of the node.
      kwargs: Arguments of the server.

    Raises:
      OSError: the port in `kwargs`, or that of the address outside a program, is taken.
    """
    kwargs = dict(kwargs)
    port = kwargs.pop("port", None)
    kwargs.pop("name", None)  # Upstream's; clients need the address.
    secret = runtime.info.secret if runtime else tls.secret_of_user()

    def make(at: str) -> rpc_server.MethodServer:
        return rpc_server.MethodServer(secret, at, runtime=runtime, identity=address.key, **kwargs)

    if runtime is None:
        port = port or lp_address.get_port_from_address(address.resolve())
        return make(f"{tls.LOOPBACK}:{port}")
    host, before = runtime.info.host, runtime.book.get(address.key)
    if port:
        return make(f"{host}:{port}")
    if host == tls.LOOPBACK:
        return make(tls.socket_address(f"{runtime.info.program_id[:16]}-{address.key[:16]}"))
    if before is not None:  # A restarted node reuses its old port if that is still free.
        with contextlib.suppress(OSError):
            return make(f"{host}:{lp_address.get_port_from_address(before)}")
    return make(f"{host}:0")
