"""Runs the tests on mutants; see `make mutants` and `python -m tests.mutants.run --help`.

TensorFlow is imported once, and every mutant runs in a fork of that process. The process itself
never runs a TensorFlow operation, because that would start threads, which do not survive a fork.
For the same reason, the workers of `--jobs` are processes, forked before the pool starts its
threads.
"""

import argparse
import ast
import contextlib
import fnmatch
import importlib
import importlib.util
import multiprocessing
import os
import random
import re
import signal
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tests.mutants.operators import Mutant, mutants

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
# Imported before the forks, because they are slow to import; they start no threads.
_PRELOADED = (
    *("numpy", "tensorflow", "sonnet", "tree", "reverb", "dm_env", "acme.specs", "acme.core"),
    *("acme.types", "acme.adders.base", "pytest", "hypothesis", "psutil"),
)
_MIN_SECONDS = 60


class Verdict(NamedTuple):
    """The result of the tests on one mutant.

    Attributes:
      killer: the first test that failed; "time" after a timeout; None if all passed.
      seconds: wall-clock time.
    """

    killer: str | None
    seconds: float


class Attempt(NamedTuple):
    """A module whose source is replaced, and the tests to run on it.

    Attributes:
      module: dotted name.
      source: the source to use instead.
      tests: test files, relative to the repository's root.
      timeout: seconds after which the tests are ended; the mutant then counts as killed.
    """

    module: str
    source: str
    tests: list[str]
    timeout: float


class Counts(NamedTuple):
    """Numbers of a module's mutants: killed, survived, and survivors not in `survivors.toml`."""

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


def verdict(attempt: Attempt) -> Verdict:
    """Runs tests in a fork, on a module whose source is replaced.

    The source is written to a file, because AutoGraph reads a function's source from its file.

    Raises:
      RuntimeError: if pytest could not run the tests.
    """
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        path, log = Path(folder) / f"{attempt.module.rpartition('.')[2]}.py", Path(folder) / "log"
        path.write_text(attempt.source)
        child = os.fork()
        if child == 0:
            status = 70
            try:
                status = _test(attempt.module, path, log, attempt.tests)
            finally:
                os._exit(status)
        try:
            status = _wait(child, started + attempt.timeout)
        finally:  # Also ends all processes that the tests have started.
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
        raise RuntimeError(f"pytest could not run {' '.join(attempt.tests)}:\n{text}")
    found = re.search(r"^(?:FAILED|ERROR) (?:\S*/)?(\w+\.py(?:::\w+)?)", text, re.M)
    return Verdict(found.group(1) if found else f"exit status {status}", seconds)


def _wait(child: int, deadline: float) -> int | None:
    """Returns the exit status of a child; None if it is still running at the deadline."""
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
    """Returns a module's mutants from `chosen.toml`, whose faults are written by hand."""
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
    parser.add_argument("--jobs", type=int, default=1, help="mutants that run at a time")
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
    # A thread of an allocator takes care of itself at a fork.
    names = [path.read_text().strip() for path in Path("/proc/self/task").glob("*/comm")]
    if len([name for name in names if not name.startswith("jemalloc")]) > 1:
        sys.exit("expected one thread before the forks; set OPENBLAS_NUM_THREADS=1")


def _try_all(selected: dict[str, list[Mutant]], tests: dict[str, list[str]], jobs: int) -> None:
    """Tests mutants, and prints a table of verdicts and a summary.

    Args:
      selected: the mutants of each module.
      tests: the test files of each module.
      jobs: number of mutants that run at a time.

    Raises:
      SystemExit: always: with a message if a module's tests fail without any fault, else with
        status 1 if a mutant survives that `survivors.toml` does not list, and 0 otherwise.
    """
    known = tomllib.loads((HERE / "survivors.toml").read_text())
    with multiprocessing.get_context("fork").Pool(jobs) as pool:
        unchanged = [Attempt(m, _file_of(m).read_text(), tests[m], 1800) for m in selected]
        limits = {}
        for module, result in zip(selected, pool.imap(verdict, unchanged), strict=True):
            if result.killer:
                sys.exit(f"{module}: its tests fail without any fault: {result.killer}")
            limits[module] = max(_MIN_SECONDS, 5 * result.seconds)
        verdicts = pool.imap(
            verdict,
            [Attempt(m, x.source, tests[m], limits[m]) for m in selected for x in selected[m]],
        )
        counts = {
            module: _print_verdicts(
                module, found, verdicts, {entry["name"] for entry in known.get(module, [])}
            )
            for module, found in selected.items()
        }
        # Do not rely on the SIGTERM that the end of `with` sends: a worker that is about to wait
        # for its next task would handle the signal only after the wait, which never ends.
        pool.close()
        pool.join()
    print("\n| Module | Killed | Survived |\n| --- | --- | --- |")
    for module, its in counts.items():
        print(f"| `{module}` | {its.killed} of {its.killed + its.survived} | {its.survived} |")
    sys.exit(any(its.unexpected for its in counts.values()))


def _print_verdicts(
    module: str, found: list[Mutant], verdicts: Iterator[Verdict], excused: set[str]
) -> Counts:
    print("\n| Module | Fault | Killed by |\n| --- | --- | --- |")
    killed = survived = unexpected = 0
    for mutant in found:
        killer = next(verdicts).killer
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
    selected = {m: _selected(m, options) for m in fnmatch.filter(targets, options.modules)}
    selected = {module: found for module, found in selected.items() if found}
    if options.list:
        for module, found in selected.items():
            for mutant in found:
                print(f"{module}:{mutant.line} {mutant.name}")
        return
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    _preload()
    _try_all(selected, targets, options.jobs)


if __name__ == "__main__":
    main()
