"""`--preset` chooses the values that the hyper-parameters start from."""

import dataclasses
import json

import pytest

from agents import d4pg, sac
from agents.d4pg.config import PAPER
from rl_replicator.cli import options, train
from rl_replicator.errors import UsageError


def parse(agent, *words):
    args = ["--env", "cartpole:swingup", *words]
    kind = agent.command.options_type(args)
    return options.parse(kind, "rl-replicator train", args, agent.command.alternatives())


@pytest.mark.parametrize("words", [("--preset", "paper"), ("--preset=paper",)])
def test_the_paper_s_values_can_be_changed_one_by_one(words):
    chosen = parse(d4pg, *words, "--agent.num-atoms", "101")
    assert chosen.preset == "paper"
    assert dataclasses.asdict(chosen)["preset"] == "paper"  # What config.json holds.
    paper = chosen.agent
    assert (paper.policy_learning_rate, paper.critic_learning_rate) == (1e-4, 1e-4)
    assert (paper.exploration_sigma, paper.n_step, paper.num_atoms) == (0.3, 5, 101)
    assert paper.replay.samples_per_insert == 32
    assert not paper.normalize_observations


def test_a_preset_in_a_file_or_from_python():
    agent = {"num_atoms": 101, "replay": {"min_size": 9}}
    plain = {"env": "cartpole:swingup", "preset": "paper", "agent": agent}
    chosen = d4pg.command.options_from(plain)
    replay = dataclasses.replace(PAPER.replay, min_size=9)
    assert chosen.agent == dataclasses.replace(PAPER, num_atoms=101, replay=replay)
    assert chosen.identity["preset"] == "paper"  # A run cannot be continued with another one.


def test_the_settings_of_a_run_keep_their_preset(tmp_path):
    file = tmp_path / "settings.json"
    file.write_text(json.dumps({"trainable": "d4pg", "options": {"env": "cartpole:swingup"}}))
    with pytest.raises(UsageError, match="preset of the stored settings, default, got paper"):
        train.run(["--config", str(file), "--preset", "paper"])


def test_the_default_is_ours():
    chosen = parse(d4pg)
    assert (chosen.preset, chosen.agent) == ("default", d4pg.D4PGConfig())


@pytest.mark.parametrize(
    ("agent", "words", "message"),
    [
        (d4pg, ("--preset", "papr"), "expected 'default' or 'paper' for --preset, got 'papr'"),
        (d4pg, ("--pixels", "--preset", "paper"), "expected 'default' for --preset, got 'paper'"),
        (sac, ("--preset", "paper"), "expected 'default' for --preset, got 'paper'"),
    ],
)
def test_a_preset_that_there_is_not(agent, words, message):
    with pytest.raises(UsageError, match=message) as error:
        parse(agent, *words)
    assert "\n" not in str(error.value)
