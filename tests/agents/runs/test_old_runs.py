"""A run directory of version 0.1.0 is evaluated as before, and continued once it is migrated."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import tensorflow  # noqa: F401 - so that conftest splits its CPU before the first run

import rl_replicator as rr
from agents import d4pg
from agents.d4pg import D4PGConfig
from agents.runs.options import AgentOptions
from agents.task import Task
from environments import PixelConfig
from rl_replicator.checkpoints import Checkpointer
from rl_replicator.checkpoints.parts import TrackablePart, VariableValues
from rl_replicator.cli import main
from rl_replicator.errors import UsageError
from rl_replicator.runs.plain_data import from_plain
from rl_replicator.runs.run_directory import RunDirectory

OLD = Path(__file__).parent / "version_0_1_0"


def test_it_is_evaluated_as_version_0_1_0_did(capfd):
    assert d4pg.command.evaluate(OLD, episodes=2, seed=3) == 0
    assert capfd.readouterr().out == "return 14.8 (min 14.6, max 14.9, 2 episodes)\n"


def test_it_is_not_continued_before_it_is_migrated(tmp_path):
    run_dir = tmp_path / "run"
    shutil.copytree(OLD, run_dir)
    plain = RunDirectory(run_dir).config()["identity"]["agent"]
    options = AgentOptions(
        env="environments.fakes:target",
        steps=500,
        agent=from_plain(D4PGConfig, plain),
        run_dir=run_dir,
    )
    before = json.loads((run_dir / "config.json").read_text())
    with pytest.raises(
        UsageError, match=r"exploration was None .*; 'rl-replicator migrate [^ ]+' adds"
    ) as error:
        d4pg.command.train(options)
    assert "\n" not in str(error.value)
    assert json.loads((run_dir / "config.json").read_text()) == before


@pytest.fixture
def old_run(tmp_path):
    run_dir = tmp_path / "run"
    shutil.copytree(OLD, run_dir)
    return run_dir


def migrate(run_dir, capfd):
    capfd.readouterr()
    assert main.main(["migrate", str(run_dir)]) == 0
    return capfd.readouterr().out.splitlines()


def test_it_is_migrated_and_goes_on(old_run, capfd):
    lines = migrate(old_run, capfd)
    assert "config.json: agent.exploration_spread = 1.0" in lines  # As 0.1.0 explored.
    assert "config.json: agent.replay.transitions_per_item = 1" in lines
    assert lines[-1] == f"continue with: rl-replicator train --run-dir {old_run}"
    assert (old_run / "config.json.old").read_text() == (OLD / "config.json").read_text()
    assert [path.name for path in sorted((old_run / "checkpoints").iterdir())] == [
        "000001_step_170",
        "000002_step_170",
    ]
    assert migrate(old_run, capfd) == [f"{old_run} needs no change"]
    assert d4pg.command.evaluate(old_run, episodes=2, seed=3) == 0
    assert capfd.readouterr().out == "return 14.8 (min 14.6, max 14.9, 2 episodes)\n"

    command = ["train", "--run-dir", str(old_run), "--steps", "600", "--no-video"]
    assert main.main(command) == 0
    out = capfd.readouterr().out
    # 0.1.0 had taken 400 steps and made 170 updates.
    assert "after 600 environment steps" in out
    assert 170 < RunDirectory(old_run).checkpointer().latest().step < 400
    settings = RunDirectory(old_run).config()["identity"]["agent"]
    assert settings["policy_average"] == 1 and settings["replay"]["priority_exponent"] == 0.6


def test_all_of_its_checkpoints_are_kept(old_run, capfd):
    folder = old_run / "checkpoints"
    for number in (2, 3):  # As --keep-checkpoints 3 leaves them.
        shutil.copytree(folder / "000001_step_170", folder / f"00000{number}_step_170")
    migrate(old_run, capfd)
    assert len([*folder.iterdir()]) == 4


def test_its_variables_keep_their_values(old_run, capfd):
    migrate(old_run, capfd)
    before, after = (
        VariableValues.read(path / "learner")
        for path in sorted((old_run / "checkpoints").iterdir())
    )
    assert len(before) == len(after)
    for old, new in {
        "module/policy/_head/w": "module/online/policy/_head/w",
        "module/target_policy/_head/w": "module/target/policy/_head/w",
        "module/target_critic/_torso/_layers/0/w": "module/target/critic/_torso/_torso/_layers/0/w",
        "module/_critic_optimizer/m/3": "module/_critic_optimizer/m/3",
    }.items():
        np.testing.assert_array_equal(before[old], after[new])


def test_a_run_in_which_a_process_trains_is_not_migrated(old_run, capfd):
    with RunDirectory(old_run).locked():
        assert main.main(["migrate", str(old_run)]) == 2
    assert "another process trains in" in capfd.readouterr().err
    assert not (old_run / "config.json.old").exists()


# Old and new names of variables that only runs from pixels have; there, 0.1.0 also wrote `picture`.
PIXEL_VARIABLES = {
    "module/encoder/_blocks/0/_w": "module/online/encoder/_blocks/0/_w",
    "module/target_encoder/_blocks/3/_b": "module/target/encoder/_blocks/3/_b",
    "module/critic/_trunk/_layers/1/scale": "module/online/critic/_torso/_trunk/_layers/1/scale",
    "module/critic/_torso/_layers/0/w": "module/online/critic/_torso/_torso/_layers/0/w",
}


def test_a_run_from_pixels(old_run, tmp_path, capfd):
    config = json.loads((old_run / "config.json").read_text())
    pixels = {"height": 64, "width": 64, "camera": 0, "action_repeat": 8, "render": "auto"}
    config["identity"]["pixels"] = pixels
    config["options"] |= {"pixels": True, "picture": pixels | {"action_repeat": None}}
    frames = {"frame_stack": 3, "encoder": "small", "feature_size": 50, "max_shift": 4}
    for group in ("identity", "options"):
        config[group]["agent"] |= frames | {"precision": "float32"}
        config[group]["agent"]["replay"]["chunk_length"] = 4
    config["options"]["agent"]["discount"] = "auto"
    (old_run / "config.json").write_text(json.dumps(config))
    values = VariableValues({name: np.float32(i) for i, name in enumerate(PIXEL_VARIABLES)})
    shutil.rmtree(old_run / "checkpoints")
    Checkpointer(old_run / "checkpoints").save(7, {"learner": values})

    assert main.main(["train", "--run-dir", str(old_run)]) == 2
    assert "got 'picture'" in (line := capfd.readouterr().err) and "migrate" in line
    assert "config.json: --frame (formerly --picture)" in migrate(old_run, capfd)
    migrated = RunDirectory(old_run).config()
    assert migrated["options"]["frame"] == config["options"]["picture"]
    assert migrated["identity"]["pixels"] == pixels
    assert migrated["options"]["agent"]["discount"] == "auto"
    assert migrated["identity"]["agent"]["discount"] == config["identity"]["agent"]["discount"]
    assert migrated["identity"]["agent"]["squash_gradient"] == "inverting"
    newest = RunDirectory(old_run).checkpointer().latest().path
    assert {*VariableValues.read(newest / "learner")} == {*PIXEL_VARIABLES.values()}
    _, agent_config = d4pg.command.restore(migrated["identity"])
    spec = Task("cartpole:balance", PixelConfig(64, 64)).spec()
    module = d4pg.command.make_agent(agent_config, spec).make_module(rr.make("single_device"), 100)
    TrackablePart(module=module).save(tmp_path)
    assert {*PIXEL_VARIABLES.values()} <= {*VariableValues.read(tmp_path)}
