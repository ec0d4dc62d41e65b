"""`--preset` chooses the values that the hyper-parameters start from."""

import dataclasses
import json

import pytest

from agents import d4pg, dqn, td3
from agents.d4pg.config import PAPER
from agents.nodes.run_plan import Replicas
from agents.runs import preparation
from rl_replicator.cli import train
from rl_replicator.errors import UsageError
from rl_replicator.runs.run_directory import RunDirectory


def parse(agent, *words):
    return agent.command.parse(["--env", "cartpole:swingup", *words], {})


def test_the_paper_s_values_can_be_changed_one_by_one():
    assert (parse(d4pg).preset, parse(d4pg).agent) == ("default", d4pg.D4PGConfig())
    # Of two presets, the last one counts.
    chosen = parse(d4pg, "--preset=default", "--preset", "paper", "--agent.num-atoms", "101")
    assert chosen.preset == "paper"
    assert dataclasses.asdict(chosen)["preset"] == "paper"  # What config.json holds.
    paper = chosen.agent
    assert (paper.policy_learning_rate, paper.critic_learning_rate) == (1e-4, 1e-4)
    assert (paper.exploration_sigma, paper.n_step, paper.num_atoms) == (0.3, 5, 101)
    assert paper.replay.samples_per_insert == 32
    assert not paper.normalize_observations


def test_a_memory_has_a_preset():
    for agent in (d4pg, dqn):  # Each keeps the other defaults of its own replay.
        recurrent = parse(agent, "--preset", "recurrent").agent
        batch, samples = recurrent.global_batch_size, recurrent.replay.samples_per_insert
        assert (recurrent.memory.core, batch, samples) == ("lstm", 32, 64)
        plain = parse(agent).agent
        assert recurrent == dataclasses.replace(
            plain,
            memory=recurrent.memory,
            global_batch_size=batch,
            replay=dataclasses.replace(plain.replay, samples_per_insert=samples),
        )


def test_windows_of_a_deterministic_run_are_announced_with_rows_of_their_own(tmp_path, caplog):
    words = ["--preset", "recurrent", "--agent.replay.max-size", "1000000000"]
    for more, found in ([], "1,060 bytes each"), (["--deterministic"], "3,498 bytes each"):
        options = parse(dqn, *words, "--steps", "1000000000", *more)
        options = preparation.resolved(options, RunDirectory(tmp_path))
        options = dataclasses.replace(options, env="gym:CartPole-v1")
        agent = dqn.command.make_agent(options.agent, options.task.described()[0])
        preparation.check(agent, options, Replicas.parse("1", "threads", None))
        assert found in caplog.text


def test_a_preset_in_a_file_or_from_python():
    agent = {"num_atoms": 101, "replay": {"min_size": 9}}
    plain = {"env": "cartpole:swingup", "preset": "paper", "agent": agent}
    chosen = d4pg.command.options_from(plain)
    replay = dataclasses.replace(PAPER.replay, min_size=9)
    assert chosen.agent == dataclasses.replace(PAPER, num_atoms=101, replay=replay)
    assert chosen.identity["preset"] == "paper"  # A run cannot be continued with another one.
    drawn = parse(td3, "--pixels", "--preset", "drq_v2", "--agent.n-step", "2").agent
    assert (type(drawn), drawn.encoder, drawn.n_step) == (td3.PixelTD3Config, "drq_v2", 2)


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("--preset=paper", "--preset: expected that of the stored settings, default, got paper"),
        ("--pixels", "--pixels: expected that of the stored settings, False, got True"),
    ],
)
def test_a_run_keeps_its_preset_and_its_observations(tmp_path, word, message):
    options = {"env": "cartpole:swingup", "preset": "default", "pixels": False}
    stored = {"trainable": "d4pg", "identity": options, "options": options}
    (tmp_path / "config.json").write_text(json.dumps(stored))
    for words in (["--run-dir", str(tmp_path)], ["--config", str(tmp_path / "config.json")]):
        with pytest.raises(UsageError, match=message):
            train.run([*words, word])


def test_options_override_the_preset_and_the_observations_of_a_file(tmp_path, monkeypatch):
    file, chosen = tmp_path / "settings.json", []
    settings = {"env": "cartpole:swingup", "agent": {"n_step": 4}}
    file.write_text(json.dumps({"trainable": "d4pg", "options": settings}))
    monkeypatch.setattr(type(d4pg.command), "train", lambda self, options: chosen.append(options))
    for words in (["--preset", "paper"], ["--pixels"]):
        train.run(["--config", str(file), *words])
    assert chosen[0].agent == dataclasses.replace(PAPER, n_step=4)
    assert chosen[1].agent == d4pg.PixelD4PGConfig(n_step=4)
    assert chosen[1].task.pixels is not None
    file.write_text(json.dumps({"trainable": "d4pg", "options": {"agent": {"n_step": 4}}}))
    train.run(["--config", str(file), "--env", "walker:walk"])
    assert (chosen[2].env, chosen[2].agent.n_step) == ("walker:walk", 4)
