"""Runs a command for a while, and records threads, files and memory of all its processes.

    python -m bench.soak --minutes 60 --out resnet_two_workers -- COMMAND ...

Follows the command and all its descendants. Writes a row for each process every `--interval`
seconds to `bench/results/soak_NAME.csv`. For each process that lived for at least half of the time,
it prints the figures after a tenth of its life, when it has warmed up, and at the end. The command
is ended with SIGTERM when the time is over. The exit status is 1 if the command ended early, or if
a process grew.
"""

import csv
import dataclasses
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil
import tyro

from bench.harness import RESULTS
from bench.processes import stop

# What a process may gain after the first tenth, as caches fill and thread pools start late.
MOST = {"threads": 20, "files": 20, "megabytes": 100}


@dataclasses.dataclass(frozen=True)
class Options:
    """What to run, and for how long."""

    out: str
    """Name of the results."""
    command: tyro.conf.Positional[tuple[str, ...]]
    """What to run, after --."""
    minutes: float = 60.0
    interval: float = 10.0
    """Seconds between samples."""


def main() -> int:
    """Returns the exit status."""
    options = tyro.cli(Options, prog="python -m bench.soak", description=__doc__)
    # Without a handler, SIGTERM would end this process and leave the command running.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    samples: dict[str, list[dict[str, float]]] = {}
    begun = time.monotonic()
    command = subprocess.Popen(options.command)
    try:
        with (RESULTS / f"soak_{options.out}.csv").open("w", newline="") as file:
            rows = csv.writer(file)
            rows.writerow(["seconds", "process", *MOST])
            while (now := time.monotonic() - begun) < 60 * options.minutes:
                if command.poll() is not None:
                    sys.exit(f"the command ended early, with status {command.returncode}")
                for name, sample in _sampled(command.pid):
                    samples.setdefault(name, []).append({"seconds": round(now, 1), **sample})
                    rows.writerow([round(now, 1), name, *sample.values()])
                file.flush()
                time.sleep(options.interval)
    finally:
        stop(command)
    lines = [_line(name, found) for name, found in samples.items() if _life(found) >= now / 2]
    print("\n".join(lines))
    return int(any(line.endswith("GREW") for line in lines))


def _life(samples: Sequence[dict[str, float]]) -> float:
    return samples[-1]["seconds"] - samples[0]["seconds"]


def _line(name: str, samples: Sequence[dict[str, float]]) -> str:
    warmed_up = samples[0]["seconds"] + 0.1 * _life(samples)
    warm, last = next(s for s in samples if s["seconds"] >= warmed_up), samples[-1]
    figures = ", ".join(f"{figure} {warm[figure]:.0f} -> {last[figure]:.0f}" for figure in MOST)
    is_flat = all(last[figure] - warm[figure] <= most for figure, most in MOST.items())
    return f"{name}: {figures} in {_life(samples):.0f} s: {'flat' if is_flat else 'GREW'}"


def _sampled(pid: int) -> Iterator[tuple[str, dict[str, float]]]:
    """Yields the name of each process with its threads, open files, sockets too, and memory."""
    for process in [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]:
        try:
            with process.oneshot():
                threads, files = process.num_threads(), process.num_fds()
                figures = (threads, files, round(process.memory_info().rss / 1e6, 1))
                name = f"{_name(process.cmdline())} {process.pid}"
        except psutil.Error:  # The process has ended.
            continue
        yield name, dict(zip(MOST, figures, strict=True))


def _name(command: Sequence[str]) -> str:
    """Returns a command's first words without options and numbers, such as "main.py train"."""
    words = [Path(word).name for word in command[1:6] if re.fullmatch(r"[A-Za-z][\w./:]+", word)]
    return " ".join(words[:2]) or Path((command or ["?"])[0]).name


if __name__ == "__main__":
    sys.exit(main())
