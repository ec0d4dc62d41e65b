"""Runs all benchmarks that two idle cores finish in half an hour: `make bench`.

    python -m bench [--only NAME ...] [--output FOLDER]

Each one runs in its own process, with its own time limit, and writes FOLDER/NAME.json.
`python -m bench.NAME` runs one of them with other settings. `python -m bench.tables` makes the
tables in docs/ from the files in bench/results.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from bench.harness import RESULTS, ROOT

# Time limit of each benchmark, in seconds.
SUITE = {
    "peers": 100,  # Installs them.
    "acting_policy": 40,
    "actors": 120,
    "asynchronous": 60,
    "env_engines": 100,
    "environment_steps": 30,
    "fused_adam": 60,
    "inputs": 160,
    "learner": 110,
    "learner_program": 60,
    "pixel_replay": 120,
    "rendering": 300,
    "replay_rows": 60,
    "replication": 100,
    "rpc": 70,
    "start_up": 160,
    "supervised": 130,
}
NOT_IN_THE_SUITE = {
    "envpool_tasks": "compares simulators, not speeds, for twenty minutes",
    "learner_profile": "explains the figures of learner",
    "pixel_learner": "takes more than four minutes",
    "device_inputs": "needs a GPU",
    "plan": "compares predictions with fourteen training runs, which take 20 minutes",
    "kills": "kills parts of a run for minutes or hours",
    "faults": "injects faults for minutes or hours",
    "soak": "runs for hours",
    "time_to_return": "trains ten times, for twenty minutes",
    "random_exploration": "counts rewards, not speeds",
    "two_hosts": "needs network namespaces",
}


def run(name: str, folder: Path) -> str | None:
    """Runs one benchmark.

    Args:
      name: name of its module.
      folder: folder for its result file.

    Returns:
      Why it failed; None if it did not.
    """
    command = [sys.executable, "-m", f"bench.{name}"]
    if name != "peers":
        command += ["--output", str(folder / f"{name}.json")]
    process = subprocess.Popen(command, cwd=ROOT, start_new_session=True)
    try:
        status = process.wait(SUITE[name])
        return f"exit status {status}" if status else None
    except subprocess.TimeoutExpired:
        return f"not done after {SUITE[name]} s"
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def main() -> int:
    """Runs the benchmarks; returns 1 if one of them failed."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--only", nargs="+", choices=list(SUITE), default=list(SUITE))
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args()
    if options.output.is_file():
        parser.error(f"argument --output: expected a folder, got the file {options.output}")
    failed = {}
    for name in options.only:
        print(f"--- {name}, at most {SUITE[name]} s", flush=True)
        started = time.monotonic()
        reason = run(name, options.output.absolute())
        if reason is not None:
            failed[name] = reason
        print(f"--- {name}: {reason or 'done'}, {time.monotonic() - started:.0f} s", flush=True)
    for name, reason in NOT_IN_THE_SUITE.items():
        print(f"not run: {name}, which {reason}")
    for name, reason in failed.items():
        print(f"failed: {name}: {reason}", file=sys.stderr)
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
