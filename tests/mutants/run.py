"""Runs the tests on mutants: `make mutants`, or `python -m tests.mutants.run --help`.

TensorFlow is imported once, and every mutant runs in a fork of that process. The process itself
never runs a TensorFlow operation: that would start threads, which do not survive a fork.
"""

import argparse
import ast
import contextlib
import fnmatch
import importlib
import importlib.util
import os
import random
import re
import signal
import sys
import tempfile
import time
import tomllib
from pathlib import Path
from typing import NamedTuple

from tests.mutants.operators import Mutant, mutants

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
# Imported before the forks: slow to import, and they start no threads.
_PRELOADED = (
    *("numpy", "tensorflow", "sonnet", "tree", "reverb", "dm_env", "acme.specs", "acme.core"),
    *("acme.types", "acme.adders.base", "pytest", "hypothesis", "psutil"),
)
_MIN_SECONDS = 60


class Verdict(NamedTuple):
    """The result of the tests on one mutant.

    Attributes:
      killer: the first test that failed, "time" after a timeout, None if all passed.
      seconds: wall-clock time.
    """

    killer: str | None
    seconds: float


class Counts(NamedTuple):
    """Mutants of one module: killed, survived, and of the survivors those that nobody listed."""

    killed: int
    survived: int
    unexpected: int


class _Finder:
    """Imports one module from another file."""

    def __init__(self, module: str, path: Path):
        self._module, self._path = module, path

    def find_spec(self, name, path=None, target=None):
        del path, target
        if name != self._module:
            return None
        return importlib.util.spec_from_file_location(name, self._path)


def attempt(module: str, source: str, tests: list[str], timeout: float) -> Verdict:
    """Runs tests on a module whose text is replaced, in a fork.

    The text is written to a file, because AutoGraph compiles from the source file of a function.

    Args:
      module: dotted name of the module.
      source: its text.
      tests: files of tests, from the repository's root.
      timeout: seconds after which the tests are ended, which counts as killed.

    Returns:
      The verdict.
    """
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        path, log = Path(folder) / f"{module.rpartition('.')[2]}.py", Path(folder) / "log"
        path.write_text(source)
        child = os.fork()
        if child == 0:
            status = 70
            try:
                status = _test(module, path, log, tests)
            finally:
                os._exit(status)
        try:
            status = _wait(child, started + timeout)
        finally:  # Ends all that the tests have started, too.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child, signal.SIGKILL)
        if status is None:
            os.waitpid(child, 0)
            return Verdict("time", time.monotonic() - started)
        text = log.read_text(errors="replace")
    seconds = time.monotonic() - started
    if status == 0:
        return Verdict(None, seconds)
    if status in (4, 5):
        sys.exit(f"pytest could not run {' '.join(tests)}:\n{text}")
    found = re.search(r"^(?:FAILED|ERROR) (?:\S*/)?(\w+\.py(?:::\w+)?)", text, re.M)
    return Verdict(found.group(1) if found else f"exit status {status}", seconds)


def _wait(child: int, deadline: float) -> int | None:
    """The exit status of a child; None if it still runs at the deadline."""
    while time.monotonic() < deadline:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.05)
    return None


def _test(module: str, path: Path, log: Path, tests: list[str]) -> int:
    os.setsid()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    with log.open("w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    sys.meta_path.insert(0, _Finder(module, path))
    import pytest

    return int(pytest.main(["-x", "--tb=no", "-p", "no:cacheprovider", *tests]))


def _file_of(module: str) -> Path:
    return ROOT / f"{module.replace('.', '/')}.py"


def _chosen(module: str) -> list[Mutant]:
    """Those of `chosen.toml`: faults that a person wrote."""
    source, found = _file_of(module).read_text(), []
    for entry in tomllib.loads((HERE / "chosen.toml").read_text())["mutants"]:
        if entry["module"] != module:
            continue
        before, after = entry["before"].strip("\n"), entry["after"].strip("\n")
        if source.count(before) != 1:
            sys.exit(f"chosen.toml, {entry['name']}: expected its `before` once in {module}")
        line = source[: source.index(before)].count("\n") + 1
        found.append(Mutant(entry["name"], line, source.replace(before, after)))
        ast.parse(found[-1].source)
    return found


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--modules", default="*", help="those that match, such as 'agents.*'")
    parser.add_argument("--only", default="", help="mutants whose name contains this")
    parser.add_argument("--sample", type=int, help="at most so many per module, drawn at random")
    parser.add_argument("--chosen", action="store_true", help="those of chosen.toml alone")
    parser.add_argument("--list", action="store_true", help="print the mutants and run nothing")
    return parser.parse_args()


def _selected(module: str, options: argparse.Namespace) -> list[Mutant]:
    found = _chosen(module) if options.chosen else mutants(_file_of(module).read_text())
    found = [mutant for mutant in found if options.only in mutant.name]
    if options.sample and len(found) > options.sample:
        return random.Random(0).sample(found, options.sample)
    return found


def _preload() -> None:
    for name in _PRELOADED:
        importlib.import_module(name)
    if len(os.listdir("/proc/self/task")) > 1:
        sys.exit("expected one thread before the forks; set OPENBLAS_NUM_THREADS=1")


def _try_all(module: str, found: list[Mutant], tests: list[str], excused: set[str]) -> Counts:
    baseline = attempt(module, _file_of(module).read_text(), tests, timeout=1800)
    if baseline.killer:
        sys.exit(f"{module}: its tests fail without any fault: {baseline.killer}")
    limit = max(_MIN_SECONDS, 5 * baseline.seconds)
    print("\n| Module | Fault | Killed by |\n| --- | --- | --- |")
    killed = survived = unexpected = 0
    for mutant in found:
        killer = attempt(module, mutant.source, tests, limit).killer
        killed += killer is not None
        survived += killer is None
        unexpected += killer is None and mutant.name not in excused
        print(f"| `{module}` | {mutant.name} | {killer or '**survived**'} |", flush=True)
        if killer and mutant.name in excused:
            print("survivors.toml lists that one: delete it there", file=sys.stderr)
    return Counts(killed, survived, unexpected)


def main() -> None:
    """Prints a table; exits with 1 if a mutant survives that `survivors.toml` does not list."""
    options = _options()
    targets = tomllib.loads((HERE / "targets.toml").read_text())
    known = tomllib.loads((HERE / "survivors.toml").read_text())
    if not options.list:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
        _preload()
    unexpected, summary = 0, []
    for module in fnmatch.filter(targets, options.modules):
        found = _selected(module, options)
        if options.list:
            for mutant in found:
                print(f"{module}:{mutant.line} {mutant.name}")
        elif found:
            excused = {entry["name"] for entry in known.get(module, [])}
            counts = _try_all(module, found, targets[module], excused)
            unexpected += counts.unexpected
            summary.append(f"| `{module}` | {counts.killed} of {len(found)} | {counts.survived} |")
    if summary:
        print("\n".join(["", "| Module | Killed | Survived |", "| --- | --- | --- |", *summary]))
    sys.exit(unexpected > 0)


if __name__ == "__main__":
    main()
