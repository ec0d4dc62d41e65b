"""Shared code of the benchmarks: sides that are measured in turn, and result files.

A benchmark compares several sides, which are implementations or settings. Each side is measured
once per round, so that other load on the machine affects all of them equally. A figure is the
median over the rounds; a ratio is the median of the ratios within each round, and above 1 if the
side is better than its peer. `Report` writes both to a JSON file.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import importlib.metadata
import json
import math
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rl_replicator.processes import gpus

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "bench" / "results"
ROUNDS = 5
_PACKAGES = (
    *("numpy", "tensorflow", "keras", "dm-sonnet", "dm-reverb", "dm-acme", "dm-control", "mujoco"),
    *("grpcio", "jax", "envpool"),
)


@dataclasses.dataclass(frozen=True)
class Unit:
    """What a figure counts.

    Attributes:
      name: as tables print it, such as "steps/s".
      more_is_better: whether a larger figure is better.
    """

    name: str
    more_is_better: bool = True


# Measures one sample of a side; returns its figures by unit.
Side = Callable[[], Mapping[Unit, float]]
# Samples of all rounds, by side and unit.
Samples = Mapping[str, Mapping[Unit, list[float]]]


def clocked(work: Callable[[], object], amount: float, noun: str) -> Side:
    """Returns a side whose figures are rates per second of wall-clock time and of processor time.

    Processor time includes all threads of this process. On a busy machine it is more informative
    than wall-clock time.

    Args:
      work: called once per sample.
      amount: number of things that one call processes.
      noun: the things, in the plural.
    """

    def sample() -> Mapping[Unit, float]:
        wall, processor = time.perf_counter(), time.process_time()
        work()
        processor, wall = time.process_time() - processor, time.perf_counter() - wall
        return {Unit(f"{noun}/s"): amount / wall, per_processor_second(noun): amount / processor}

    return sample


def per_processor_second(noun: str) -> Unit:
    """Returns the unit of a rate by processor time."""
    return Unit(f"{noun} per processor second")


def repeated(call: Callable[[], object], times: int) -> Callable[[], None]:
    """Returns a function that calls `call` a number of times."""

    def run() -> None:
        for _ in range(times):
            call()

    return run


def synchronized(work: Callable[[], object]) -> Callable[[], None]:
    """Returns a function that calls `work` and waits until the GPUs have finished it."""
    tf = importlib.import_module("tensorflow")  # Some benchmarks do not need it.

    def run() -> None:
        work()
        tf.test.experimental.sync_devices()

    return run


def measure(sides: Mapping[str, Side], rounds: int, warm_up: int = 1) -> Samples:
    """Measures all sides once per round, in reverse order every second round.

    Args:
      sides: the sides, by name.
      rounds: number of samples of each side.
      warm_up: preceding rounds whose samples are dropped.

    Returns:
      The samples of every side, in the order of the rounds.
    """
    samples: dict[str, dict[Unit, list[float]]] = {name: {} for name in sides}
    for round_number in range(-warm_up, rounds):
        for name in list(sides)[:: -1 if round_number % 2 else 1]:
            for unit, figure in sides[name]().items():
                if round_number >= 0:
                    samples[name].setdefault(unit, []).append(float(figure))
    return samples


def row(name: str, unit: Unit, samples: list[float], peer: str | None, base: list[float]) -> dict:
    """Returns a row of a result file.

    Args:
      name: name of the side.
      unit: unit of the samples.
      samples: one for each round.
      peer: name of the side that it is compared with; None for no ratio.
      base: samples of the peer in the same rounds.
    """
    made: dict[str, Any] = {"figure": name, "unit": unit.name}
    made["better"] = "more" if unit.more_is_better else "less"
    made |= _spread(samples)
    if peer is not None and all(samples) and all(base):  # Shares of time may be 0.
        ratios = np.divide(samples, base) if unit.more_is_better else np.divide(base, samples)
        made |= {"peer": peer, "ratio": _spread(ratios.tolist())}
        del made["ratio"]["samples"]
    return made


class Report:
    """Collects the rows of one benchmark, prints them, and writes its result file."""

    def __init__(self, name: str, options: argparse.Namespace):
        """Records the machine and the versions.

        Args:
          name: name of the benchmark's module.
          options: with `out`; see `parser`.
        """
        self._output: Path = options.out
        self._rows: list[dict[str, Any]] = []
        self._about: dict[str, Any] = about(name)

    def leave_out(self, name: str, reason: object) -> None:
        """Records that a side could not be measured, and why."""
        self._about.setdefault("left_out", {})[name] = str(reason)
        print(f"{name}: left out ({reason})", flush=True)

    def add(self, samples: Samples, peers: Mapping[str, str] | None = None) -> None:
        """Adds and prints a row for each unit of each side.

        Args:
          samples: see `measure`.
          peers: the side to compare with, by side. Units that it lacks get no ratio.
        """
        for name, figures in samples.items():
            for unit, values in figures.items():
                peer = (peers or {}).get(name)
                base = samples.get(peer, {}).get(unit) if peer is not None else None
                made = row(name, unit, values, peer if base else None, base or [])
                self._rows.append(made)
                print(_line(made), flush=True)

    def write(self) -> None:
        """Writes the result file: an object with one row per line."""
        self._output.parent.mkdir(parents=True, exist_ok=True)
        rows = ",\n".join(json.dumps(made) for made in self._rows)
        about = json.dumps(self._about, indent=1)
        self._output.write_text(f'{{"about": {about},\n"rows": [\n{rows}\n]}}\n')


def _settings(words: Sequence[str]) -> list[str]:
    """Returns the words of a command without `--out`, which does not affect the figures."""
    pairs = zip(["", *words], words, strict=False)
    return [
        word
        for before, word in pairs
        if "--out" not in (before, word) and not word.startswith("--out=")
    ]


def about(name: str) -> dict[str, Any]:
    """Returns a description of the run: its date, its command, the machine and the versions.

    Args:
      name: name of the benchmark's module.
    """
    return {
        "benchmark": name,
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": " ".join(["python", "-m", f"bench.{name}", *_settings(sys.argv[1:])]),
        "cpu": _processor(),
        "cores": os.cpu_count(),
        "gpus": _gpus(),
        "load_at_start": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
        "versions": _versions(_PACKAGES),
    }


def end() -> None:
    """Exits immediately: TensorFlow may take a minute to free an autotuned iterator."""
    sys.stdout.flush()
    os._exit(0)


def parser(name: str, doc: str | None) -> argparse.ArgumentParser:
    """Returns a parser with the options that all benchmarks have.

    Args:
      name: name of the benchmark's module.
      doc: its docstring.
    """
    made = argparse.ArgumentParser(prog=f"python -m bench.{name}", description=doc)
    made.formatter_class = argparse.RawDescriptionHelpFormatter
    made.add_argument("--rounds", type=_rounds, default=ROUNDS, help="samples of each side")
    made.add_argument("--out", type=_result_file, default=RESULTS / f"{name}.json")
    return made


def _rounds(text: str) -> int:
    if not (text.isdecimal() and int(text)):
        raise argparse.ArgumentTypeError(f"expected an integer of at least 1, got {text}")
    return int(text)


def _result_file(text: str) -> Path:
    """Refuses a path to which the results could not be written after the measurement."""
    path = Path(text)
    if path.is_dir() or any(parent.is_file() for parent in path.parents):
        raise argparse.ArgumentTypeError(f"expected the path of a file to write, got {text}")
    return path


def three_digits(number: float) -> str:
    """Formats a number with three significant digits, or as an integer if it is one or has more."""
    if abs(number) >= 100 or number == int(number):
        return f"{number:,.0f}"
    return f"{number:.{2 - math.floor(math.log10(abs(number)))}f}"


def _spread(samples: list[float]) -> dict[str, Any]:
    figures = {"median": float(np.median(samples)), "least": min(samples), "most": max(samples)}
    return {
        **{name: _rounded(figure) for name, figure in figures.items()},
        "samples": [_rounded(sample) for sample in samples],
    }


def _rounded(number: float) -> float:
    return float(f"{number:.5g}")


def _line(made: Mapping[str, Any]) -> str:
    median, least, most = (three_digits(made[key]) for key in ("median", "least", "most"))
    text = f"{made['figure']:44} {median:>9} {made['unit']} ({least} to {most})"
    if "ratio" in made:
        ratio = made["ratio"]
        text += f", {ratio['median']:.2f} x {made['peer']}"
        text += f" ({ratio['least']:.2f} to {ratio['most']:.2f})"
    return text


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.machine()


def _gpus() -> list[str]:
    """Returns the models of NVIDIA's GPUs that this process may use."""
    if not gpus.visible() or shutil.which("nvidia-smi") is None:
        return []
    command = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.splitlines()


def _versions(packages: Iterable[str]) -> dict[str, str]:
    found = {}
    for name in packages:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found
