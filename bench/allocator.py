"""A whole training run with `RL_REPLICATOR_ALLOCATOR=jemalloc`, and with glibc's malloc.

    python -m bench.allocator

`rl-replicator train d4pg --env cheetah:run`, in threads with one actor, two learner steps for each
environment step after the first 5,000, from the start of the command to its end. This includes its
start-up, which takes about 8 processor seconds, and one evaluation episode.
"""

import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from bench import harness
from rl_replicator.processes import allocator

CLOCK = harness.Unit("s a run", more_is_better=False)
PROCESSOR = harness.Unit("processor seconds a run", more_is_better=False)
COMMAND = ["train", "d4pg", "--env", "cheetah:run", "--seed", "1", "--no-video"]
COMMAND += ["--evaluation.every", "100000000", "--evaluation.last-episodes", "1"]
SIDES = {"jemalloc": "jemalloc", "glibc's malloc": "system"}


def train(choice: str, steps: int) -> Mapping[harness.Unit, float]:
    """Trains once.

    Args:
      choice: value of `RL_REPLICATOR_ALLOCATOR`.
      steps: environment steps.
    """
    environment = {**os.environ, allocator.VARIABLE: choice, "LD_PRELOAD": ""}
    with tempfile.TemporaryDirectory() as folder:
        words = [*COMMAND, "--steps", str(steps), "--run-dir", str(Path(folder) / "run")]
        command = [sys.executable, "-m", "rl_replicator.cli.main", *words]
        clock, used = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(
            command, env=environment, cwd=harness.ROOT, check=True, stdout=subprocess.DEVNULL
        )
        clock, now = time.monotonic() - clock, resource.getrusage(resource.RUSAGE_CHILDREN)
    processor = now.ru_utime - used.ru_utime + now.ru_stime - used.ru_stime
    return {CLOCK: clock, PROCESSOR: processor}


def main() -> None:
    """Measures both."""
    parser = harness.parser("allocator", __doc__)
    parser.add_argument("--steps", type=int, default=6000, help="environment steps of a run")
    options = parser.parse_args()
    report = harness.Report("allocator", options)
    sides = {
        name: lambda choice=choice: train(choice, options.steps) for name, choice in SIDES.items()
    }
    samples = harness.measure(sides, options.rounds, warm_up=0)
    report.add(samples, {"jemalloc": "glibc's malloc"})
    report.write()


if __name__ == "__main__":
    main()
