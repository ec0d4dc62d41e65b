"""Injects faults into a real run on a seeded schedule, and measures the cost of each.

    python -m bench.faults --program actors --seed 1 --faults 10       # D4PG with 4 actors
    python -m bench.faults --program learners --seed 1 --faults 6      # a learner of two processes
    python -m bench.faults --program job --seed 1 --faults 6           # ResNet on two workers
    python -m bench.faults --program defaults --kinds kill-learner --faults 3 --pause 600

The faults are drawn from those of the program, or of `--kinds`. After each, the run must recover
within `--deadline` seconds: the damaged role is up again, and environment steps and learner steps
exceed their values before the fault. At the end the run is stopped with SIGTERM and continued for
some more steps to its regular end, where it must have taken exactly the requested number of steps,
exited with status 0, and left no process. Rows are printed as they are measured, and written to
`faults_PROGRAM_SEED.json` in `--out`.

Goodput is the number of steps that were kept, divided by the number that an undisturbed run makes
in the same time. The speed of an undisturbed run is measured on the same run, between the faults.
The full disk is a small file system, and mounting it requires root. Without root this fault is left
out, and a line says so.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import pathlib
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from typing import Any

import psutil

from bench.damaged_run import PROGRAMS, Run
from bench.fault_kinds import KINDS, THIEVES, Fault
from bench.harness import RESULTS

_POLL = 0.1
# The run goes on for at most this many seconds after the last fault.
_LAST_SECONDS = 8.0
# Longest time between two rows of metrics of any program, even on a busy machine.
_ROW_SECONDS = 60.0
# Room for the checkpoints of the longest run, but small enough to fill within seconds.
_DISK = "size=1g"


@dataclasses.dataclass
class Row:
    """The outcome of one fault.

    Attributes:
      seconds: since the start of the command.
      fault: what was done, and to which role.
      load: processes that wanted a core, the mean of the minute before.
      training_after: seconds until all nodes were up and the learner made steps again; None if they
        did not in time.
      recovered_after: seconds until the run had also made the lost steps again, and more.
      lost: learner steps that were repeated.
      status: exit status of the command, if it ended.
    """

    seconds: float
    fault: str
    load: float
    training_after: float | None = None
    recovered_after: float | None = None
    lost: int = 0
    status: int | None = None


class Soak:
    """Injects faults into a run, and records their costs."""

    def __init__(self, run: Run, deadline: float):
        """Stores the run.

        Args:
          run: a run that has been started.
          deadline: seconds that it may take to recover.
        """
        self._run, self._deadline = run, deadline
        self.rows: list[Row] = []
        self._healthy_steps, self._healthy_seconds = 0, 0.0
        self.first_at = 0.0
        self._first_step = 0

    def await_first(self) -> None:
        """Waits until the run makes steps and has two checkpoints."""
        self._await_progress((0,) * len(self._run.progress()), self._deadline)
        self._await_spare()
        self.first_at, self._first_step = time.monotonic(), self._run.progress()[-1]

    def _await_spare(self) -> None:
        """Waits until one checkpoint may be damaged: a run keeps two, and needs one of them."""
        until = time.monotonic() + self._deadline
        while not self._run.has_spare() and time.monotonic() < until:
            time.sleep(_POLL)

    def run_undisturbed(self, seconds: float) -> None:
        """Lets the run go on, and measures the speed of an undisturbed run.

        Steps are counted between rows of metrics, because some programs write a row only every ten
        seconds.
        """
        before, started = self._next_row(self._run.progress())
        now, ended = before, started
        while ended - started < seconds and self._run.process.is_running():
            newer, at = self._next_row(now)
            if newer == now:
                break
            now, ended = newer, at
        if now[-1] > before[-1]:
            self._healthy_steps += now[-1] - before[-1]
            self._healthy_seconds += ended - started

    def _next_row(self, known: tuple[int, ...]) -> tuple[tuple[int, ...], float]:
        """Waits until the progress differs from `known`; returns it and the time."""
        until = time.monotonic() + _ROW_SECONDS
        while self._run.progress() == known and time.monotonic() < until:
            time.sleep(_POLL)
        return self._run.progress(), time.monotonic()

    def damage(self, fault: Fault, draw: random.Random) -> Row:
        """Injects one fault and waits for the recovery."""
        run = self._run
        self._await_spare()
        pids, size = run.roles(), run.log.stat().st_size
        started = time.monotonic()
        load = round(os.getloadavg()[0], 1)
        row = Row(round(started - run.begun, 1), fault(run, draw), load)
        self.rows.append(row)
        before = run.progress()  # Rows may have been written until the signal was sent.
        lowest = before[-1]
        hit = [name for name in pids if re.search(rf"to {name}\b", row.fault)]
        while time.monotonic() - started < self._deadline:
            time.sleep(_POLL)
            now = time.monotonic() - started
            if run.process.poll() is not None:
                row.status = run.process.wait()
                break
            progress = run.progress()
            lowest = min(lowest, progress[-1] or lowest)
            roles, text = run.roles(), _new_text(run.log, size)
            is_back = all(
                roles.get(name, pids[name]) != pids[name]
                if name.startswith("worker/")
                else f"{name} is up again" in text or f"{name}: started again" in text
                for name in hit
            )
            if is_back and row.training_after is None and progress[-1] > lowest:
                row.training_after = round(now, 1)
            if is_back and all(new > old for new, old in zip(progress, before, strict=True)):
                row.recovered_after = round(now, 1)
                break
        row.lost = before[-1] - lowest
        while THIEVES:
            THIEVES.pop().close()
        return row

    def _await_progress(self, before: Sequence[int], seconds: float) -> None:
        until = time.monotonic() + seconds
        while not all(n > o for n, o in zip(self._run.progress(), before, strict=True)):
            if time.monotonic() > until or self._run.process.poll() is not None:
                raise SystemExit(f"no progress:\n{self._run.log.read_text()[-3000:]}")
            time.sleep(_POLL)

    def goodput(self) -> float:
        """Kept steps / steps of an undisturbed run in the same time."""
        kept = self._run.progress()[-1] - self._first_step
        possible = (time.monotonic() - self.first_at) * self.rate()
        return kept / possible if possible else 0.0

    def rate(self) -> float:
        """Learner steps per second of the undisturbed run."""
        return self._healthy_steps / max(self._healthy_seconds, 1e-9)


def _new_text(log: pathlib.Path, offset: int) -> str:
    with log.open("rb") as file:
        file.seek(offset)
        return file.read().decode(errors="replace")


def finish(run: Run) -> dict[str, object]:
    """Stops the run, continues it to its regular end, and returns the figures to check."""
    run.process.send_signal(signal.SIGTERM)
    ended = run.wait_for_end(90)
    taken = run.program.taken(run.run_dir)
    run.steps = taken + run.program.more
    run.start()
    status = run.wait_for_end(400)
    time.sleep(2.0)
    return {
        "status after SIGTERM": ended,
        "status at the regular end": status,
        "steps asked for": run.steps,
        "steps taken": run.program.taken(run.run_dir),
        "return": run.program.final_return(run.run_dir),
        "processes left": len(run.left()),
    }


@contextlib.contextmanager
def _disk(folder: pathlib.Path) -> Iterator[bool]:
    """Makes `disk` in a folder, a small file system if possible; yields whether it is one."""
    disk = folder / "disk"
    disk.mkdir()
    mounting = ["mount", "-t", "tmpfs", "-o", _DISK, "tmpfs", str(disk)]
    is_mounted = subprocess.run(mounting, capture_output=True).returncode == 0
    try:
        yield is_mounted
    finally:
        if is_mounted:
            subprocess.run(["umount", "-l", str(disk)])


def _schedule(options: argparse.Namespace, has_disk: bool, draw: random.Random) -> list[str]:
    """Returns the kinds of all faults, in random order and about equally often."""
    names = options.kinds or sorted(KINDS[options.program])
    if not has_disk and "disk" in names:
        names.remove("disk")
        print("left out: disk (mounting a file system is not allowed here)", flush=True)
    draw.shuffle(names)
    schedule = [names[index % len(names)] for index in range(options.faults)]
    draw.shuffle(schedule)
    return schedule


def _damage(
    soak: Soak, options: argparse.Namespace, schedule: list[str], draw: random.Random
) -> None:
    """Injects the faults of a schedule, until the run does not recover or the time is over."""
    soak.await_first()
    for kind in schedule:
        if time.monotonic() - soak.first_at > 60.0 * options.minutes:
            break
        soak.run_undisturbed(options.pause * draw.uniform(0.6, 1.4))
        row = soak.damage(KINDS[options.program][kind], draw)
        print(json.dumps(dataclasses.asdict(row)), flush=True)
        if row.recovered_after is None:
            break
    soak.run_undisturbed(min(options.pause, _LAST_SECONDS))


def main() -> int:
    """Returns the exit status: 0 if the run recovered from every fault and passes all checks."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--program", choices=sorted(PROGRAMS), required=True)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=pathlib.Path, default=RESULTS, help="folder of the result")
    parser.add_argument("--faults", type=int, default=10)
    parser.add_argument("--kinds", nargs="*", help="the faults to draw from; default: all")
    parser.add_argument("--deadline", type=float, default=240.0, help="seconds to recover")
    parser.add_argument("--minutes", type=float, default=60.0, help="after them, no more faults")
    parser.add_argument("--pause", type=float, default=8.0, help="seconds between faults, about")
    options = parser.parse_args()
    # Without a handler, SIGTERM would end this process and leave the run behind.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    # A shell lets its background jobs, and so the run, ignore SIGINT.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    draw = random.Random(options.seed)
    with (
        tempfile.TemporaryDirectory(prefix="faults-") as directory,
        _disk(pathlib.Path(directory)) as has_disk,
    ):
        schedule = _schedule(options, has_disk, draw)
        run = Run(PROGRAMS[options.program], pathlib.Path(directory))
        soak = Soak(run, options.deadline)
        try:
            _damage(soak, options, schedule, draw)
            goodput = soak.goodput()
            has_recovered = all(row.recovered_after is not None for row in soak.rows)
            checks: dict[str, Any] = finish(run) if has_recovered else {}
        finally:
            for pid in run.left():
                with contextlib.suppress(psutil.NoSuchProcess):
                    psutil.Process(pid).kill()
            log = run.log.read_text(errors="replace")
    is_good = (
        has_recovered
        and all("NOT" not in row.fault for row in soak.rows)
        and checks.get("status at the regular end") == 0
        and checks["steps asked for"] == checks["steps taken"]
        and not checks["processes left"]
    )
    result = {
        "command": " ".join(sys.argv),
        "goodput": round(goodput, 3),
        "undisturbed learner steps per second": round(soak.rate(), 1),
        "checks": checks,
        "is_good": is_good,
    }
    print(json.dumps(result, indent=2))
    result["faults"] = [dataclasses.asdict(row) for row in soak.rows]
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / f"faults_{options.program}_{options.seed}.json"
    path.write_text(json.dumps(result, indent=2) + "\n")
    if not is_good:
        print(log[-6000:], file=sys.stderr)
    return int(not is_good)


if __name__ == "__main__":
    sys.exit(main())
