"""The whole system learns: it must come close to the best return that is possible."""

import pytest
import tensorflow  # noqa: F401 - so that conftest splits its CPU before the first run

from agents.command import D4PGOptions, d4pg
from agents.d4pg.config import D4PGConfig
from agents.evaluation import EvaluationSchedule
from agents.replay.config import ReplayConfig
from rl_replicator.metrics import read_metrics

LENGTH = 20  # The best return of `environments.fakes:target`; a constant action has 15.


@pytest.mark.learning
@pytest.mark.timeout(180)
@pytest.mark.parametrize("replicas", ["1", "2"])
def test_d4pg_learns_to_follow_a_target(tmp_path, replicas):
    options = D4PGOptions(
        env="environments.fakes:target",
        steps=6000,
        replicas=replicas,
        run_dir=tmp_path / "run",
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
    assert d4pg.train(options) == 0
    returns = read_metrics(tmp_path / "run", "evaluator")["episode_return"]
    assert returns[-1] > 0.95 * LENGTH, returns
