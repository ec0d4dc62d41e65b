"""Programs whose processes the tests kill: `python faulty_launcher.py SCENARIO FILE`."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
import time

import launchpad as lp


def parent(path: str) -> None:
    """A node that starts a child process, which inherits its output."""
    child = subprocess.Popen(["sleep", "1000"])
    pathlib.Path(path).write_text(f"{os.getpid()} {child.pid}")
    lp.wait_for_stop()


def main() -> None:
    scenario, path = sys.argv[1:]
    if scenario == "children":
        program = lp.Program("children")
        program.add_node(lp.PyNode(parent, path), label="parent")
        lp.launch(program, "local_mp").wait()
        return
    managers = []
    for name in ("first", "second", "third"):
        program = lp.Program(name)
        program.add_node(lp.PyNode(lp.wait_for_stop), label=name)
        managers.append(lp.launch(program, "local_mt"))
        managers[-1].wait_until_ready()
    managers[0].stop_and_wait()  # That the script saw this one end must not count later.
    pathlib.Path(path).write_text("ready")
    while True:  # The script's own loop.
        time.sleep(0.1)


if __name__ == "__main__":
    main()
