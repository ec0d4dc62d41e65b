"""The whole system learns, with all of its nodes in processes.

tests/agents/runs/test_pixel_runs.py runs them in threads; tests/conformance/test_agents.py trains
every agent by itself, from state.
"""

import pytest
import tensorflow  # noqa: F401 - so that conftest splits its CPU before the first run

from agents import d4pg
from agents.d4pg import D4PGConfig
from agents.nodes.run_plan import EvaluationSchedule
from agents.replay.config import ReplayConfig
from agents.runs.options import AgentOptions
from rl_replicator.runs.metrics import read_metrics

LENGTH = 20  # The best return of `environments.fakes:target`; a constant action has 15.


@pytest.mark.learning
@pytest.mark.processes
@pytest.mark.timeout(600)
def test_two_learner_processes_learn_it_together(tmp_path):
    options = AgentOptions(
        env="environments.fakes:target",
        steps=2500,
        run_dir=tmp_path / "run",
        video=False,
        replicas="multi_worker:2",
        launch="processes",
        caches=1,
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
            replay=ReplayConfig(priority_exponent=0.6, min_size=500, samples_per_insert=32.0),
        ),
    )
    assert d4pg.command.train(options) == 0
    returns = read_metrics(options.run_dir, "evaluator")["episode_return"]
    assert returns[-1] > 0.95 * LENGTH, returns
