"""A program launched from a main script: `python launcher.py ENGINE SCENARIO FILE`.

The tests run it as a child process, to send it real signals. Its nodes are defined in `__main__` on
purpose.
"""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
import threading
import time

import launchpad as lp
from launchpad.engines import manager as signal_handling


class Note:
    """A class of the main script whose instances are sent from node to node."""

    num_received = 0

    def __init__(self, text: str):
        self.text = text


class NoteError(Exception):
    """An exception of the main script, raised in one node and caught in another."""


class Writer:
    """Appends notes to a file."""

    def __init__(self, path: str):
        self._path = pathlib.Path(path)

    def write(self, note: Note) -> Note:
        Note.num_received += 1
        if not note.text:
            raise NoteError("the note is empty")
        with self._path.open("a") as file:
            file.write(note.text + "\n")
        return note

    def count(self) -> int:
        return Note.num_received


def work(writer, index: int, scenario: str) -> None:
    lp.stop_event()  # From now on, this node stops by itself, so a signal may come.
    if scenario == "parents":
        subprocess.Popen(["sleep", "1000"])
    writer.write(Note(f"started {os.getpid()}"))
    if scenario == "short":
        return
    if scenario == "catch":
        try:
            writer.write(Note(""))
        except NoteError as error:
            writer.write(Note(f"caught: {error}"))
        writer.write(Note(f"received: {writer.count()}"))
        return
    if scenario in ("fail", "fail-polled", "fail-first"):
        raise ValueError(f"worker {index} is broken")
    if scenario == "late":
        time.sleep(1.5)
        writer.write(Note("done"))
        return
    if scenario == "deaf":
        while True:
            try:
                time.sleep(0.1)
            except SystemExit:
                continue
    lp.wait_for_stop()
    if scenario == "save":
        time.sleep(0.5)
        assert writer.write(Note("saved")).text == "saved"


def launch(engine: str, scenario: str, path: str) -> lp.ProgramManager:
    program = lp.Program("main")
    writer = program.add_node(lp.CourierNode(Writer, path), label="writer")
    with program.group("worker"):
        for index in range(2):
            program.add_node(lp.PyNode(work, writer, index, scenario))
    # The writer serves until all have saved, even if a node gets no processor time for long.
    return lp.launch(program, engine, termination_notice_secs=300)


def main() -> None:
    engine, scenario, path = sys.argv[1:]
    manager = launch(engine, scenario.removesuffix("-twice"), path)
    if scenario.startswith("graceful"):
        signal_handling.register_exit_handler_and_exit_gracefully_on_sigint(print, "the end")
        signal_handling.exit_gracefully_on_sigquit()
        Writer(path).write(Note("started the script"))
    if scenario == "graceful-waiting":
        manager.wait()
    if scenario == "save-twice":
        thread = threading.Thread(target=launch, args=(engine, "save", path))
        thread.start()
        thread.join()
    if scenario == "fail-first":
        launch(engine, "late", path)
    if scenario == "crash":
        raise KeyError("the script has a fault")
    while scenario == "fail-polled" and not manager.is_done:
        time.sleep(0.02)
    # No wait(): the exit of the script waits.


if __name__ == "__main__":
    main()
