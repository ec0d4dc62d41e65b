"""An agent that writes the files of a run and learns nothing, registered by the tests."""

import csv
import dataclasses
import json
import os
import signal
import time
from pathlib import Path

from rl_replicator.errors import UsageError
from rl_replicator.runs import events
from tests.rl_replicator.experiments.own_trainable import OwnTrainable


@dataclasses.dataclass(frozen=True)
class FakeOptions:
    """Options of a run."""

    env: str
    """The task. Its function says what the run does."""
    seed: int = 1
    """Also the return."""
    steps: int = 10
    """How long."""
    run_dir: Path = Path("run")
    """Where to."""
    n_step: int = 5
    """A hyper-parameter."""
    pixels: bool = False
    """Whether frames are observed."""

    @property
    def task(self):
        from agents.task import Task
        from environments import PixelConfig

        return Task(self.env, PixelConfig() if self.pixels else None)


def write_run(run_dir, env, seed, evaluations, agent=None):
    """Writes a run's config and its evaluations, rows of (steps, return)."""
    (run_dir / "metrics").mkdir(parents=True, exist_ok=True)
    identity = {"trainable": "fake", "env": env, "seed": seed, "agent": agent or {}}
    (run_dir / "config.json").write_text(
        json.dumps(
            {
                "trainable": "fake",
                "identity": identity,
                "options": {"env": env},
                "score": {"group": "evaluator", "figure": "episode_return"},
            }
        )
    )
    events.record(run_dir, events.RUN, events.FINISHED)
    with (run_dir / "metrics" / "evaluator.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(
            [
                *("environment_steps", "wall_time", "episode_return", "episode_return_min"),
                *("episode_return_median", "episode_return_max", "episodes", "learner_steps"),
            ]
        )
        for steps, value in evaluations:
            writer.writerow(
                [steps, steps / 10, value, value - 1, value + 0.5, value + 1, 3, steps // 4]
            )


class FakeAgent(OwnTrainable):
    """Writes the files of a run."""

    options_type = FakeOptions

    def train(self, options):
        what = options.env.partition(":")[2]
        with (options.run_dir.parent / "started.txt").open("a") as file:
            file.write(f"{what} {options.seed} {len(os.sched_getaffinity(0))}\n")
        if what == "broken":
            raise UsageError("this one never works")
        half = (options.steps // 2, 100 * options.seed)
        ended = []
        signal.signal(signal.SIGINT, lambda *_: ended.append(True))
        if what == "endless" and Path("hold").exists():
            write_run(options.run_dir, options.env, options.seed, [half])
            (options.run_dir / "is_ready").touch()
            while not ended:
                time.sleep(0.05)
            return 130
        last = (options.steps, 200 * options.seed)
        write_run(options.run_dir, options.env, options.seed, [half, last])
        return 0


fake = FakeAgent()


def quick(seed):
    """Environment of runs that end immediately."""
    from environments import fakes

    return fakes.target(seed)


broken = endless = quick


def pictures(seed):
    """Environment that agents can only learn from frames."""
    from tests.environments import faulty

    return faulty.pictures(seed)
