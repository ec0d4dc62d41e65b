"""Whole runs from pixels: they continue, are filmed, and refuse what does not fit."""

import contextlib
import dataclasses
import json
import shutil

import numpy as np
import pytest
import tensorflow  # noqa: F401 - so that conftest splits its CPU before the first run

from agents import d4pg
from agents.cli import policies
from agents.d4pg import PixelD4PGConfig
from agents.nodes.run_plan import EvaluationSchedule
from agents.replay.config import FrameReplayConfig
from agents.runs import preparation
from agents.runs.options import PixelAgentOptions
from environments import PixelConfig
from environments.pixels import rendering
from rl_replicator.cli import train
from rl_replicator.errors import UsageError
from rl_replicator.runs.metrics import MetricWriter, read_metrics
from rl_replicator.runs.run_directory import RunDirectory, options_used

pytestmark = [pytest.mark.timeout(300), pytest.mark.usefixtures("plain_graphs")]

TARGET = "environments.fakes:target"
FRAME = PixelConfig(height=24, width=24)
SMALL = PixelD4PGConfig(
    policy_layers=(64,),
    critic_layers=(64,),
    discount=0.5,
    n_step=1,
    frame_stack=2,
    feature_size=16,
    max_shift=0,
    global_batch_size=16,
    policy_learning_rate=2e-3,
    critic_learning_rate=2e-3,
    target_update_rate=0.05,
    exploration_sigma=0.5,
    # "auto" does not detect that tests disable oneDNN, without which bfloat16 is many times slower.
    precision="float32",
    exploration_steps=2000,
    replay=FrameReplayConfig(min_size=200, samples_per_insert=16.0),
)


def options(run_dir, **changes):
    settings = {
        "env": TARGET,
        "frame": FRAME,
        "action_repeat": 1,
        "agent": SMALL,
        "steps": 600,
        "run_dir": run_dir,
        "checkpoint_seconds": 1.0,
        "video": False,
        "evaluation": EvaluationSchedule(every=300, episodes=2, last_episodes=2),
    }
    return PixelAgentOptions(**(settings | changes))


def test_it_is_shown_and_goes_on(tmp_path, capsys):
    """test_frames_and_vectors.py shows that such a run learns."""
    finished = tmp_path / "run"
    assert d4pg.command.train(options(finished)) == 0
    assert list((finished / "tensorboard" / "pictures").iterdir())
    assert json.loads((finished / "config.json").read_text())["identity"]["pixels"]["height"] == 24
    assert policies.video([str(finished), "--out", str(tmp_path / "film.gif")]) == 0
    assert (tmp_path / "film.gif").stat().st_size > 100
    before = read_metrics(finished, "learner")["learner_steps"][-1]
    with contextlib.closing(MetricWriter(finished, "environment_steps")) as writer:
        writer.write("time", 600, {"actor_policy": 0.5, "learner_step": 0.5})
    num_splits = len(read_metrics(finished, "time")["wall_time"])
    capsys.readouterr()
    assert d4pg.command.train(options(finished, steps=700)) == 0
    # The time split of the first part, with other options, is not printed again; on a slow machine
    # the second part may have one of its own.
    has_split = len(read_metrics(finished, "time")["wall_time"]) > num_splits
    assert has_split or "time of the" not in capsys.readouterr().out
    learner = read_metrics(finished, "learner")["learner_steps"]
    assert learner[-1] > before and (np.diff(learner) >= 0).all()
    assert read_metrics(finished, "evaluator")["environment_steps"][-1] == 700
    with pytest.raises(UsageError, match=r"pixels\.height was 24 and is now 48"):
        d4pg.command.train(options(finished, frame=PixelConfig(48, 24)))


