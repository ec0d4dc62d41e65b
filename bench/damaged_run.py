"""A run of a real command that `faults.py` and `kills.py` damage, watched from outside."""

from __future__ import annotations

import contextlib
import os
import pathlib
import subprocess
import time

import psutil
from programs import Program

# Environment variable that marks all processes of the run, of which none may be left at the end.
_MARK = "FAULTS_RUN"


class Run:
    """A run of a command, watched from outside; it can be restarted when it has ended."""

    def __init__(self, program: Program, folder: pathlib.Path, steps: int | None = None):
        """Starts the command.

        Args:
          program: what to run.
          folder: folder for its run directory and its output.
          steps: number of steps; default: the program's, which the run never reaches.
        """
        self.program, self.folder = program, folder
        self.run_dir = folder / "disk" / "run"
        self.mark = f"{os.getpid()}-{folder.name}"
        self.log = folder / "log"
        self.begun = time.monotonic()
        self.shared_before = set(os.listdir("/dev/shm"))
        self.steps = steps or program.steps
        self.start()

    def start(self) -> None:
        """Starts the command, or restarts it after it has ended."""
        root = pathlib.Path(__file__).resolve().parents[1]
        with self.log.open("a") as log:
            self.process = psutil.Popen(
                self.program.command(self.run_dir, self.folder, self.steps),
                cwd=root,
                env={**os.environ, "PYTHONPATH": str(root), _MARK: self.mark},
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def progress(self) -> tuple[int, ...]:
        """The newest row of metrics: (environment steps, learner steps), or (learner steps,)."""
        return self.program.progress(self.run_dir)

    def megabytes(self) -> float:
        """Memory of all its processes: PSS, which divides shared pages among them."""
        total = 0
        for pid in self.left():
            with contextlib.suppress(psutil.Error):  # The process has ended.
                total += psutil.Process(pid).memory_full_info().pss
        return total / 1e6

    def roles(self) -> dict[str, int]:
        """Process ids of the nodes, or of the workers of a job, by name."""
        found = {}
        for process in self.process.children(recursive=True):
            try:
                name = node_name(process) or self.program.role(process)
            except psutil.Error:
                continue  # The process has ended.
            if name is not None:
                found[name] = process.pid
        return found

    def left(self) -> list[int]:
        """Process ids that belong to this run."""
        mark = f"{_MARK}={self.mark}".encode()
        found = []
        for process in psutil.pids():
            try:
                environment = pathlib.Path(f"/proc/{process}/environ").read_bytes().split(b"\0")
                is_alive = psutil.Process(process).status() != psutil.STATUS_ZOMBIE
            except (OSError, psutil.Error):
                continue
            if mark in environment and is_alive:
                found.append(process)
        return found

    def newest(self) -> pathlib.Path | None:
        """The newest checkpoint; None before the first."""
        found = sorted((self.run_dir / "checkpoints").glob("0*_step_*"))
        return found[-1] if found else None

    def num_checkpoints(self) -> int:
        """The number of checkpoints."""
        return len(list((self.run_dir / "checkpoints").glob("0*_step_*")))

    def wait_for_end(self, seconds: float) -> int | None:
        """Exit status of the command; None if it does not end within `seconds`."""
        try:
            return self.process.wait(seconds)
        except psutil.TimeoutExpired:
            return None


def node_name(process: psutil.Process) -> str | None:
    """Returns the name of a node, such as "actor/1"; None for other processes."""
    try:
        words = process.cmdline()
    except psutil.Error:
        return None
    if "launchpad.launch.process_entry" in words:
        return words[words.index("launchpad.launch.process_entry") + 1]
    title = words[0].split()[0] if words and words[0] else ""
    # Our Ray engine names its processes this way.
    return title.removeprefix("ray::") if title.startswith("ray::") and "/" in title else None
