"""Runs the sides of a benchmark in separate processes.

Each process runs `python -m bench.NAME ...`, makes its side, and calls `serve` with it; it waits
while other sides are measured. `running` starts a command of the project, and ends it.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import psutil

from bench.harness import ROOT, Side, Unit

_POLL = 0.05
# Several sides share a GPU, so none may take all of its memory.
_SHARED_GPU = {"TF_FORCE_GPU_ALLOW_GROWTH": "true"}


def serve(side: Side) -> None:
    """Measures a sample for each line of standard input, until end of file.

    All other standard output is redirected to standard error.
    """
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    print("ready", file=answers, flush=True)
    for _ in sys.stdin:
        figures = [(unit.name, unit.more_is_better, figure) for unit, figure in side().items()]
        print(json.dumps(figures), file=answers, flush=True)


class Group:
    """Processes that measure one side together; the figures are those of the first process."""

    def __init__(self, commands: Sequence[Sequence[str]], settings: Sequence[Mapping[str, str]]):
        """Starts the processes.

        Args:
          commands: module of this package and arguments, for each process.
          settings: environment variables of each process, in addition to this process's own.
        """
        self.processes = [
            subprocess.Popen(
                [sys.executable, "-m", *words],
                env={**os.environ, **_SHARED_GPU, **setting},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                cwd=ROOT,
            )
            for words, setting in zip(commands, settings, strict=True)
        ]

    def wait_until_ready(self) -> None:
        """Waits until all processes have made their side."""
        for process in self.processes:
            self._read(process)

    def sample(self) -> Mapping[Unit, float]:
        """Measures one sample. This method is a `Side`."""
        for process in self.processes:
            assert process.stdin is not None
            print("sample", file=process.stdin, flush=True)
        answers = [json.loads(self._read(process)) for process in self.processes]
        return {Unit(name, more): figure for name, more, figure in answers[0]}

    def close(self) -> None:
        """Kills the processes."""
        for process in self.processes:
            process.kill()  # Workers of tf.distribute ignore SIGTERM; there is nothing to save.
        for process in self.processes:
            process.wait()

    @staticmethod
    def _read(process: subprocess.Popen) -> str:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            raise RuntimeError(f"expected an answer of {process.args!r}, but the process has ended")
        return line


@contextlib.contextmanager
def groups(
    commands: Mapping[str, Sequence[Sequence[str]]],
    settings: Mapping[str, Sequence[Mapping[str, str]]] | None = None,
) -> Iterator[dict[str, Side]]:
    """Yields a side for each group of processes, once all are ready; ends them afterwards.

    Args:
      commands: see `Group`; by the side's name.
      settings: see `Group`; by the side's name. Default: none.
    """
    started: dict[str, Group] = {}
    try:
        for name, words in commands.items():
            group = Group(words, (settings or {}).get(name) or [{}] * len(words))
            started[name] = group
            group.wait_until_ready()  # In turn: starting takes all processors.
        yield {name: group.sample for name, group in started.items()}
    finally:
        for group in started.values():
            group.close()


def free_address() -> str:
    """Returns an address of this machine with a currently free port."""
    with contextlib.closing(socket.socket()) as listener:
        listener.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{listener.getsockname()[1]}"


class Program:
    """A training run.

    Attributes:
      process: the launcher.
      run_dir: its directory.
    """

    def __init__(self, words: Sequence[str], folder: Path):
        """Starts `rl-replicator` with these words, and a run directory in the folder."""
        self.run_dir, self._log = folder / "run", folder / "log.txt"
        command = [sys.executable, "-m", "rl_replicator.cli.main", *words]
        with self._log.open("w") as log:
            self.process = psutil.Popen(
                [*command, "--run-dir", str(self.run_dir)], stdout=log, stderr=log, cwd=ROOT
            )

    def wait(self, is_done: Callable[[], bool], seconds: float) -> None:
        """Waits for something that the run must reach.

        Raises:
          RuntimeError: if it ends before, or takes longer.
        """
        deadline = time.monotonic() + seconds
        while not is_done():
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"not reached in {seconds:g} s:\n{self._log.read_text()}")
            time.sleep(_POLL)


@contextlib.contextmanager
def running(words: Sequence[str]) -> Iterator[Program]:
    """Yields a training run, and stops it afterwards.

    Args:
      words: the command, without `rl-replicator` and the run directory.
    """
    with tempfile.TemporaryDirectory() as folder:
        program = Program(words, Path(folder))
        try:
            yield program
        finally:
            stop(program.process)


def stop(process: subprocess.Popen) -> None:
    """Stops a run with SIGTERM, kills it after a minute, and then kills any remaining children."""
    children = (
        psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []
    )
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(60)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    for child in children:
        if child.is_running():
            child.kill()
