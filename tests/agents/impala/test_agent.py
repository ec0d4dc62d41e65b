"""Whole runs of IMPALA: bit for bit, with masks; and what it refuses."""

import dataclasses

import numpy as np
import pytest

from agents import impala, load_policy
from agents.cli import policies
from agents.config import CoreConfig
from agents.impala.config import ImpalaConfig
from rl_replicator.errors import ConfigError, UsageError
from rl_replicator.runs.metrics import read_metrics
from tests.agents.button_runs import options

pytestmark = pytest.mark.usefixtures("plain_graphs")
# By import path, which needs no registration.
COMMAND = dataclasses.replace(impala.command, name="agents.impala:command")
SMALL = ImpalaConfig(
    policy_layers=(16,),
    critic_layers=(16,),
    unroll_length=5,
    global_batch_size=2,
    queue_size=4,
    normalize_observations=True,
)


@pytest.mark.timeout(300)
def test_a_deterministic_run_goes_on_bit_for_bit(tmp_path):
    """Within an episode and an unroll, whose log-densities and states cannot be computed again."""
    part, whole = tmp_path / "part", tmp_path / "whole"
    agent = dataclasses.replace(SMALL, memory=CoreConfig("gru", 8))
    for run_dir, steps in ((part, 203), (part, 300), (whole, 300)):
        assert COMMAND.train(options(run_dir, agent, steps=steps, deterministic=True)) == 0
    found = [
        load_policy(run_dir).weights.get_variables(["policy", "encoder"])
        for run_dir in (part, whole)
    ]
    for path, array in found[0].items():
        np.testing.assert_array_equal(array, found[1][path], err_msg=path)
    assert load_policy(part).learner_steps >= 300 // 10 - 1


@pytest.mark.timeout(300)
def test_a_run_with_several_actors_and_servers_says_how_old_its_data_were(
    tmp_path, capsys, monkeypatch
):
    """Its policy is recorded with exploration; its data cannot be learned from."""
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    run = tmp_path / "run"
    assert COMMAND.train(options(run, SMALL, steps=1000, actors=2, replay_shards=2)) == 0
    ages = read_metrics(run, "learner")["data_age_max"]
    # In batches: one of the queues, one on its way, and five in the learner's input; and what
    # both actors do between two requests for weights.
    assert 0 <= np.max(ages) <= 7 + 2 * 250 / 10
    assert "age of the data: " in capsys.readouterr().out
    assert policies.record([str(run), "--episodes", "2", "--dataset", "b-v0", "--explore"]) == 0
    for refused in ({"prefill": "b-v0"}, {"offline": "b-v0"}):
        with pytest.raises(UsageError, match="leave --prefill or --offline out"):
            COMMAND.train(options(tmp_path / "refused", SMALL, **refused))
    with pytest.raises(ConfigError, match="--online-fraction: expected 1 for impala"):
        COMMAND.train(options(tmp_path / "refused", SMALL, prefill="b-v0", online_fraction=0.5))
