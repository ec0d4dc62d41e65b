"""Runs pytest under a watcher: `python -m tests.suite [--workers N] [--deadline S] ARGUMENTS`.

pytest-timeout and pytest-xdist end a test that takes too long if its process still responds. The
watcher ends the run in all other cases: a worker died, native code blocks a test while holding the
GIL, or the run passes its deadline. It names the tests that were running and leaves no process
behind. A run that ends by itself fails if it leaves processes or shared memory behind. Temporary
files go to a folder that is removed at the end, because a killed process does not remove those of
TensorFlow.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.suite import durations, forked, leftovers, stacks
from tests.suite.plugin import DIRECTORY_VARIABLE, records

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_LIBC = ctypes.CDLL(None)
# Seconds for pytest to end after a worker has died or after Ctrl-C.
_CLOSING = 25.0


class Watcher:
    """One run of pytest."""

    def __init__(
        self, directory: Path, deadline: float, patience: float, measures_waits: bool = False
    ):
        """Does not start pytest yet.

        Args:
          directory: where the processes of pytest record what they are running.
          deadline: seconds for the whole run.
          patience: seconds past a test's limit before the watcher ends the run; pytest-timeout ends
            most tests within them.
          measures_waits: whether `waits` measures how long the test files wait.
        """
        self._directory = directory
        self._deadline = deadline
        self._patience = patience
        self.waits = durations.WaitMeter() if measures_waits else None
        self._signal: int | None = None
        self._dead_since: float | None = None

    def run(self, command: list[str]) -> tuple[int, str | None]:
        """Runs a command until it ends.

        Returns:
          The exit status, and the reason if it was ended early, else None.
        """
        # Descendants whose parents end become children of this process, so that none is missed.
        _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._on_signal)
        temporary = self._directory / "t"  # Short: paths of sockets have at most 107 characters.
        temporary.mkdir()
        # `tmp_path` stays at its usual place, so that the files of failed tests can be inspected.
        environment = {"PYTEST_DEBUG_TEMPROOT": tempfile.gettempdir(), **os.environ}
        environment |= {DIRECTORY_VARIABLE: str(self._directory), "TMPDIR": str(temporary)}
        if self.waits is not None:  # Per-file seconds need one server per process.
            return self._watch(command, environment)
        with forked.shared(self._directory / "forked") as variables:
            return self._watch(command, environment | variables)

    def _watch(self, command: list[str], environment: dict[str, str]) -> tuple[int, str | None]:
        child = subprocess.Popen(command, env=environment, preexec_fn=_die_with_parent)
        started = time.monotonic()
        while child.pid not in (statuses := leftovers.collect()[0]):
            reason = self._reason(time.monotonic() - started)
            if reason is not None:
                self._report(reason)
                return 124, reason
            if self.waits is not None:
                self.waits.sample(records(self._directory))
            time.sleep(0.2)
        child.returncode = os.waitstatus_to_exitcode(statuses[child.pid])
        if child.returncode < 0:
            return 1, f"pytest ended by signal {-child.returncode}"
        return child.returncode, None

    def _on_signal(self, number: int, frame) -> None:
        self._signal = number

    def _reason(self, elapsed: float) -> str | None:
        """Returns why the run has to end now, or None."""
        if elapsed > self._deadline:
            return f"the run passed its deadline of {self._deadline:.0f} s"
        if self._signal is not None:
            if self._signal != signal.SIGINT:
                return f"the run received {signal.Signals(self._signal).name}"
            self._dead_since = self._dead_since or time.monotonic()  # pytest got it too.
        for record in records(self._directory):
            seconds = time.monotonic() - record["since"]
            if not leftovers.is_alive(record["pid"]):
                self._dead_since = self._dead_since or time.monotonic()
            elif record["limit"] and seconds > record["limit"] + self._patience:
                return f"{record['activity']} passed its limit of {record['limit']:.0f} s"
        if self._dead_since and time.monotonic() > self._dead_since + _CLOSING:
            return "a process of pytest died and the others did not end"
        return None

    def _report(self, reason: str) -> None:
        """Prints why the run is ended by force, and which tests were running."""
        _say(reason)
        for record in records(self._directory):
            if record["activity"]:
                seconds = time.monotonic() - record["since"]
                _say(f"was running for {seconds:.0f} s: {record['activity']}")


def _die_with_parent() -> None:
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def _say(text: str) -> None:
    print(f"suite: {text}", file=sys.stderr, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.suite", description=__doc__, allow_abbrev=False
    )
    parser.add_argument("--workers", type=int, default=3, help="processes that run tests")
    parser.add_argument("--deadline", type=float, default=2400, help="seconds for the whole run")
    parser.add_argument("--patience", type=float, default=20, help="seconds beyond a test's limit")
    parser.add_argument("--grace", type=float, default=15, help="seconds for processes to end")
    parser.add_argument(
        "--record",
        action="store_true",
        help="print the CPU seconds and waits of files and keep them, to order later runs by",
    )
    options, arguments = parser.parse_known_args()
    command = [sys.executable, "-m", "pytest", "-p", "tests.suite.plugin"]
    if options.workers > 1:
        # The plugin keeps files whole and starts long ones first.
        command += ["-n", str(options.workers), "--dist", "loadfile", "--no-loadscope-reorder"]
        command += ["--max-worker-restart", "0"]
    shared_memory = leftovers.SharedMemory()
    with tempfile.TemporaryDirectory(prefix="suite-") as directory:
        watcher = Watcher(Path(directory), options.deadline, options.patience, options.record)
        try:
            status, reason = watcher.run([*command, *arguments])
            if reason is None:
                left = leftovers.wait_until_clean(shared_memory, options.grace)
                for line in left:
                    _say(f"left behind: {line}")
                status = status or int(bool(left))
                if watcher.waits is not None and not status:
                    durations.record(Path(directory), watcher.waits.seconds)
        finally:
            leftovers.kill_descendants()
            for path in sorted(Path(directory).glob("*.stacks")):
                if text := path.read_text():
                    _say(f"stacks of {path.stem}:\n{stacks.shorten(text)}")
    return status


if __name__ == "__main__":
    sys.exit(main())
