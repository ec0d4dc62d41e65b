"""Runs pytest under a deadline: `python -m tests.suite [--workers N] [--deadline S] ARGUMENTS`.

The plugin of this package ends a test that takes too long, and the run with it. This process ends
the run at its deadline or at a signal, prints the stacks of what was running, and fails a run that
leaves processes or shared memory behind. Temporary files
go to a folder that is removed at the end, because a killed process does not remove those of
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

from tests.suite import forked, leftovers
from tests.suite.plugin import DIRECTORY_VARIABLE, stacks

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_LIBC = ctypes.CDLL(None)
# Seconds for pytest to end after Ctrl-C.
_CLOSING = 25.0


def run(command: list[str], directory: Path, deadline: float) -> tuple[int, str | None]:
    """Runs a command until it ends, its deadline passes, or this process receives a signal.

    Args:
      command: the command.
      directory: for stacks and temporary files.
      deadline: seconds.

    Returns:
      The exit status, and why the command was ended early; None if it was not.
    """
    # Descendants whose parents end become children of this process, so that none is missed.
    _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    signals: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda number, frame: signals.append(number))
    temporary = directory / "t"  # Short: paths of sockets have at most 107 characters.
    temporary.mkdir()
    # `tmp_path` stays at its usual place, so that the files of failed tests can be inspected.
    environment = {"PYTEST_DEBUG_TEMPROOT": tempfile.gettempdir(), **os.environ}
    environment |= {DIRECTORY_VARIABLE: str(directory), "TMPDIR": str(temporary)}
    # Only the plugins below: the others take each process a second to import.
    environment["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    end = time.monotonic() + deadline
    reason = None
    with forked.shared(directory / "forked") as variables:
        child = subprocess.Popen(
            command,
            env=environment | variables,
            preexec_fn=lambda: _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0),
        )
        while child.pid not in (statuses := leftovers.collect()[0]):
            if signals and reason is None:
                reason = f"the run received {signal.Signals(signals[0]).name}"
                # pytest ends by itself after Ctrl-C, which it got too.
                end = time.monotonic() + (_CLOSING if signals[0] == signal.SIGINT else 0.0)
            if time.monotonic() > end:
                stacks(directory)
                return 124, reason or f"the run passed its deadline of {deadline:.0f} s"
            time.sleep(0.2)
    status = os.waitstatus_to_exitcode(statuses[child.pid])
    child.returncode = status
    return (status, None) if status >= 0 else (1, f"pytest ended by signal {-status}")


def _say(text: str) -> None:
    print(f"suite: {text}", file=sys.stderr, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.suite", description=__doc__, allow_abbrev=False
    )
    parser.add_argument("--workers", type=int, default=3, help="processes that run tests")
    parser.add_argument("--deadline", type=float, default=2400, help="seconds for the whole run")
    parser.add_argument("--grace", type=float, default=60, help="seconds for processes to end")
    options, arguments = parser.parse_known_args()
    command = [sys.executable, "-m", "pytest"]
    for plugin in ("xdist.plugin", "pytest_timeout", "tests.suite.plugin"):
        command += ["-p", plugin]
    if options.workers > 1:
        # The plugin keeps files whole and starts long ones first.
        command += ["-n", str(options.workers), "--dist", "loadfile", "--no-loadscope-reorder"]
        command += ["--max-worker-restart", "0"]
    shared_memory = leftovers.SharedMemory()
    with tempfile.TemporaryDirectory(prefix="suite-") as directory:
        try:
            status, reason = run([*command, *arguments], Path(directory), options.deadline)
            if reason is not None:
                _say(reason)
            else:
                left = leftovers.wait_until_clean(shared_memory, options.grace)
                for line in left:
                    _say(f"left behind: {line}")
                status = status or int(bool(left))
        finally:
            leftovers.kill_descendants()
            for path in sorted(Path(directory).glob("*.stacks")):
                if text := path.read_text():
                    _say(f"stacks of {path.stem}:\n{text}")
    return status


if __name__ == "__main__":
    sys.exit(main())
