"""Kills each role of a run with SIGKILL, in turn, and times how long the run takes to go on.

    python bench/kills.py                                   # processes, then a Ray of its own
    python bench/kills.py --launch processes --replicas multi_worker:2

It runs the real command on `cartpole:swingup`. The table has the seconds from a kill until the dead
role is up again (its node is constructed, and says so), and until the run has recovered: the role
is up, environment steps have grown, and learner steps have grown past the value before the kill. At
the end the run is stopped with SIGTERM, and none of its processes may be left. The table also has
the seconds from the command to the first learner step, and the CPU seconds and the memory of all
processes then (PSS: shared pages are shared out).
"""

from __future__ import annotations

import argparse
import csv
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

import psutil

ROLES = ("actor/1", "evaluator/0", "learner/0", "replay/0")
_SECONDS = 1800.0
_PAUSE = 0.05


class Run:
    """A run of the command, watched from outside."""

    def __init__(self, arguments: argparse.Namespace, launch: str, run_dir: pathlib.Path):
        """Starts it."""
        command = [sys.executable, "-m", "rl_replicator.cli.main", "train", "d4pg"]
        command += ["--env", "cartpole:swingup", "--steps", "10000000", "--run-dir", str(run_dir)]
        command += ["--actors", str(arguments.actors), "--launch", launch]
        command += ["--replicas", arguments.replicas, "--caches", str(arguments.caches)]
        command += ["--checkpoint-seconds", "10"]
        root = pathlib.Path(__file__).resolve().parents[1]
        self._run_dir = run_dir
        self.log = run_dir.with_suffix(".log")
        self.started = time.monotonic()
        with self.log.open("w") as log:
            self.process = psutil.Popen(
                command,
                cwd=root,
                env={**os.environ, "PYTHONPATH": str(root)},
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def progress(self) -> tuple[int, int]:
        """(environment steps, learner steps) of the newest row that the learner has reported."""
        try:
            with (self._run_dir / "metrics" / "learner.csv").open() as file:
                rows = list(csv.DictReader(file))
            return int(rows[-1]["environment_steps"]), int(float(rows[-1]["learner_steps"]))
        except (FileNotFoundError, IndexError, KeyError, TypeError, ValueError):
            return 0, 0  # None yet, or one is being written.

    def nodes(self) -> dict[str, int]:
        """Process ids of the nodes by name."""
        found = {}
        for process in self._family():
            name = node_name(process)
            if name is not None:
                found[name] = process.pid
        return found

    def _family(self) -> list[psutil.Process]:
        return [self.process, *self.process.children(recursive=True)]

    def times_up_again(self, name: str) -> int:
        """How often a node has come back."""
        return self.log.read_text(errors="replace").count(f"{name} is up again")

    def memory(self) -> tuple[float, int]:
        """(PSS of all processes in MB, number of processes)."""
        total, count = 0, 0
        for process in self._family():
            try:
                total += process.memory_full_info().pss
                count += 1
            except psutil.Error:
                continue  # Ended meanwhile.
        return total / 1e6, count

    def cpu(self) -> float:
        """CPU seconds that all processes have used: that does not depend on who else is busy."""
        total = 0.0
        for process in self._family():
            try:
                times = process.cpu_times()
            except psutil.Error:
                continue  # Ended meanwhile.
            total += times.user + times.system
        return total

    def wait(self, what: str, done) -> float:
        """Waits until `done()`; returns the seconds."""
        started = time.monotonic()
        while not done():
            if self.process.poll() is not None or time.monotonic() - started > _SECONDS:
                tail = self.log.read_text(errors="replace")[-3000:]
                raise SystemExit(f"{what}: did not happen; the last lines were\n{tail}")
            time.sleep(_PAUSE)
        return time.monotonic() - started

    def stop(self) -> tuple[float, int]:
        """Ends it with SIGTERM; returns the seconds, and how many processes are left behind."""
        family = self._family()[1:]
        started = time.monotonic()
        self.process.send_signal(signal.SIGTERM)
        self.process.wait()
        seconds = time.monotonic() - started
        _, alive = psutil.wait_procs(family, timeout=10)
        return seconds, len(alive)


def node_name(process: psutil.Process) -> str | None:
    """ "actor/1", or None for a process that is no node."""
    try:
        words = process.cmdline()
    except psutil.Error:
        return None
    if "launchpad.launch.process_entry" in words:
        return words[words.index("launchpad.launch.process_entry") + 1]
    title = words[0].split()[0] if words and words[0] else ""
    # So our engine calls the processes of Ray.
    return title.removeprefix("ray::") if title.startswith("ray::") and "/" in title else None


def measure(arguments: argparse.Namespace, launch: str, run_dir: pathlib.Path) -> list[str]:
    """Rows of the table for one engine."""
    run = Run(arguments, launch, run_dir)
    try:
        return _measure(run, arguments, launch, run_dir)
    finally:
        if run.process.is_running():
            run.stop()


def _measure(
    run: Run, arguments: argparse.Namespace, launch: str, run_dir: pathlib.Path
) -> list[str]:
    first = run.wait("the first learner step", lambda: run.progress()[1] > 0)
    cpu, (memory, count) = run.cpu(), run.memory()
    print(f"{launch}: first learner step after {first:.1f} s; {count} processes, {memory:.0f} MB")
    rows = [f"| {launch} | start to first learner step | | {first:.1f} |"]
    rows.append(f"| {launch} | CPU seconds until then | | {cpu:.1f} |")
    rows.append(f"| {launch} | memory of {count} processes, MB | | {memory:.0f} |")
    # So that each role has something to lose, and a checkpoint to come back from.
    checkpoints = run_dir / "checkpoints"
    run.wait("a checkpoint", lambda: any(checkpoints.glob("0*_step_*")))
    for role in arguments.roles or ROLES:
        before, times, pid = run.progress(), run.times_up_again(role), run.nodes()[role]
        os.kill(pid, signal.SIGKILL)

        def is_up(role=role, times=times) -> bool:
            return run.times_up_again(role) > times

        def has_grown(before=before) -> bool:
            return all(now > then for now, then in zip(run.progress(), before, strict=True))

        up = run.wait(f"the restart of {role}", is_up)
        seconds = up + run.wait(f"recovery from the kill of {role}", has_grown)
        after = run.progress()
        rows.append(
            f"| {launch} | kill -9 of {role} | {up:.1f} | {seconds:.1f} | {before[1]:,} | "
            f"{after[1]:,} |"
        )
        print(rows[-1], flush=True)
        time.sleep(5)
    seconds, left = run.stop()
    rows.append(f"| {launch} | SIGTERM to the end; processes left: {left} | | {seconds:.1f} |")
    print(rows[-1], flush=True)
    return rows


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--launch", nargs="+", default=["processes", "ray"])
    parser.add_argument("--actors", type=int, default=4)
    parser.add_argument("--caches", type=int, default=0)
    parser.add_argument("--replicas", default="1")
    parser.add_argument("--roles", nargs="*")
    arguments = parser.parse_args()
    rows = ["| launch | what | up again | seconds | learner steps before | learner steps after |"]
    rows.append("|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory(prefix="kills-") as directory:
        for launch in arguments.launch:
            rows += measure(arguments, launch, pathlib.Path(directory, launch))
    print("\n".join(rows))


if __name__ == "__main__":
    main()
