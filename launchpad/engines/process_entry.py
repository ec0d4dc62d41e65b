"""The main module of a node's process: `python -m launchpad.engines.process_entry NAME PID FD FD`.

The arguments are the node's name, the launcher, the control channel and the memory file.
"""

from __future__ import annotations

import os
import sys

from launchpad.engines import node_process
from rl_replicator.processes import command_entry

if __name__ == "__main__":
    launcher, connection, memory = map(int, sys.argv[2:])
    command_entry.die_with_parent()
    if os.getppid() == launcher:  # Else it died before the call above.
        node_process.leave(node_process.run(connection, memory))
