"""`rl-replicator replay`: figures of Reverb's stored tables, which are left unchanged."""

import dataclasses
import json
import shutil

import numpy as np
import pytest
import reverb
import tree

import environments
from agents import d4pg, td3
from agents.cli import reports
from agents.config import MemoryConfig
from agents.replay.checkpoint import ReplayPart, part_name
from agents.replay.config import ReplayConfig
from agents.replay.transitions import TABLE
from agents.runs import replay_figures
from agents.task import Task
from rl_replicator.checkpoints import Checkpointer
from rl_replicator.errors import UsageError
from tests.agents.datasets.untrained import CONFIG, make_run

CHAIN = "environments.fakes:chain"


class Files:
    """A part of a checkpoint that copies existing files."""

    def __init__(self, folder):
        self.folder = folder

    def save(self, folder):
        shutil.copytree(self.folder, folder, dirs_exist_ok=True)


def items_of(length):
    return dataclasses.replace(CONFIG, replay=ReplayConfig(transitions_per_item=length))


@pytest.fixture
def run_dir(tmp_path):
    """A run whose newest checkpoint has a replay of 10 episodes of 10 steps, sampled 40 times."""
    return make_stored(tmp_path, items_of(1))


def make_stored(tmp_path, config, command=td3.command):
    agent = command.make_agent(config, Task(CHAIN).spec())
    run = make_run(tmp_path / "run", CHAIN, config, command)
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
    extras = tree.map_structure(lambda spec: np.zeros(spec.shape, spec.dtype), agent.extras_spec)
    for _ in range(10):
        timestep = environment.reset()
        adder.add_first(timestep)
        while not timestep.last():
            action = environment.action_spec().generate_value()
            timestep = environment.step(action)
            adder.add(action, timestep, extras)
    while agent.layout.period * client.server_info()[TABLE].current_size < 100:
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
    assert reports.replay([str(run_dir), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["checkpoint"] == checkpoint.name and found["environment_steps"] == 1000
    assert (found["transitions"], found["capacity"], found["inserted"]) == (100, 1000, 100)
    assert found["age"] == {"min": 0, "median": 49.5, "max": 99}
    # One item of 9 = 81 ** 0.5 and 99 items of 1.
    priority = found["priority"]
    assert priority["mass_of_top_1_percent"] == pytest.approx(9 / 108)
    assert (priority["min"], priority["max"], priority["exponent"]) == (1, 81, 0.5)
    times = found["times_sampled"]
    assert 0 < times["never_share"] < 1 and 1 <= times["max"] <= 40
    assert {path: path.read_bytes() for path in before} == before
    assert reports.replay([str(run_dir)]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["capacity", "1,000"] in lines and ["age.median", "49.5"] in lines
    assert ["priority.mass_of_top_1_percent", "0.08333"] in lines


def test_transitions_of_an_item_count_alone_and_servers_together(tmp_path):
    run_dir = make_stored(tmp_path, items_of(4))
    config = json.loads((run_dir / "config.json").read_text())
    config["identity"] |= {"replay_shards": 2, "action_repeat": 3}
    (run_dir / "config.json").write_text(json.dumps(config))
    checkpointer = Checkpointer(run_dir / "checkpoints", keep=1)
    before = checkpointer.latest().path
    parts = {name: Files(before / name) for name in ("weights", "progress", "replay")}
    checkpointer.save(402, parts | {part_name(1): Files(before / "replay")})
    found = replay_figures.read(run_dir)
    assert (found["transitions"], found["capacity"], found["inserted"]) == (200, 8000, 200)
    assert found["transitions_per_item"] == 4 and found["age"]["max"] == 198 * 3


def test_overlapping_windows_count_the_steps_from_one_to_the_next(tmp_path):
    config = d4pg.command.config(
        policy_layers=(8,),
        critic_layers=(8,),
        policy_average=1,
        memory=MemoryConfig("lstm", size=4, trained_steps=5, overlap=3, burn_in=2),
    )
    found = replay_figures.read(make_stored(tmp_path, config, d4pg.command))
    assert (found["transitions"], found["capacity"], found["inserted"]) == (100, 2000, 100)
    assert found["age"] == {"min": 0, "median": 49.5, "max": 99}


def test_bad_input(run_dir, tmp_path):
    with pytest.raises(UsageError, match="expected the directory of a run"):
        reports.replay([str(tmp_path)])
    config = json.loads((run_dir / "config.json").read_text())
    config["identity"]["deterministic"] = True
    (run_dir / "config.json").write_text(json.dumps(config))
    with pytest.raises(UsageError, match="expected the replay of a run without --deterministic"):
        reports.replay([str(run_dir)])
