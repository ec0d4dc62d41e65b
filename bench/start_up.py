"""The time from the command to the first learner step, and the memory of a run at that moment.

    python -m bench.start_up

`rl-replicator train d4pg --env cartpole:swingup`, in threads with one actor and in processes with
four. The time ends when `metrics/learner.csv` has its first row: the learner reports once a second,
and waits for 256 transitions before its first step. Processor time and memory are those of all
processes of the run at that moment; memory that processes share is divided among them.
"""

import time
from collections.abc import Mapping
from pathlib import Path

import psutil

from bench import harness, processes
from rl_replicator.runs.metrics import read_metrics

SECONDS = harness.Unit("s to the first learner step", more_is_better=False)
PROCESSOR = harness.Unit("processor seconds", more_is_better=False)
MEMORY = harness.Unit("MB, all processes", more_is_better=False)
LARGEST = harness.Unit("MB, largest process", more_is_better=False)
NUMBER = harness.Unit("processes", more_is_better=False)
DEADLINE = 300.0
COMMAND = ["train", "d4pg", "--env", "cartpole:swingup", "--steps", "1000000", "--no-video"]
COMMAND += ["--agent.replay.min-size", "256", "--evaluation.every", "100000000"]
SIDES = {
    "threads, 1 actor": ["--launch", "threads"],
    "processes, 4 actors": ["--launch", "processes", "--actors", "4"],
}


def start(words: list[str]) -> Mapping[harness.Unit, float]:
    """Starts a run, and measures it at its first learner step."""
    started = time.monotonic()
    with processes.running([*COMMAND, *words]) as program:
        program.wait(lambda: has_stepped(program.run_dir), DEADLINE)
        seconds = time.monotonic() - started
        family = [program.process, *program.process.children(recursive=True)]
        return {SECONDS: seconds, **weigh(family)}


def has_stepped(run_dir: Path) -> bool:
    """Returns whether the learner has reported a step."""
    if not (run_dir / "metrics" / "learner.csv").is_file():
        return False
    return bool(max(read_metrics(run_dir, "learner").get("learner_steps", [0]), default=0))


def weigh(processes: list[psutil.Process]) -> Mapping[harness.Unit, float]:
    """Returns processor time and memory of some processes."""
    seconds, sizes = 0.0, []
    for process in processes:
        try:
            times = process.cpu_times()
            sizes.append(process.memory_full_info().pss / 1e6)
            seconds += times.user + times.system
        except psutil.NoSuchProcess:
            continue
    figures = {MEMORY: sum(sizes), LARGEST: max(sizes), NUMBER: len(sizes)}
    return {PROCESSOR: seconds, **figures}


def main() -> None:
    """Measures both kinds of runs."""
    options = harness.parser("start_up", __doc__).parse_args()
    report = harness.Report("start_up", options)
    sides = {name: lambda words=words: start(words) for name, words in SIDES.items()}
    report.add(harness.measure(sides, options.rounds, warm_up=0))
    report.write()


if __name__ == "__main__":
    main()
