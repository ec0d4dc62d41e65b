"""Where the output of nodes in processes goes: this terminal, files, or a tmux session."""

from __future__ import annotations

import logging
import os
import pathlib
import shutil
import subprocess
import tempfile
from typing import IO, Protocol

from rl_replicator.processes import output

logger = logging.getLogger("launchpad")

FILES, TMUX = "output_to_files", "tmux_session"
# Environment variable with the parent of the output directories; upstream's name.
_DIRECTORY = "LAUNCHPAD_LOGGING_DIR"
_TMUX_SECS = 10.0
# Longer file names are cut; file systems allow 255 bytes.
_NAME_BYTES = 200


class Terminal(Protocol):
    """Receives the output of nodes."""

    def writer(self, node: str) -> output.Writer:
        """Returns a function that writes the output of one incarnation of a node.

        Args:
          node: Name of the node, "label/index".
        """

    def close(self) -> None:
        """Releases its resources; all nodes have ended."""


class CurrentTerminal:
    """The output of this process, where every line begins with the name of its node."""

    def writer(self, node: str) -> output.Writer:
        """See `Terminal`."""
        return output.prefixed(f"[{node}] ")

    def close(self) -> None:
        """Does nothing."""


class Files:
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
        """See `Terminal`. A restarted node continues its file."""
        try:
            file = self._files.get(node) or self._opened(node)
        except OSError as error:  # For example, the directory was deleted.
            logger.warning("the output of %s goes to this terminal: %s", node, error)
            return CurrentTerminal().writer(node)

        def write(target: str, text: str) -> None:
            file.write(text)
            file.flush()

        return write

    def _opened(self, node: str) -> IO[str]:
        name = node.replace("/", "_").encode()[:_NAME_BYTES].decode(errors="ignore")
        # Two names may be equal here: of "a/b" and "a_b", or of long names that were cut.
        while (path := self.directory / f"{name}.log").exists():
            name += "_"
        file = self._files[node] = path.open("a", encoding="utf-8", errors="replace")
        self._show(node, path)
        return file

    def close(self) -> None:
        """Closes the files, which stay."""
        for file in self._files.values():
            file.close()

    def _show(self, node: str, path: pathlib.Path) -> None:
        """Shows a new file to the user; does nothing here."""


class TmuxSession(Files):
    """A window of a tmux session for each node, which shows its file while the program runs."""

    def __init__(self) -> None:
        """Makes the directory; the first node makes the session, named after the directory."""
        super().__init__()
        self._session = self.directory.name
        self._has_session = False
        logger.warning("to see it: tmux attach -t %s", self._session)

    def close(self) -> None:
        """Ends the session; the files stay."""
        super().close()
        if self._has_session:
            self._tmux("kill-session", "-t", self._session)

    def _show(self, node: str, path: pathlib.Path) -> None:
        place = ("new-window", "-d", "-t", f"{self._session}:")
        if not self._has_session:
            place = ("new-session", "-d", "-s", self._session)
        # `tail` ends with this process, even if that is killed.
        follow = ("tail", "-n", "+1", f"--pid={os.getpid()}", "-F", str(path))
        self._has_session |= self._tmux(*place, "-n", node, *follow)

    def _tmux(self, *arguments: str) -> bool:
        """Runs tmux; returns whether it has succeeded, and logs a warning if it has not."""
        try:
            done = subprocess.run(
                ["tmux", *arguments], capture_output=True, text=True, timeout=_TMUX_SECS
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            logger.warning("tmux %s: %s", arguments[0], error)
            return False
        if done.returncode:
            logger.warning("tmux %s: %s", arguments[0], done.stderr.strip())
        return done.returncode == 0


def make(terminal: str | None) -> Terminal:
    """Makes the terminal of a launch.

    Args:
      terminal: The argument of `lp.launch`. Without an installed tmux, and for terminals that are
        not supported, a warning is logged, and output goes to this terminal.
    """
    if terminal == FILES:
        return Files()
    if terminal == TMUX and shutil.which("tmux"):
        return TmuxSession()
    if terminal == TMUX:
        logger.warning("terminal=%r: there is no tmux; output goes to this terminal", terminal)
    return CurrentTerminal()
