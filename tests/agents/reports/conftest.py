"""Run directories, written by the same code as real ones."""

import pytest

from rl_replicator.runs.metrics import MetricWriter
from rl_replicator.runs.run_directory import RunDirectory
from rl_replicator.runs.score import Score


@pytest.fixture
def make_run(tmp_path):
    """Makes a run of an agent: `make_run(name, {step: return}, time=..., learner=..., **agent)`."""

    def make(name, returns, *, seed=1, env="a:b", steps=200, time=None, learner=None, **agent):
        run = RunDirectory(tmp_path / name)
        run.path.mkdir(parents=True)
        options = {"env": env, "seed": seed, "steps": steps, "actors": 1, "agent": agent}
        score = Score("evaluator", "episode_return").plain()
        run.describe("d4pg", {"env": env, "seed": seed, "agent": agent}, options, score)
        writer = MetricWriter(run.path, "environment_steps")
        for step, value in returns.items():
            figures = {"episode_return_min": value - 1, "episode_return_max": value + 1}
            writer.write("evaluator", step, {"episode_return": value, **figures})
            writer.write("learner", step, {"learner_steps": step, **(learner or {})})
            if time:
                writer.write("time", step, time)
        writer.close()
        return run.path

    return make


@pytest.fixture
def make_learner_run(tmp_path):
    """Makes a run of a learner: `make_learner_run(name, {step: loss}, {step: accuracy})`.

    The first figure of its evaluations is their loss, 1 - accuracy.
    """

    def make(name, losses, accuracies, seed=1, width=8, is_highest_best=True):
        run = RunDirectory(tmp_path / name)
        run.path.mkdir(parents=True)
        score = Score("evaluation", "accuracy", is_highest_best).plain()
        run.describe("spirals", {"config": {"seed": seed, "width": width}}, {"steps": 20}, score)
        writer = MetricWriter(run.path, "steps")
        for step, loss in losses.items():
            writer.write("train", step, {"loss": loss})
        for step, accuracy in accuracies.items():
            writer.write("evaluation", step, {"loss": 1 - accuracy, "accuracy": accuracy})
        writer.close()
        return run.path

    return make
