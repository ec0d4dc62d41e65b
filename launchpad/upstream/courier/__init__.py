"""Servers and clients outside of programs, under the name that upstream's wheel gives them."""

import sys
import types

from launchpad.rpc import courier
from launchpad.rpc.courier import Client, Server, StatusNotOk, list_methods

__all__ = ["Client", "Server", "StatusNotOk", "list_methods"]

# Upstream's module paths.
python = types.ModuleType(f"{__name__}.python")
python.client = python.py_server = courier  # type: ignore[attr-defined]
sys.modules.update(
    dict.fromkeys((f"{python.__name__}.client", f"{python.__name__}.py_server"), courier)
)
sys.modules[python.__name__] = python
