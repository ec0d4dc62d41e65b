"""The whole system learns: it must come close to the best return that is possible."""

import dataclasses

import pytest
import tensorflow  # noqa: F401 - so that conftest splits its CPU before the first run

from agents import d4pg
from agents.d4pg import D4PGConfig
from agents.plan.evaluation import EvaluationSchedule
from agents.replay.config import ReplayConfig
from agents.runs.options import AgentOptions
from rl_replicator.runs.metrics import read_metrics

LENGTH = 20  # The best return of `environments.fakes:target`; a constant action has 15.


def learns(run_dir, steps, **changes):
    """Trains; returns the returns of all evaluations."""
    options = AgentOptions(
        env="environments.fakes:target",
        steps=steps,
        run_dir=run_dir,
        video=False,
        evaluation=EvaluationSchedule(every=2000, episodes=5, last_episodes=10),
        agent=D4PGConfig(
            policy_layers=(64, 64),
            critic_layers=(64, 64),
            discount=0.5,
            n_step=1,
            global_batch_size=64,
            steps_per_call=8,
            policy_learning_rate=1e-3,
            critic_learning_rate=1e-3,
            replay=ReplayConfig(min_size=500, samples_per_insert=32.0),
        ),
    )
    assert d4pg.command.train(dataclasses.replace(options, **changes)) == 0
    return read_metrics(run_dir, "evaluator")["episode_return"]


@pytest.mark.learning
@pytest.mark.timeout(400)
@pytest.mark.parametrize("replicas", ["1", "2"])
def test_d4pg_learns_to_follow_a_target(tmp_path, replicas):
    returns = learns(tmp_path / "run", steps=2500, replicas=replicas)
    assert returns[-1] > 0.95 * LENGTH, returns


@pytest.mark.learning
@pytest.mark.processes
@pytest.mark.timeout(600)
def test_two_learner_processes_learn_it_together(tmp_path):
    returns = learns(
        tmp_path / "run", steps=2500, replicas="multi_worker:2", launch="processes", caches=1
    )
    assert returns[-1] > 0.95 * LENGTH, returns
