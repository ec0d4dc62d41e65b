"""`rl-replicator replay`: figures of Reverb's stored tables, which are left unchanged."""

import dataclasses
import json
import shutil

import pytest
import reverb

import environments
from agents import td3
from agents.cli import replay
from agents.replay import inspection
from agents.replay.checkpoint import ReplayPart, part_name
from agents.replay.config import ReplayConfig
from agents.replay.transitions import TABLE
from agents.runs import replay_figures
from agents.task import Task
from rl_replicator.checkpoints import Checkpointer
from rl_replicator.errors import ConfigError, UsageError
from tests.agents.datasets.untrained import CONFIG, make_run

CHAIN = "environments.fakes:chain"


@pytest.fixture(autouse=True)
def keep_stderr(monkeypatch):
    """Keeps the command from filtering stderr's file descriptor beyond the end of the test."""


class Files:
    """A part of a checkpoint that copies existing files."""

    def __init__(self, folder):
        self.folder = folder

    def save(self, folder):
        shutil.copytree(self.folder, folder, dirs_exist_ok=True)


def make_agent(length, **settings):
    replay = ReplayConfig(transitions_per_item=length, **settings)
    config = dataclasses.replace(CONFIG, replay=replay)
    return config, td3.command.make_agent(config, Task(CHAIN).spec())


@pytest.fixture
def run_dir(tmp_path):
    """A run whose newest checkpoint has a replay of 10 episodes of 10 steps, sampled 40 times."""
    return make_stored(tmp_path, length=1)


def make_stored(tmp_path, length, **settings):
    config, agent = make_agent(length, **settings)
    run = make_run(tmp_path / "run", CHAIN, config)
    table = reverb.Table(
        TABLE,
        reverb.selectors.Prioritized(0.5),
        reverb.selectors.Fifo(),
        max_size=1000,
        rate_limiter=reverb.rate_limiters.MinSize(1),
        signature=agent.layout.signature,
    )
    server = reverb.Server([table])
    client = server.localhost_client()
    adder = agent.make_adder(reverb.Client(f"localhost:{server.port}"), lambda seconds: None)
    environment = environments.make(CHAIN, seed=0)
    for _ in range(10):
        timestep = environment.reset()
        adder.add_first(timestep)
        while not timestep.last():
            action = environment.action_spec().generate_value()
            timestep = environment.step(action)
            adder.add(action, timestep)
    while length * client.server_info()[TABLE].current_size < 100:
        adder.finish(60.0)
    adder.close()
    sampled = list(client.sample(TABLE, num_samples=40, emit_timesteps=False))
    client.mutate_priorities(TABLE, updates={sampled[0].info.key: 81.0})
    folder = tmp_path / "stored"
    folder.mkdir()
    ReplayPart(client).save(folder)
    server.stop()
    weights = Checkpointer(run / "checkpoints").latest().path
    Checkpointer(run / "checkpoints").save(
        401,
        {name: Files(weights / name) for name in ("weights", "progress")}
        | {"replay": Files(folder)},
    )
    return run


