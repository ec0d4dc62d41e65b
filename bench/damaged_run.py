"""Runs of real commands, sized for two cores, that `faults.py` damages and watches from outside."""

from __future__ import annotations

import csv
import dataclasses
import json
import os
import pathlib
import random
import struct
import subprocess
import sys
import time
from collections.abc import Sequence

import psutil

from bench.harness import ROOT

# Environment variable that marks all processes of the run, of which none may be left at the end.
_MARK = "FAULTS_RUN"
_TRAIN = [sys.executable, "-m", "rl_replicator.cli.main", "train"]
_QUIET = ("--no-video", "--evaluation.every", "100000000")
_LIGHT = (
    "--checkpoint-seconds 5 --agent.policy-layers 32 32 --agent.critic-layers 32 32 "
    "--agent.global-batch-size 32 --agent.replay.samples-per-insert 32 --agent.replay.min-size 200"
)
_IMAGES, _BATCH = 640, 16


@dataclasses.dataclass(frozen=True)
class Program:
    """A command that trains, and how to read its progress.

    Attributes:
      steps: number of steps requested at first, more than it ever takes.
      more: number of steps after the last fault, to its regular end.
      table: name of the metrics table that grows while it trains.
      columns: columns of the table that must all grow; the last one counts learner steps.
      words: words of the command, without steps and run directory.
    """

    steps: int
    more: int
    table: str
    columns: Sequence[str]
    words: Sequence[str]

    def command(self, run_dir: pathlib.Path, folder: pathlib.Path, steps: int) -> list[str]:
        """Returns the command.

        Args:
          run_dir: directory of the run.
          folder: folder for its data.
          steps: total number of steps.
        """
        words = [*self.words, "--run-dir", str(run_dir)]
        if "resnet" not in words:
            return [*words, "--steps", str(steps)]
        data = folder / "data"
        if not data.exists():
            _write_images(data)
        return [*words, "--data-dir", str(data), "--epochs", str(steps * _BATCH / _IMAGES)]

    def progress(self, run_dir: pathlib.Path) -> tuple[int, ...]:
        """The counts of the newest row of the table; zeros before the first."""
        try:
            with (run_dir / "metrics" / f"{self.table}.csv").open() as file:
                row = list(csv.DictReader(file))[-1]
            return tuple(int(float(row[column])) for column in self.columns)
        except (FileNotFoundError, IndexError, KeyError, TypeError, ValueError):
            return (0,) * len(self.columns)  # No row yet, or an incomplete one.

    def taken(self, run_dir: pathlib.Path) -> int:
        """The number of steps in the newest checkpoint, in the unit of `steps`."""
        newest = max((run_dir / "checkpoints").glob("0*_step_*"))
        if len(self.columns) == 1:
            return int(newest.name.rpartition("_")[2])
        return json.loads((newest / "progress" / "state.json").read_text())["environment_steps"]

    def final_return(self, run_dir: pathlib.Path) -> float | None:
        """The mean return of the evaluation at the run's end; None for a supervised learner."""
        path = run_dir / "metrics" / "evaluator.csv"
        if not path.exists():
            return None
        with path.open() as file:
            return float(list(csv.DictReader(file))[-1]["episode_return"])

    def role(self, process: psutil.Process) -> str | None:
        """The name of a worker of a job, such as "worker/1"; None for other processes."""
        if "resnet" not in self.words or "rl_replicator.cli.main" not in process.cmdline():
            return None
        task = json.loads(process.environ().get("TF_CONFIG", "{}")).get("task")
        is_leader = process.parent() is not None and "rl_replicator.jobs" in " ".join(
            process.parent().cmdline()
        )
        return f"worker/{task['index']}" if task and is_leader else None


def _write_images(folder: pathlib.Path) -> None:
    """Writes random images, all of class 0, in the format of Fashion-MNIST."""
    folder.mkdir()
    draw = random.Random(1)
    for part in ("train", "t10k"):
        for kind, shape in (("images-idx3", (_IMAGES, 28, 28)), ("labels-idx1", (_IMAGES,))):
            size = 1
            for length in shape:
                size *= length
            header = bytes([0, 0, 8, len(shape)]) + struct.pack(f">{len(shape)}I", *shape)
            content = draw.randbytes(size) if len(shape) > 1 else bytes(size)
            (folder / f"{part}-{kind}-ubyte").write_bytes(header + content)


def d4pg(*words: str, launch: str = "processes") -> Program:
    """A run of D4PG without evaluations.

    Args:
      words: further words of the command.
      launch: launch engine of its nodes.
    """
    command = [*_TRAIN, "d4pg", "--env", "cartpole:swingup", "--launch", launch, *words]
    return Program(
        10_000_000,
        2_000,
        "learner",
        ("environment_steps", "learner_steps"),
        [*command, *_QUIET],
    )


PROGRAMS = {
    "actors": d4pg("--actors", "4", *_LIGHT.split()),
    "learners": d4pg("--actors", "2", "--replicas", "multi_worker:2", *_LIGHT.split()),
    "ray": d4pg("--actors", "2", *_LIGHT.split(), launch="ray"),
    # With the default settings, so that a fault costs as much as for a user.
    "defaults": d4pg("--actors", "4"),
    "job": Program(
        1_000_000,
        20,
        "train",
        ("steps",),
        [
            *(sys.executable, "-m", "rl_replicator.jobs", "--workers", "2", "--max-restarts", "50"),
            *("--", *_TRAIN, "resnet", "--data", "fashion_mnist", "--replicas", "multi_worker"),
            *("--width", "4", "--depth", "18", "--global-batch-size", str(_BATCH)),
            *("--checkpoint-seconds", "5", "--steps-per-call", "2", "--evaluate-epochs", "1e6"),
        ],
    ),
}


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
        self.steps = steps or program.steps
        # Checkpoints that a fault has damaged.
        self.damaged: set[pathlib.Path] = set()
        self.start()

    def start(self) -> None:
        """Starts the command, or restarts it after it has ended."""
        with self.log.open("a") as log:
            self.process = psutil.Popen(
                self.program.command(self.run_dir, self.folder, self.steps),
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": str(ROOT), _MARK: self.mark},
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def progress(self) -> tuple[int, ...]:
        """The newest row of metrics: (environment steps, learner steps), or (learner steps,)."""
        return self.program.progress(self.run_dir)

    def roles(self) -> dict[str, int]:
        """Process ids of the nodes, or of the workers of a job, by name."""
        found = {}
        for pid in self.left():  # A killed fork server leaves its nodes to another parent.
            try:
                process = psutil.Process(pid)
                name = node_name(process) or self.program.role(process)
            except psutil.Error:
                continue  # The process has ended.
            if name is not None:
                found[name] = process.pid
        return found

    def fork_server(self) -> int:
        """Process id of the process that nodes are forked from."""
        for process in self.process.children():
            if any("forkserver.main" in word for word in process.cmdline()):
                return process.pid
        raise ProcessLookupError("the run has no fork server")

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

    def has_spare(self) -> bool:
        """Whether there are two intact checkpoints: one that a fault may damage, and another."""
        found = set((self.run_dir / "checkpoints").glob("0*_step_*"))
        return len(found) >= 2 and not found & self.damaged

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
    if "launchpad.engines.process_entry" in words:
        return words[words.index("launchpad.engines.process_entry") + 1]
    title = words[0].split()[0] if words and words[0] else ""
    # Our Ray engine names its processes this way.
    return title.removeprefix("ray::") if title.startswith("ray::") and "/" in title else None
