"""The main module of a node's process: `python -m launchpad.engines.process_entry NAME FD FD`."""

from __future__ import annotations

import sys

from launchpad.engines import node_process
from rl_replicator.processes import command_entry

if __name__ == "__main__":
    command_entry.die_with_parent()
    node_process.leave(node_process.run(int(sys.argv[2]), int(sys.argv[3])))
