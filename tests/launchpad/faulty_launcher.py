"""A program whose launcher the test kills: `python faulty_launcher.py FILE`."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

import launchpad as lp


def parent(path: str) -> None:
    """A node that starts a child process, which inherits its output."""
    child = subprocess.Popen(["sleep", "1000"])
    pathlib.Path(path).write_text(f"{os.getpid()} {child.pid}")
    lp.wait_for_stop()


if __name__ == "__main__":
    program = lp.Program("children")
    program.add_node(lp.PyNode(parent, sys.argv[1]), label="parent")
    lp.launch(program, "local_mp").wait()
