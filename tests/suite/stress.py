"""Repeats tests on busy cores, counts failures: `python -m tests.suite.stress N TESTS...`."""

from __future__ import annotations

import argparse
import collections
import contextlib
import re
import subprocess
import sys
from collections.abc import Iterator

# Ends when its parent ends, even if the parent is killed.
_BUSY_LOOP = """
import os, sys, threading
threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0))).start()
while True:
    pass
"""
_FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+)", re.MULTILINE)
# Lines that the watcher prints when it ends a run.
_WATCHER = re.compile(r"^suite: (?!stacks)(.*)", re.MULTILINE)


@contextlib.contextmanager
def busy_loops(count: int) -> Iterator[None]:
    """Keeps `count` cores busy."""
    loops = [
        subprocess.Popen([sys.executable, "-c", _BUSY_LOOP], stdin=subprocess.PIPE)
        for _ in range(count)
    ]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.suite.stress", description=__doc__)
    parser.add_argument("times", type=int, help="how often to run the tests")
    parser.add_argument("--busy", type=int, default=2, help="busy loops beside the tests")
    options, arguments = parser.parse_known_args()
    command = [sys.executable, "-m", "tests.suite", "--workers", "1", *arguments]
    failed_runs, failures = 0, collections.Counter()
    with busy_loops(options.busy):
        for i in range(options.times):
            done = subprocess.run(
                command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
            )
            print(f"run {i + 1} of {options.times}: exit status {done.returncode}", flush=True)
            if done.returncode:
                failed_runs += 1
                print(done.stdout, flush=True)
                failures.update(set(_FAILED.findall(done.stdout) + _WATCHER.findall(done.stdout)))
    print(f"{failed_runs} of {options.times} runs failed")
    for name, count in failures.most_common():
        print(f"{count:5d}  {name}")
    return int(failed_runs > 0)


if __name__ == "__main__":
    sys.exit(main())
