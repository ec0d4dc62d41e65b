"""Finds what a run of the suite leaves behind: processes, their ports, shared memory."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

import psutil

_SHARED_MEMORY = Path("/dev/shm")


def collect() -> tuple[dict[int, int], bool]:
    """Reaps the children that have ended, including adopted ones.

    Returns:
      The wait statuses by process id, and whether children remain. Because this process adopts
      orphans, it has descendants if and only if it has children.
    """
    statuses: dict[int, int] = {}
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return statuses, False
        if pid == 0:
            return statuses, True
        statuses[pid] = status


def descendants() -> list[psutil.Process]:
    """Returns the living descendants; may miss one whose parent ends at the same moment."""
    return [p for p in psutil.Process().children(recursive=True) if is_alive(p.pid)]


def is_alive(pid: int) -> bool:
    """Returns whether a process exists and has not ended."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def kill_descendants(seconds: float = 20.0) -> None:
    """Kills all descendants, including those that they start meanwhile."""
    deadline = time.monotonic() + seconds
    while collect()[1] and time.monotonic() < deadline:
        for process in descendants():
            with contextlib.suppress(psutil.Error):  # Ended meanwhile.
                process.kill()
        time.sleep(0.05)


def describe(process: psutil.Process) -> str:
    """Returns one line: command, the test that started the process, listening ports."""
    try:
        command = " ".join(process.cmdline())[:160] or process.name()
        test = process.environ().get("PYTEST_CURRENT_TEST", "no test")
        ports = [c.laddr.port for c in process.net_connections() if c.status == "LISTEN"]
    except psutil.Error as error:
        return f"process {process.pid} ({error})"
    listening = f", listens on {sorted(set(ports))}" if ports else ""
    return f"process {process.pid}, started in {test}{listening}: {command}"


class SharedMemory:
    """Finds entries of shared memory that outlive the processes that made them."""

    def __init__(self):
        """Records the entries that exist now, which do not belong to the run."""
        self._before = _entries()

    def left(self) -> list[str]:
        """Returns the new entries of this user that no process uses.

        Other programs on the machine create entries too, but use them for as long as they run.
        """
        new = _entries() - self._before
        return sorted(new - _used(new)) if new else []


def _entries() -> set[str]:
    found = set()
    for path in _SHARED_MEMORY.glob("*"):
        try:
            if path.stat().st_uid == os.getuid():
                found.add(path.name)
        except FileNotFoundError:
            continue  # Removed meanwhile.
    return found


def _used(names: set[str]) -> set[str]:
    """Returns the entries that some process has open or mapped."""
    used = set()
    for process in Path("/proc").glob("[0-9]*"):
        try:
            text = (process / "maps").read_text()
            text += "\n".join(os.readlink(fd) for fd in (process / "fd").iterdir())
        except OSError:
            continue  # Ended meanwhile, or another user's.
        lines = {line.rpartition(f"{_SHARED_MEMORY}/")[2] for line in text.splitlines()}
        used |= names & lines
    return used


def wait_until_clean(shared_memory: SharedMemory, grace: float) -> list[str]:
    """Waits until nothing is left, for at most `grace` seconds.

    Args:
      shared_memory: created before the run.
      grace: seconds within which background processes may end by themselves.

    Returns:
      One line for each process and shared-memory entry that remains.
    """
    deadline = time.monotonic() + grace
    while True:
        _, busy = collect()
        entries = [] if busy else shared_memory.left()
        if not (busy or entries):
            return []
        if time.monotonic() > deadline:
            found = [describe(process) for process in descendants()]
            entries = entries or shared_memory.left()
            return found + [f"shared memory {_SHARED_MEMORY / name}" for name in entries]
        time.sleep(0.2)
