"""A run of an agent goes on from a copy of another one, with other settings."""

import dataclasses
import errno
import json
import os
import shutil

import numpy as np
import pytest
import tensorflow as tf

from agents import d4pg
from agents.d4pg import D4PGConfig
from agents.nodes.run_plan import EvaluationSchedule
from agents.replay.config import ReplayConfig
from agents.runs.options import AgentOptions
from rl_replicator.checkpoints import Checkpointer
from rl_replicator.errors import UsageError
from rl_replicator.runs.metrics import read_metrics
from rl_replicator.runs.run_directory import RunDirectory
from rl_replicator.sweeps import lineage
from rl_replicator.sweeps.lineage import Stage

SMALL = D4PGConfig(
    policy_layers=(8,),
    critic_layers=(8,),
    global_batch_size=8,
    steps_per_call=4,
    value_min=0.0,
    value_max=20.0,
    critic_learning_rate=1e-3,
    replay=ReplayConfig(min_size=100, samples_per_insert=8.0),
)


def options(run_dir, rate, steps):
    return AgentOptions(
        env="environments.fakes:target",
        steps=steps,
        run_dir=run_dir,
        agent=dataclasses.replace(SMALL, critic_learning_rate=rate),
        video=False,
        evaluation=EvaluationSchedule(every=200, episodes=1, last_episodes=1),
    )


def newest(run_dir):
    info = Checkpointer(run_dir / "checkpoints").latest()
    progress = json.loads((info.path / "progress" / "state.json").read_text())
    reader = tf.train.load_checkpoint(str(info.path / "learner" / "variables"))
    names = reader.get_variable_to_shape_map()
    return info, progress, {name: reader.get_tensor(name) for name in names}


def test_what_is_no_run_or_is_trained_by_another_process_is_not_replaced(tmp_path):
    target = tmp_path / "target"
    (target / "checkpoints" / "000001_step_1").mkdir(parents=True)
    (tmp_path / "source" / "checkpoints").mkdir(parents=True)
    with pytest.raises(UsageError, match="expected the directory of a run"):
        lineage.copy_run(tmp_path / "source", target, [Stage(0, 0, None, {})])
    with (
        RunDirectory(target).locked(),
        pytest.raises(UsageError, match="another process trains in"),
    ):
        lineage.copy_run(tmp_path / "source", target, [Stage(0, 0, None, {})])
    assert (target / "checkpoints" / "000001_step_1").exists() and not (
        target / "lineage.json"
    ).exists()


def test_a_full_disk_ends_a_copy_that_can_be_repeated(tmp_path, monkeypatch):
    """The error's number determines the sweep's exit status."""
    source, target = tmp_path / "source", tmp_path / "target"
    for run, text in ((source, "new"), (target, "old")):
        (run / "metrics").mkdir(parents=True)
        (run / "metrics" / "evaluation.csv").write_text(text)
        RunDirectory(run).describe("x", {}, {})

    def fail(*args):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    stages = [Stage(0, 0, None, {})]
    with monkeypatch.context() as context:
        context.setattr(shutil, "copy2", fail)
        with pytest.raises(OSError, match="No space left") as error:
            lineage.copy_run(source, target, stages)
    assert error.value.errno == errno.ENOSPC and not lineage.is_written(target, stages)
    lineage.copy_run(source, target, stages)
    assert (target / "metrics" / "evaluation.csv").read_text() == "new"


@pytest.mark.timeout(600)
def test_an_agent_goes_on_from_a_copy(tmp_path):
    winner, loser = tmp_path / "winner", tmp_path / "loser"
    assert d4pg.command.train(options(winner, 1e-3, steps=300)) == 0
    # The loser: the same with another rate, and what the copy must replace or keep.
    shutil.copytree(winner, loser)
    config = RunDirectory(loser).config()
    config["identity"]["agent"]["critic_learning_rate"] = 1e-5
    (loser / "config.json").write_text(json.dumps(config))
    shutil.rmtree(loser / "checkpoints")
    (loser / "checkpoints" / "000009_step_1").mkdir(parents=True)
    (winner / "checkpoints" / ".saving-000009_step_1").mkdir()
    events = (loser / "events.csv").read_text()

    values = {"agent.critic-learning-rate": "0.0012"}
    stages = (Stage(0, 1, None, {"agent.critic-learning-rate": "0.001"}), Stage(300, 0, 1, values))
    lineage.copy_run(winner, loser, stages)
    lineage.copy_run(winner, loser, stages)  # As after a kill.
    assert lineage.is_written(loser, stages) and not lineage.is_written(winner, stages)
    assert (loser / "events.csv").read_text() == events
    folders = [{path.name for path in (run / "checkpoints").iterdir()} for run in (winner, loser)]
    assert folders[0] - folders[1] == {".saving-000009_step_1"} and folders[1] < folders[0]
    (info, _, weights), (_, _, copied) = newest(winner), newest(loser)
    assert "replay" in info.parts and weights.keys() == copied.keys()
    for name, array in weights.items():
        np.testing.assert_array_equal(array, copied[name])

    # A run refuses settings that are not its own: those of the copy are.
    assert d4pg.command.train(options(loser, 0.0012, steps=500)) == 0
    info, progress, trained = newest(loser)
    assert progress["environment_steps"] == 500
    before = newest(winner)[1]
    assert before["environment_steps"] == 300
    assert progress["learner_steps"] > before["learner_steps"]
    assert any(np.any(trained[name] != weights[name]) for name in weights)
    steps = read_metrics(loser, "evaluator")["environment_steps"]
    assert {300, 500} <= set(steps.tolist())
    assert RunDirectory(loser).config()["score"]["end"] == 500
    assert RunDirectory(loser).config()["options"]["agent"]["critic_learning_rate"] == 0.0012
    # The run that goes on does not change what it shares with the other.
    assert newest(winner)[2].keys() == weights.keys()
    for name, array in newest(winner)[2].items():
        np.testing.assert_array_equal(array, weights[name])
