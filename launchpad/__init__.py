"""Launchpad: programs of nodes that run as threads or processes.

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
        f"dm-launchpad {_other} is installed beside rl-replicator; both have a package named "
        "'launchpad'. Remove it: pip uninstall dm-launchpad"
    )

from launchpad import context
from launchpad import flags
from launchpad.address import AbstractAddressBuilder
from launchpad.address import Address
from launchpad.address import SimpleLocalAddressBuilder
from launchpad.address import get_port_from_address
from launchpad.context import LaunchType
from launchpad.context import is_local_launch
from launchpad.context import is_local_launch_or_test
from launchpad.errors import CourierAuthenticationError
from launchpad.errors import CourierDeadlineError
from launchpad.errors import CourierError
from launchpad.errors import CourierUnavailableError
from launchpad.errors import NodeFailedError
from launchpad.errors import ProgramStoppedError
from launchpad.errors import RemoteError
from launchpad.flags import LAUNCH_TYPE
from launchpad.launch.launch import launch
from launchpad.launch.manager import ProgramManager
from launchpad.launch.worker_manager import register_stop_handler
from launchpad.launch.worker_manager import stop_event
from launchpad.launch.worker_manager import unregister_stop_handler
from launchpad.launch.worker_manager import wait_for_stop
from launchpad.nodes.courier.node import CourierClient
from launchpad.nodes.courier.node import CourierHandle
from launchpad.nodes.courier.node import CourierNode
from launchpad.nodes.dereference import Deferred
from launchpad.nodes.python.local_multi_processing import PythonProcess
from launchpad.nodes.python.node import PyClassNode
from launchpad.nodes.python.node import PyNode
from launchpad.nodes.reverb.node import ReverbHandle
from launchpad.nodes.reverb.node import ReverbNode
from launchpad.program import Program
from launchpad.program import make_program
from launchpad.program_stopper.program_stopper import make_program_stopper
from launchpad.stop_program.stop import stop

__all__ = [name for name in dir() if not name.startswith("_") and name != "annotations"]
