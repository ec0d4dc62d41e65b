"""The pytest plugin of the suite: order, stacks, and the end of a run whose worker has died.

`python -m tests.suite` loads it with `-p`.
"""

from __future__ import annotations

import collections
import faulthandler
import os
import signal
import sys
import time
from pathlib import Path

import psutil
import pytest
from xdist.scheduler import LoadFileScheduling

DIRECTORY_VARIABLE = "RL_REPLICATOR_SUITE"
# Rough weights of the tests' markers, to start long files first. A limit counts by its seconds.
_WEIGHTS = {"learning": 60, "processes": 5, "slow": 4}
_SECONDS_PER_WEIGHT = 30
# Files whose tests share one Ray: a process that runs any of them starts Ray once and keeps it.
_RAY = frozenset(
    f"tests/launchpad/test_{name}.py"
    for name in ("conformance", "nodes", "ray", "resources", "upstream_programs")
)


def _scope(nodeid: str) -> str:
    """Returns the name of the group of tests, all run by one process, that a test belongs to.

    Module-scoped fixtures are expensive, so the tests of a file stay together.
    """
    file = nodeid.partition("::")[0]
    return "Ray" if file in _RAY else file


class Scheduling(LoadFileScheduling):
    """Distributes whole scopes to the processes."""

    def _split_scope(self, nodeid: str) -> str:
        return _scope(nodeid)


class Plugin:
    """Hooks of an xdist worker, or of the only pytest process."""

    def __init__(self, path: Path):
        """Lets SIGUSR1 write all stacks.

        Args:
          path: for stacks: pytest-xdist discards what a worker prints.
        """
        self._file = path.open("w")
        faulthandler.register(signal.SIGUSR1, file=self._file)

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items):
        """Moves long scopes to the front, so that the workers end at about the same time."""
        weights: collections.Counter[str] = collections.Counter()
        for item in items:
            markers = {marker.name for marker in item.iter_markers()}
            weight = 1 + sum(_WEIGHTS.get(name, 0) for name in markers)
            if limit := item.get_closest_marker("timeout"):
                weight += limit.args[0] // _SECONDS_PER_WEIGHT
            weights[_scope(item.nodeid)] += weight
        items.sort(key=lambda item: -weights[_scope(item.nodeid)])

    @pytest.hookimpl(hookwrapper=True)
    def pytest_collection(self):
        # Collection may write bytecode: without it, every process would compile all test files
        # again, including pytest's rewritten asserts. PYTHONDONTWRITEBYTECODE still holds for the
        # tests and for the programs that they start.
        writes_none, sys.dont_write_bytecode = sys.dont_write_bytecode, False
        yield
        sys.dont_write_bytecode = writes_none

    @pytest.hookimpl(tryfirst=True)
    def pytest_timeout_set_timer(self, settings):
        # In place of pytest-timeout's own thread, which can't end a test whose native code holds
        # the GIL.
        faulthandler.dump_traceback_later(settings.timeout, file=self._file, exit=True)
        return True

    @pytest.hookimpl(tryfirst=True)
    def pytest_timeout_cancel_timer(self):
        faulthandler.cancel_dump_traceback_later()
        return True


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
        # continue, and its scheduler then waits forever for the tests of the dead one.
        if self._crashed is not None:
            stacks(self._directory)
            for child in psutil.Process().children():
                child.kill()  # pytest-xdist would wait for 10 s.
            pytest.exit(f"the process that ran {self._crashed} died", returncode=1)


def stacks(directory: Path) -> None:
    """Makes all processes that run tests write their stacks.

    Args:
      directory: of this run.
    """
    for path in directory.glob("*.pid"):
        try:
            os.kill(int(path.read_text()), signal.SIGUSR1)
        except (ProcessLookupError, ValueError):
            continue
    time.sleep(1.0)


def pytest_configure(config):
    if DIRECTORY_VARIABLE not in os.environ:
        return
    directory = Path(os.environ[DIRECTORY_VARIABLE])
    worker = getattr(config, "workerinput", {}).get("workerid")
    if worker is None and config.getoption("numprocesses", None):
        config.pluginmanager.register(ControllerPlugin(directory))
        return
    config.pluginmanager.register(Plugin(directory / f"{worker or 'main'}.stacks"))
    (directory / f"{worker or 'main'}.pid").write_text(str(os.getpid()))
