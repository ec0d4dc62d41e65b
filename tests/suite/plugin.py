"""The pytest plugin of the suite: records which test each process runs.

`python -m tests.suite` loads it with `-p`. Every process that runs tests writes one file, which the
watcher reads.
"""

from __future__ import annotations

import collections
import contextlib
import faulthandler
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadFileScheduling

from tests.suite import durations

DIRECTORY_VARIABLE = "RL_REPLICATOR_SUITE"
# Seconds that collection may take in a process.
_COLLECTION_LIMIT = 600.0
# Files whose tests share one Ray: a process that runs any of them starts Ray once and keeps it.
RAY = frozenset(
    f"tests/launchpad/test_{name}.py"
    for name in ("conformance", "nodes", "ray", "resources", "upstream_programs")
)


class Progress:
    """Records what one pytest process is running."""

    def __init__(self, directory: Path, name: str):
        """Does not write a record yet.

        Args:
          directory: where the watcher reads the records.
          name: of this process: the worker's id, or "main".
        """
        self._path = directory / f"{name}.json"
        self._stacks = (directory / f"{name}.stacks").open("w")

    def note(self, activity: str | None, limit: float | None = None) -> None:
        """Writes the record, in place of the last one.

        Args:
          activity: a test's node id, or another description; None between tests.
          limit: seconds that the activity may take; None for no limit.
        """
        record = {
            "pid": os.getpid(),
            "activity": activity,
            "since": time.monotonic(),
            "limit": limit,
        }
        new = self._path.with_suffix(".new")
        new.write_text(json.dumps(record))
        new.replace(self._path)  # The watcher never reads half a record.

    def dump_before(self, limit: float) -> None:
        """Schedules a dump of all stacks shortly before a test reaches its limit.

        pytest-timeout writes them too, but pytest-xdist discards what a worker prints.
        """
        faulthandler.dump_traceback_later(max(limit - 1, limit / 2), file=self._stacks)

    def forget_stacks(self) -> None:
        """Cancels the dump and deletes the stacks, after a test that ended by itself."""
        faulthandler.cancel_dump_traceback_later()
        self._stacks.seek(0)
        self._stacks.truncate()

    def close(self) -> None:
        """Removes the record."""
        self._path.unlink(missing_ok=True)


def _limit(item: pytest.Item) -> float:
    """Returns the time limit of a test's own marker; 0 if the test has the default limit."""
    marker = item.get_closest_marker("timeout")
    return float(marker.args[0]) if marker and marker.args else 0.0


def scope(nodeid: str) -> str:
    """Returns the name of the group of tests, all run by one process, that a test belongs to.

    Module-scoped fixtures are expensive, so the tests of a file stay together.

    Args:
      nodeid: of a test.
    """
    file = nodeid.partition("::")[0]
    return "Ray" if file in RAY else file


class Scheduling(LoadFileScheduling):
    """Distributes whole scopes to the processes."""

    def _split_scope(self, nodeid: str) -> str:
        return scope(nodeid)


class Plugin:
    """Hooks of an xdist worker, or of the only pytest process."""

    def __init__(self, progress: Progress, meter: durations.Meter):
        self._progress = progress
        self._meter = meter

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items):
        """Moves long scopes to the front, so that the workers end at about the same time."""
        known: collections.Counter[str] = collections.Counter()
        for file, seconds in durations.read().items():
            known[scope(file)] += seconds
        longest: dict[Path, float] = {}
        for item in items:
            longest[item.path] = max(longest.get(item.path, 0.0), _limit(item))

        def key(item: pytest.Item) -> tuple[float, float]:
            return -known[scope(item.nodeid)], -longest[item.path]

        items.sort(key=key)

    @pytest.hookimpl(hookwrapper=True)
    def pytest_collection(self):
        self._progress.note("collection", _COLLECTION_LIMIT)
        # Collection may write bytecode: without it, every process would compile all test files
        # again, including pytest's rewritten asserts. PYTHONDONTWRITEBYTECODE still holds for the
        # tests and for the programs that they start.
        writes_none, sys.dont_write_bytecode = sys.dont_write_bytecode, False
        yield
        sys.dont_write_bytecode = writes_none

    def pytest_collection_finish(self):
        self._progress.note(None)

    @pytest.hookimpl(hookwrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item):
        self._progress.note(item.nodeid)
        self._meter.enter(item.nodeid.partition("::")[0])
        yield
        self._progress.forget_stacks()
        self._progress.note(None)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self):
        self._meter.close()
        self._progress.close()  # From here on, the process may end at any time.

    @pytest.hookimpl(tryfirst=True)
    def pytest_timeout_set_timer(self, item, settings):
        # pytest-timeout ends the test at this limit; if that fails, the watcher ends the run later.
        self._progress.note(item.nodeid, settings.timeout)
        self._progress.dump_before(settings.timeout)


class ControllerPlugin:
    """Hooks of pytest-xdist's controller."""

    def __init__(self, directory: Path):
        self._directory = directory
        self._crashed: str | None = None

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_make_scheduler(self, config, log):
        return Scheduling(config, log)

    @pytest.hookimpl(optionalhook=True)
    def pytest_handlecrashitem(self, crashitem):
        self._crashed = crashitem

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self, report):
        if report.failed:
            # Print it immediately, because the log may be cut off before pytest's own summary.
            crash = getattr(report.longrepr, "reprcrash", None)
            line = (crash.message if crash else str(report.longrepr)).partition("\n")[0]
            print(f"\nsuite: failed: {report.nodeid} ({report.when}): {line}", flush=True)
        # pytest-xdist passes the report of the crash to this hook. It would let the other workers
        # continue, and some of its schedulers then wait forever for the tests of the dead one.
        if self._crashed is not None:
            for record in records(self._directory):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(record["pid"], signal.SIGKILL)  # pytest-xdist would wait for 10 s.
            pytest.exit(f"the process that ran {self._crashed} died", returncode=1)


def records(directory: Path) -> list[dict[str, Any]]:
    """Returns the record of every process that runs tests: pid, activity, since, limit."""
    found = []
    for path in sorted(directory.glob("*.json")):
        with contextlib.suppress(FileNotFoundError):  # The process ended meanwhile.
            found.append(json.loads(path.read_text()))
    return found


def pytest_configure(config):
    if DIRECTORY_VARIABLE not in os.environ:
        return
    directory = Path(os.environ[DIRECTORY_VARIABLE])
    worker = getattr(config, "workerinput", {}).get("workerid")
    if worker is None and config.getoption("numprocesses", None):
        config.pluginmanager.register(ControllerPlugin(directory))
        return
    progress = Progress(directory, worker or "main")
    meter = durations.Meter(directory / f"{worker or 'main'}.durations")
    config.pluginmanager.register(Plugin(progress, meter))
