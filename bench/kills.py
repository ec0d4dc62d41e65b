"""Kills each role of a run with SIGKILL, in turn, and measures how long the run takes to recover.

    python bench/kills.py                                   # processes, then its own Ray
    python bench/kills.py --launch processes --replicas multi_worker:2

It runs the real command on `cartpole:swingup`, without evaluations. The table has the seconds from
a kill until the dead role is up again (the log reports that its node is constructed), and until the
run has recovered: the role is up, and environment steps and learner steps exceed their values
before the kill. At the end the run is stopped with SIGTERM, and none of its processes may be left.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import signal
import tempfile
import time
from collections.abc import Callable

import psutil
from damaged_run import Run
from programs import d4pg

ROLES = ("actor/1", "evaluator/0", "learner/0", "replay/0")
_SECONDS = 1800.0
_PAUSE = 0.05


def wait(run: Run, what: str, done: Callable[[], bool]) -> float:
    """Waits until `done()`; returns the seconds."""
    started = time.monotonic()
    while not done():
        if run.process.poll() is not None or time.monotonic() - started > _SECONDS:
            tail = run.log.read_text(errors="replace")[-3000:]
            raise SystemExit(f"{what}: did not happen; the last lines were\n{tail}")
        time.sleep(_PAUSE)
    return time.monotonic() - started


def times_up_again(run: Run, name: str) -> int:
    """Returns how often a node has been restarted."""
    return run.log.read_text(errors="replace").count(f"{name} is up again")


def stop(run: Run) -> tuple[float, int]:
    """Stops a run with SIGTERM; returns the seconds it took, and how many processes are left."""
    family = run.process.children(recursive=True)
    started = time.monotonic()
    run.process.send_signal(signal.SIGTERM)
    run.process.wait()
    seconds = time.monotonic() - started
    _, alive = psutil.wait_procs(family, timeout=10)
    return seconds, len(alive)


def measure(arguments: argparse.Namespace, launch: str, folder: pathlib.Path) -> list[str]:
    """Returns the rows of the table for one launch engine."""
    words = ["--actors", str(arguments.actors), "--replicas", arguments.replicas]
    words += ["--caches", str(arguments.caches), "--checkpoint-seconds", "10"]
    folder.mkdir()
    run = Run(d4pg(*words, launch=launch), folder)
    try:
        return _measure(run, arguments, launch)
    finally:
        if run.process.is_running():
            stop(run)


def _measure(run: Run, arguments: argparse.Namespace, launch: str) -> list[str]:
    rows = []
    # So that each role has something to lose, and a checkpoint to restore.
    wait(run, "the first learner step", lambda: run.progress()[1] > 0)
    wait(run, "a checkpoint", lambda: run.num_checkpoints() > 0)
    for role in arguments.roles or ROLES:
        before, times, pid = run.progress(), times_up_again(run, role), run.roles()[role]
        os.kill(pid, signal.SIGKILL)

        def is_up(role=role, times=times) -> bool:
            return times_up_again(run, role) > times

        def has_grown(before=before) -> bool:
            return all(now > then for now, then in zip(run.progress(), before, strict=True))

        up = wait(run, f"the restart of {role}", is_up)
        seconds = up + wait(run, f"recovery from the kill of {role}", has_grown)
        after = run.progress()
        rows.append(
            f"| {launch} | kill -9 of {role} | {up:.1f} | {seconds:.1f} | {before[1]:,} | "
            f"{after[1]:,} |"
        )
        print(rows[-1], flush=True)
        time.sleep(5)
    seconds, left = stop(run)
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