def test_auto_is_the_renderer_that_the_run_began_with(tmp_path):
    run, frame = RunDirectory(tmp_path / "run"), PixelConfig(24, 24)
    asked = options(run.path, env="cartpole:balance", frame=frame)
    mode = preparation.resolved(asked, run).frame.render
    assert mode == rendering.resolve("auto")
    assert preparation.resolved(options(run.path), run).frame == FRAME, "it draws itself"
    for stored in ("exact", "fast"):
        frame = dataclasses.replace(frame, render=stored)
        (tmp_path / stored).mkdir()
        run = RunDirectory(tmp_path / stored)
        run.describe("d4pg", dataclasses.replace(asked, frame=frame).identity, {})
        assert preparation.resolved(asked, run).frame == frame
    other = dataclasses.replace(frame, render="exact")
    with pytest.raises(UsageError, match=r"pixels\.render was 'fast' and is now 'exact'"):
        d4pg.command.train(options(run.path, env="cartpole:balance", frame=other))


@pytest.mark.usefixtures("untrained")
def test_a_run_asks_for_what_was_asked_of_the_run_whose_config_it_has(tmp_path):
    """Its discount of an action and its renderer follow from its own task and machine."""
    first, other = RunDirectory(tmp_path / "first"), RunDirectory(tmp_path / "other")
    agent = dataclasses.replace(SMALL, discount="auto", precision="auto")
    changes = {"frame": PixelConfig(24, 24), "agent": agent, "action_repeat": None}
    asked = options(first.path, env="cartpole:balance", **changes)
    assert d4pg.command.train(asked) == 0
    before = first.config()
    decided = {"precision": before["identity"]["agent"]["precision"], "discount": 0.97}
    assert decided["precision"] != "auto"
    for group in (before["options"]["agent"], before["options"]["frame"]):
        assert {group.get(name, "auto") for name in (*decided, "render")} == {"auto"}
    used = options_used(before)  # What reports and MLflow show.
    assert (
        used["agent"]
        == before["identity"]["agent"]
        == {
            **before["options"]["agent"],
            **decided,
            "discount": pytest.approx(decided["discount"]),
        }
    )
    assert used["frame"]["render"] == before["identity"]["pixels"]["render"] != "auto"

    def identity(*words):
        shutil.rmtree(other.path, ignore_errors=True)
        train.run(
            ["--config", str(first.path / "config.json"), "--run-dir", str(other.path), *words]
        )
        return other.config()["identity"]

    # Walker repeats actions twice, cartpole eight times.
    assert identity("--env", "walker:walk")["agent"]["discount"] == pytest.approx(0.97 ** (2 / 8))
    train.run(["--run-dir", str(first.path), "--steps", "1700"])
    after = first.config()
    assert after["identity"] == before["identity"]
    assert after["options"] == before["options"] | {"steps": 1700}


def test_a_replay_that_does_not_fit_is_refused_with_the_numbers(tmp_path, untrained, capsys):
    replay = dataclasses.replace(SMALL.replay, max_size=2**31 - 1)
    agent = dataclasses.replace(SMALL, replay=replay)
    long = {"agent": agent, "steps": 2**33}
    with pytest.raises(UsageError, match=r"fits into the .* GB of free memory, got .* GB for") as e:
        d4pg.command.train(options(tmp_path / "run", **long))
    assert "\n" not in str(e.value) and not (tmp_path / "run").exists()
    assert not untrained
    # A short run does not fill it.
    asked = options(
        tmp_path / "short",
        env="environments.fakes:chain",
        agent=dataclasses.replace(agent, value_min=0.0, value_max=10.0),
        wrap=("tests.environments.faulty:drawing",),
        time_limit=5,
    )
    assert d4pg.command.train(asked) == 0
    told = capsys.readouterr().out  # Drawing may never return, so it is announced.
    assert "measuring frames of environments.fakes:chain\n" in told
    assert "\nrendering: by the environment itself, 24x24: " in told
    # The machines of a cluster may have more memory than this one.
    cluster = {"launch": "ray", "address": "10.0.0.1:6379"}
    assert d4pg.command.train(options(tmp_path / "run", **long, **cluster)) == 0
