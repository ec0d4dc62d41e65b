"""Seconds of training until cartpole:swingup reaches a return of 800.

    python -m bench.time_to_return

Round N trains with seed N, by `rl-replicator train d4pg`, until the first evaluation (3 episodes,
every 2,500 environment steps) with that return. Seconds are those of the run itself, evaluations
included, start-up excluded. One side has the default settings, two updates of 128 transitions for
each environment step; the other one makes one, so that its environment steps take half the time.
"""

import functools
import itertools
from collections.abc import Iterator, Mapping
from pathlib import Path

from bench import harness, processes
from rl_replicator.runs.metrics import read_metrics

RETURN = 800.0
SECONDS = harness.Unit("s of training", more_is_better=False)
STEPS = harness.Unit("environment steps", more_is_better=False)
# A run that takes longer does not learn.
DEADLINE = 900.0
COMMAND = ["train", "d4pg", "--env", "cartpole:swingup", "--steps", "200000", "--no-video"]
COMMAND += ["--evaluation.every", "2500"]
SIDES = {"default": [], "one update a step": ["--agent.replay.samples-per-insert", "128"]}
PEERS = {"default": "one update a step"}


def train(words: list[str], seeds: Iterator[int]) -> Mapping[harness.Unit, float]:
    """Trains with the next seed until an evaluation reaches the return."""
    with processes.running([*COMMAND, *words, "--seed", str(next(seeds))]) as program:

        def reached() -> list[tuple[float, float, float]]:
            return [found for found in evaluations(program.run_dir) if found[-1] >= RETURN]

        program.wait(lambda: bool(reached()), DEADLINE)
        steps, seconds, _ = reached()[0]
        return {SECONDS: seconds, STEPS: steps}


def evaluations(run_dir: Path) -> list[tuple[float, float, float]]:
    """Returns (environment steps, seconds, return) of every evaluation of a run."""
    if not (run_dir / "metrics" / "evaluator.csv").is_file():
        return []
    table = read_metrics(run_dir, "evaluator")
    names = ("environment_steps", "wall_time", "episode_return")
    return [*zip(*(table.get(name, []) for name in names), strict=True)]


def main() -> None:
    """Measures all sides."""
    options = harness.parser("time_to_return", __doc__).parse_args()
    report = harness.Report("time_to_return", options)
    sides = {
        name: functools.partial(train, words, itertools.count(1)) for name, words in SIDES.items()
    }
    report.add(harness.measure(sides, options.rounds, warm_up=0), PEERS)
    report.write()


if __name__ == "__main__":
    main()
