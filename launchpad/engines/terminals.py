"""Where the output of nodes in processes goes: this terminal, or a file for each node."""

from __future__ import annotations

import logging
import os
import pathlib
import tempfile
from typing import IO

from rl_replicator.processes import output

logger = logging.getLogger("launchpad")

FILES = "output_to_files"
# Environment variable with the parent of the output directories; upstream's name.
_DIRECTORY = "LAUNCHPAD_LOGGING_DIR"
# Longer file names are cut; file systems allow 255 bytes.
_NAME_BYTES = 200


class CurrentTerminal:
    """The output of this process, where every line begins with the name of its node."""

    def writer(self, node: str) -> output.Writer:
        """Returns a function that writes the output of one incarnation of a node.

        Args:
          node: Name of the node, "label/index".
        """
        return output.prefixed(f"[{node}] ")

    def close(self) -> None:
        """Releases its resources; all nodes have ended."""


class Files(CurrentTerminal):
    """A file for each node, in a directory that only this user can read."""

    def __init__(self) -> None:
        """Makes the directory, and logs its path."""
        parent = os.environ.get(_DIRECTORY)
        if parent is not None:
            pathlib.Path(parent).mkdir(parents=True, exist_ok=True)
        self.directory = pathlib.Path(tempfile.mkdtemp(prefix="launchpad_out_", dir=parent))
        self._files: dict[str, IO[str]] = {}
        logger.warning("the output of the nodes goes to %s", self.directory)

    def writer(self, node: str) -> output.Writer:
        """See the base class. A restarted node continues its file."""
        name = node.replace("/", "_").encode()[:_NAME_BYTES].decode(errors="ignore")
        try:
            if name not in self._files:
                path = self.directory / f"{name}.log"
                self._files[name] = path.open("a", encoding="utf-8", errors="replace")
        except OSError as error:  # For example, the directory was deleted.
            logger.warning("the output of %s goes to this terminal: %s", node, error)
            return super().writer(node)
        file = self._files[name]

        def write(target: str, text: str) -> None:
            file.write(text)
            file.flush()

        return write

    def close(self) -> None:
        """Closes the files, which stay."""
        for file in self._files.values():
            file.close()