def test_figures(run_dir, capsys):
    checkpoint = Checkpointer(run_dir / "checkpoints").latest().path
    before = {path: path.read_bytes() for path in checkpoint.rglob("*") if path.is_file()}
    assert replay.run([str(run_dir), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["checkpoint"] == checkpoint.name and found["environment_steps"] == 1000
    assert (found["transitions"], found["capacity"], found["inserted"]) == (100, 1000, 100)
    assert found["recorded"] == 0
    assert found["age"] == {"min": 0, "median": 49.5, "max": 99}
    # One item of 9 = 81 ** 0.5 and 99 items of 1.
    priority = found["priority"]
    assert priority["mass_of_top_1_percent"] == pytest.approx(9 / 108)
    assert (priority["min"], priority["max"], priority["exponent"]) == (1, 81, 0.5)
    assert (priority["histogram"]["counts"][0], priority["histogram"]["counts"][-1]) == (99, 1)
    # Of ten steps one is the last, and three lead to the end within three steps.
    gamma = td3.command.config().discount
    full = 1 + gamma + gamma**2
    assert found["reward"]["max"] == pytest.approx(full) and found["reward"]["min"] == 1
    assert found["reward"]["mean"] == pytest.approx((8 * full + 1 + gamma + 1) / 10)
    assert found["terminal_share"] == pytest.approx(0.3)
    assert 0 < found["times_sampled"]["never_share"] < 1
    assert {path: path.read_bytes() for path in before} == before


def test_every_sample_is_counted(run_dir, tmp_path):
    folder = Checkpointer(run_dir / "checkpoints").latest().path / "replay"
    # Reverb's client requests more samples than it returns.
    assert (
        inspection.read(make_agent(1)[1], folder, tmp_path / "scratch", 1).times_sampled.sum() >= 40
    )


def test_transitions_of_an_item_count_alone(tmp_path):
    found = replay_figures.read(make_stored(tmp_path, length=4))
    assert (found["transitions"], found["capacity"], found["inserted"]) == (100, 4000, 100)
    assert found["transitions_per_item"] == 4
    assert list(replay_figures.lines(found))[1] == (
        "transitions             100 of 4,000, with those repeated to fill items of 4"
    )
    gamma = CONFIG.discount
    full = 1 + gamma + gamma**2
    assert found["reward"]["mean"] == pytest.approx((8 * full + 1 + gamma + 1) / 10)
    assert found["priority"]["histogram"]["counts"][0] == 96
    assert found["age"]["max"] == 99
    folder = Checkpointer(tmp_path / "run" / "checkpoints").latest().path / "replay"
    stored = inspection.read(make_agent(4)[1], folder, tmp_path / "scratch", 1)
    times = stored.times_sampled.reshape(-1, 4)
    assert times.sum() >= 4 * 40 and (times == times[:, :1]).all()


def add_server(run_dir):
    """Turns a run into one of two replay servers with equal rows; returns its newest checkpoint."""
    config = json.loads((run_dir / "config.json").read_text())
    config["identity"]["replay_shards"] = 2
    (run_dir / "config.json").write_text(json.dumps(config))
    checkpointer = Checkpointer(run_dir / "checkpoints", keep=1)
    before = checkpointer.latest().path
    parts = {name: Files(before / name) for name in ("weights", "progress", "replay")}
    checkpointer.save(402, parts | {part_name(1): Files(before / "replay")})
    return checkpointer.latest().path


def test_settings_that_are_too_small_for_one_server_alone(tmp_path):
    settings = {"min_size": 47, "samples_per_insert": 256.0}
    agent = make_agent(1, **settings)[1]
    agent.make_tables(1, 2)
    with pytest.raises(ConfigError, match="min-size: expected at least 48"):
        agent.make_tables(1)
    run_dir = make_stored(tmp_path, 1, **settings)
    add_server(run_dir)
    assert replay_figures.read(run_dir)["transitions"] == 200


def test_a_checkpoint_that_the_run_removes_is_read_to_its_end(run_dir, monkeypatch):
    newest, read = add_server(run_dir), inspection.read

    def read_and_remove(*args):
        shutil.rmtree(newest, ignore_errors=True)
        return read(*args)

    monkeypatch.setattr(inspection, "read", read_and_remove)
    found = replay_figures.read(run_dir)
    assert (found["checkpoint"], found["transitions"]) == (newest.name, 200)
    assert not list(run_dir.glob(".replay-*"))


def test_the_table_for_people(run_dir, capsys):
    assert replay.run([str(run_dir)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1] == "transitions             100 of 1,000"
    assert "top 1 % by priority     8.3 % of samples" in lines
    assert len(lines) == 10 + 10 and lines[-1].endswith(" 1")


def test_bad_input(run_dir, tmp_path):
    folder = tmp_path / "deterministic"
    folder.mkdir()
    (folder / "rows.npy").touch()
    with pytest.raises(UsageError, match="expected the replay of a run without --deterministic"):
        inspection.read(None, folder, tmp_path / "scratch", 1)
    with pytest.raises(UsageError, match="expected the directory of a run"):
        replay.run([str(tmp_path)])
