"""An agent that writes the files of a run and learns nothing, registered by the tests."""

import dataclasses
import json
import os
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


def write_run(run_dir, env, seed, evaluations):
    """Writes a run's config and its evaluations, rows of (steps, return)."""
    (run_dir / "metrics").mkdir(parents=True, exist_ok=True)
    config = {
        "trainable": "fake",
        "identity": {"trainable": "fake", "env": env, "seed": seed, "agent": {}},
        "options": {"env": env},
        "score": {"group": "evaluator", "figure": "episode_return"},
    }
    (run_dir / "config.json").write_text(json.dumps(config))
    events.record(run_dir, events.RUN, events.FINISHED)
    lines = [
        "environment_steps,wall_time,episode_return,episode_return_min,episode_return_median,"
        "episode_return_max,episodes,learner_steps",
        *(f"{n},{n / 10},{x},{x - 1},{x + 0.5},{x + 1},3,{n // 4}" for n, x in evaluations),
    ]
    (run_dir / "metrics" / "evaluator.csv").write_text("\n".join([*lines, ""]))


class FakeAgent(OwnTrainable):
    """Writes the files of a run."""

    options_type = FakeOptions

    def train(self, options):
        what = options.env.partition(":")[2]
        with (options.run_dir.parent / "started.txt").open("a") as file:
            file.write(f"{what} {options.seed} {len(os.sched_getaffinity(0))}\n")
        if what == "broken":
            raise UsageError("this one never works")
        half, last = ((options.steps // part, 200 // part * options.seed) for part in (2, 1))
        write_run(options.run_dir, options.env, options.seed, [half, last])
        return 0


fake = FakeAgent()


def quick(seed):
    """Environment of runs that end immediately."""
    from environments import fakes

    return fakes.target(seed)


broken = quick


def pictures(seed):
    """Environment that agents can only learn from frames."""
    from tests.environments import faulty

    return faulty.pictures(seed)
