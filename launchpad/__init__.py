"""Launchpad: programs of nodes that run as threads, as processes, or on a Ray cluster.

    import launchpad as lp

This package has the API of DeepMind's Launchpad. Importing it imports neither TensorFlow, nor
Reverb, nor Ray.
"""

from __future__ import annotations

import importlib.metadata as _metadata

try:
    _other = _metadata.version("dm-launchpad")
except _metadata.PackageNotFoundError:
    pass
else:
    raise ImportError(
        f"dm-launchpad {_other} is installed next to rl-replicator; both have a package named "
        "'launchpad'. Remove it: pip uninstall dm-launchpad"
    )

from launchpad.address import (
    AbstractAddressBuilder,
    Address,
    SimpleLocalAddressBuilder,
    get_port_from_address,
)
from launchpad.compat import context, register
from launchpad.engines import flags
from launchpad.engines.flags import LAUNCH_TYPE
from launchpad.engines.forking import preload
from launchpad.engines.launch import launch
from launchpad.engines.manager import ProgramManager
from launchpad.errors import (
    CourierAuthenticationError,
    CourierDeadlineError,
    CourierError,
    CourierUnavailableError,
    NodeFailedError,
    ProgramStoppedError,
    RemoteError,
)
from launchpad.lifecycle import (
    make_node_killer,
    make_program_stopper,
    register_stop_handler,
    stop,
    stop_event,
    unregister_stop_handler,
    wait_for_stop,
)
from launchpad.nodes.base import RestartPolicy
from launchpad.nodes.batching import batched_handler
from launchpad.nodes.cacher import CacherNode
from launchpad.nodes.colocation import MultiProcessingColocation, MultiThreadingColocation
from launchpad.nodes.courier import CourierClient, CourierHandle, CourierNode
from launchpad.nodes.dereference import Deferred
from launchpad.nodes.python import (
    CommandNode,
    PyClassNode,
    PyNode,
    PythonProcess,
    ServingCommandNode,
)
from launchpad.nodes.reverb import ReverbHandle, ReverbNode
from launchpad.program import Program, make_program
from launchpad.runtime import LaunchType, is_local_launch, is_local_launch_or_test

register()

__all__ = [
    "LAUNCH_TYPE",
    "AbstractAddressBuilder",
    "Address",
    "CacherNode",
    "CommandNode",
    "CourierAuthenticationError",
    "CourierClient",
    "CourierDeadlineError",
    "CourierError",
    "CourierHandle",
    "CourierNode",
    "CourierUnavailableError",
    "Deferred",
    "LaunchType",
    "MultiProcessingColocation",
    "MultiThreadingColocation",
    "NodeFailedError",
    "Program",
    "ProgramManager",
    "ProgramStoppedError",
    "PyClassNode",
    "PyNode",
    "PythonProcess",
    "RemoteError",
    "RestartPolicy",
    "ReverbHandle",
    "ReverbNode",
    "ServingCommandNode",
    "SimpleLocalAddressBuilder",
    "batched_handler",
    "context",
    "flags",
    "get_port_from_address",
    "is_local_launch",
    "is_local_launch_or_test",
    "launch",
    "make_node_killer",
    "make_program",
    "make_program_stopper",
    "preload",
    "register_stop_handler",
    "stop",
    "stop_event",
    "unregister_stop_handler",
    "wait_for_stop",
]
