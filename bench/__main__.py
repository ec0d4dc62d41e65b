"""Runs all benchmarks that two idle cores finish in half an hour: `make bench`.

    python -m bench [--only NAME ...] [--out FOLDER]

Each one runs in its own process, with its own time limit, and writes FOLDER/NAME.json.
`python -m bench.NAME` runs one of them with other settings. `python -m bench.tables` makes the
tables of bench/results/README.md from the files beside it.
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
    "actors": 120,
    "learner": 110,
    "pixel_learner": 240,
    "replication": 100,
    "rpc": 70,
    "start_up": 160,
    "supervised": 130,
}
NOT_IN_THE_SUITE = {
    "packages": "installs thirty packages of environments",
    "own_loops": "measures a learner of yours",
    "faults": "injects faults for minutes or hours",
    "pixel_probe": "reads a run from pixels",
    "sbx": "installs SBX, and trains twenty times",
    "soak": "runs for hours",
    "time_to_return": "trains ten times, for twenty minutes",
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
        command += ["--out", str(folder / f"{name}.json")]
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
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    if options.out.is_file():
        parser.error(f"argument --out: expected a folder, got the file {options.out}")
    failed = {}
    for name in options.only:
        print(f"--- {name}, at most {SUITE[name]} s", flush=True)
        started = time.monotonic()
        reason = run(name, options.out.absolute())
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
