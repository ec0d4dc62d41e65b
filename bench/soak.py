"""Runs a command for a while, and records threads, files and memory of all its processes.

    python -m bench.soak --minutes 60 --out resnet_two_workers -- COMMAND ...

Follows the command and all its descendants. Writes a row for each process every ten seconds to
`bench/results/soak_NAME.csv`, then a plot beside it. For each process that lived for at least half
of the time, it prints the figures after a tenth of its life, when it has warmed up, and at the end.
The command is ended with SIGTERM when the time is over. The exit status is 1 if the command ended
early, or if a process grew.
"""

import argparse
import collections
import csv
import dataclasses
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

import psutil

from bench.harness import RESULTS
from bench.processes import stop

# What a process may gain after the first tenth, as caches fill and thread pools start late.
MOST_THREADS = 20
MOST_FILES = 20
MOST_MEGABYTES = 100


@dataclasses.dataclass(frozen=True)
class Sample:
    """The resources of one process at one moment.

    Attributes:
      seconds: since the start of the command.
      process: name and process id.
      threads: number of threads.
      files: open file descriptors, sockets included.
      megabytes: resident memory.
    """

    seconds: float
    process: str
    threads: int
    files: int
    megabytes: float


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--out", required=True, help="name of the results")
    parser.add_argument("--interval", type=float, default=10.0, help="seconds between samples")
    parser.add_argument("command", nargs="+", help="what to run, after --")
    options = parser.parse_args(argv)
    # Without a handler, SIGTERM would end this process and leave the command running.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    RESULTS.mkdir(exist_ok=True)
    table = RESULTS / f"soak_{options.out}.csv"
    command = subprocess.Popen(options.command)
    try:
        samples, is_whole = record(command, table, 60.0 * options.minutes, options.interval)
    finally:
        stop(command)
    plot(samples, table.with_suffix(".png"), options.out)
    grown = [line for line in summary(samples) if line.endswith("GREW")]
    print("\n".join(summary(samples)))
    if not is_whole:
        print(f"the command ended early, with status {command.returncode}", file=sys.stderr)
    return int(bool(grown) or not is_whole)


def record(
    command: subprocess.Popen, table: Path, seconds: float, interval: float
) -> tuple[list[Sample], bool]:
    """Samples all processes until the time is over or the command has ended.

    Returns:
      The samples, and whether the command ran for all of the time.
    """
    samples: list[Sample] = []
    begun = time.monotonic()
    with table.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow([field.name for field in dataclasses.fields(Sample)])
        while time.monotonic() - begun < seconds:
            if command.poll() is not None:
                return samples, False
            now = time.monotonic() - begun
            new = list(_samples(psutil.Process(command.pid), now))
            rows.writerows(dataclasses.astuple(sample) for sample in new)
            file.flush()
            samples += new
            time.sleep(interval)
    return samples, True


def summary(samples: Sequence[Sample]) -> list[str]:
    """Returns a line for each process that lived for at least half of the time."""
    lines = []
    for name, its in _lasting(samples).items():
        duration = its[-1].seconds - its[0].seconds
        warm = next(s for s in its if s.seconds - its[0].seconds >= 0.1 * duration)
        last = its[-1]
        is_flat = (
            last.threads - warm.threads <= MOST_THREADS
            and last.files - warm.files <= MOST_FILES
            and last.megabytes - warm.megabytes <= MOST_MEGABYTES
        )
        lines.append(
            f"{name}: threads {warm.threads} -> {last.threads}, files {warm.files} -> "
            f"{last.files}, memory {warm.megabytes:.0f} -> {last.megabytes:.0f} MB in "
            f"{(last.seconds - warm.seconds) / 60:.0f} min: {'flat' if is_flat else 'GREW'}"
        )
    return lines


def plot(samples: Sequence[Sample], path: Path, title: str) -> None:
    """Draws threads, files and memory of each process that lived for at least half of the time."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(3, 1, sharex=True, figsize=(7, 7), layout="constrained")
    for name, its in _lasting(samples).items():
        minutes = [s.seconds / 60 for s in its]
        for axis, field in zip(axes, ("threads", "files", "megabytes"), strict=True):
            axis.plot(minutes, [getattr(s, field) for s in its], label=name)
    for axis, label in zip(axes, ("threads", "open files", "resident memory, MB"), strict=True):
        axis.set_ylabel(label)
        axis.set_ylim(bottom=0)
        axis.grid(alpha=0.3)
    axes[0].set_title(title)
    axes[0].legend(fontsize=6, loc="lower right")
    axes[-1].set_xlabel("minutes")
    figure.savefig(path, dpi=110)


def _samples(root: psutil.Process, seconds: float) -> Iterable[Sample]:
    try:
        processes = [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return
    for process in processes:
        try:
            with process.oneshot():
                yield Sample(
                    round(seconds, 1),
                    f"{_name(process.cmdline())} {process.pid}",
                    process.num_threads(),
                    process.num_fds(),
                    round(process.memory_info().rss / 1e6, 1),
                )
        except psutil.Error:  # The process has ended.
            continue


def _name(command: Sequence[str]) -> str:
    """Returns a command's first words without options and numbers, such as "main.py train"."""
    words = [Path(word).name for word in command[1:6] if re.fullmatch(r"[A-Za-z][\w./:]+", word)]
    return " ".join(words[:2]) or Path((command or ["?"])[0]).name


def _lasting(samples: Sequence[Sample]) -> dict[str, list[Sample]]:
    """Returns the samples of each process that lived for at least half of the time."""
    found: dict[str, list[Sample]] = collections.defaultdict(list)
    for sample in samples:
        found[sample.process].append(sample)
    half = 0.5 * samples[-1].seconds if samples else 0.0
    return {
        name: its for name, its in found.items() if its[-1].seconds - its[0].seconds >= half > 0
    }


if __name__ == "__main__":
    sys.exit(main())
