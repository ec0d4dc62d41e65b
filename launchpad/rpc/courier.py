"""Remote calls outside of programs, with upstream's names: `import courier`.

    server = courier.Server(port=9000)
    server.Bind("add", lambda a, b: a + b)
    server.Start()

    courier.Client("localhost:9000").add(4, 7)

Both sides need the same secret; see `launchpad.rpc.tls.secret_of_user`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from launchpad import runtime as lp_runtime
from launchpad.errors import StatusNotOk
from launchpad.rpc import server as rpc_server
from launchpad.rpc import tls
from launchpad.rpc.client import CourierClient as Client
from launchpad.rpc.client import list_methods

__all__ = ["Client", "Server", "StatusNotOk", "list_methods"]


class Server:
    """Serves functions by name on a port of this machine. It can be started once."""

    def __init__(
        self, name: str | None = None, port: int | None = None, thread_pool_size: int = 16
    ):
        """Binds the port; serves nothing yet.

        Args:
          name: Accepted for compatibility with upstream; clients need the address.
          port: TCP port; None for a free one.
          thread_pool_size: Number of calls that are handled concurrently.

        Raises:
          ValueError: `thread_pool_size` is not positive.
          OSError: The port is taken.
        """
        del name
        runtime = lp_runtime.current()
        secret = runtime.info.secret if runtime else tls.secret_of_user()
        address = f"{tls.LOOPBACK}:{port or 0}"
        self._server = rpc_server.MethodServer(secret, address, thread_pool_size, runtime)

    @property
    def port(self) -> int:
        """The bound port."""
        return self._server.port

    @property
    def address(self) -> str:
        """ "localhost:port", for clients on this machine."""
        return f"localhost:{self.port}"

    @property
    def has_started(self) -> bool:
        """Whether `Start` was called."""
        return self._server.has_started

    def Bind(self, method_name: str, py_func: Callable[..., Any]) -> None:  # noqa: N802
        """Serves a function as method `method_name`."""
        self._server.bind(method_name, py_func)

    BindHandler = Bind

    def Unbind(self, method_name: str) -> None:  # noqa: N802
        """Stops serving the method."""
        self._server.unbind(method_name)

    def Start(self) -> None:  # noqa: N802
        """Starts to serve.

        Raises:
          ValueError: It was started before.
        """
        if self.has_started:
            raise ValueError("Server already started")
        self._server.start()

    def Stop(self) -> None:  # noqa: N802
        """Ends the server.

        Raises:
          ValueError: It was not started.
        """
        self._check_started()
        self._server.stop()

    def Join(self) -> None:  # noqa: N802
        """Returns when the server has stopped.

        Raises:
          ValueError: It was not started.
        """
        self._check_started()
        self._server.Join()

    def SetIsHealthy(self, is_healthy: bool) -> None:  # noqa: N802
        """Does nothing: clients have one server, so there is no load to move elsewhere.

        Raises:
          ValueError: It was not started.
        """
        self._check_started()

    def _check_started(self) -> None:
        if not self.has_started:
            raise ValueError("Server not started")
