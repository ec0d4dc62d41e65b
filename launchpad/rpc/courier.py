"""Remote calls outside of programs, with upstream's names: `import courier`.

    server = courier.Server(port=9000)
    server.Bind("add", lambda a, b: a + b)
    server.Start()

    courier.Client("localhost:9000").add(4, 7)

Both sides need the same secret; see `launchpad.rpc.tls.secret_of_user`.
"""

from __future__ import annotations

from launchpad import runtime as lp_runtime
from launchpad.errors import StatusNotOk
from launchpad.rpc import server as rpc_server
from launchpad.rpc import tls
from launchpad.rpc.client import CourierClient as Client
from launchpad.rpc.client import list_methods

__all__ = ["Client", "Server", "StatusNotOk", "list_methods"]


class Server(rpc_server.MethodServer):
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
        super().__init__(secret, f"{tls.LOOPBACK}:{port or 0}", thread_pool_size, runtime)
        self.address = f"localhost:{self.port}"
