"""The main module of a node's process: `python -m launchpad.engines.process_entry NAME FD FD`.

The arguments are the node's name, the control channel and the memory file. Until the launcher lets
it begin, the process ends if the launcher does.
"""

from __future__ import annotations

import sys

from launchpad.engines import node_process

if __name__ == "__main__":
    node_process.leave(node_process.run(*map(int, sys.argv[2:])))
