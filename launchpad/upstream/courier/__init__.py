"""Remote calls outside of programs, under the name that upstream's wheel gives them.

    server = courier.Server(port=9000)
    server.Bind("add", lambda a, b: a + b)
    server.Start()

    courier.Client("localhost:9000").add(4, 7)

Both sides need the same secret; see `launchpad.rpc.tls.secret_of_user`.
"""

import sys
import types

from launchpad.errors import StatusNotOk
from launchpad.rpc.client import CourierClient as Client
from launchpad.rpc.client import list_methods
from launchpad.rpc.server import Server

__all__ = ["Client", "Server", "StatusNotOk", "list_methods"]

# Upstream's module paths.
python = types.ModuleType(f"{__name__}.python")
python.client = python.py_server = sys.modules[__name__]  # type: ignore[attr-defined]
sys.modules[python.__name__] = python
for _name in ("client", "py_server"):
    sys.modules[f"{python.__name__}.{_name}"] = sys.modules[__name__]
