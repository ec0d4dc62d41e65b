"""Runs that learn from recorded episodes alone, without actors."""

import dataclasses
import json
import os
import signal
import subprocess

import numpy as np
import pytest

import rl_replicator
from agents import load_policy
from agents.datasets.recording import DatasetSummary
from agents.nodes.counter import Progress
from agents.replay.checkpoint import read_items, read_tables
from agents.runs.results import describe_offline
from rl_replicator.checkpoints import Checkpointer
from rl_replicator.cli.main import main
from rl_replicator.errors import UsageError
from rl_replicator.runs import evaluations as evaluated
from rl_replicator.runs.metrics import read_metrics
from tests.agents.datasets import random_episodes
from tests.agents.deterministic import interrupting
from tests.suite import forked

pytestmark = pytest.mark.usefixtures("plain_graphs")
TARGET = "environments.fakes:target"
SMALL = [
    *("--agent.policy-layers", "16", "--agent.critic-layers", "16", "--agent.discount", "0.5"),
    *("--agent.global-batch-size", "32", "--agent.steps-per-call", "8", "--no-video"),
    *("--agent.replay.min-size", "200", "--checkpoint-seconds", "0.05"),
]


@pytest.fixture
def dataset(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    random_episodes.make_dataset("a-v0", TARGET, 20)
    return "a-v0"


def train(*words):
    return main(["train", *words, *SMALL])


def program(*words, **variables):
    return subprocess.run(
        [*forked.python(), "-m", "rl_replicator.cli.main", "train", *words],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
    )


def state(run_dir):
    """What the newest checkpoint holds: everything that the learner trains, and the replay."""
    folder = Checkpointer(run_dir / "checkpoints").latest().path
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for part in ("learner", "replay")
        for path in sorted((folder / part).iterdir())
    }


def test_it_learns_from_random_actions_without_an_actor(dataset, tmp_path, capsys):
    """A policy of random actions has a return of 13, a constant one 15, the best one 20."""
    words = ["td3", "--offline", dataset, "--env", TARGET, "--agent.policy-learning-rate", "3e-3"]
    words += ["--agent.critic-learning-rate", "3e-3", "--agent.replay.priority-exponent", "0.6"]
    run_dir = tmp_path / "run"
    assert train(*words, "--steps", "601", "--run-dir", str(run_dir)) == 0
    output = capsys.readouterr().out
    assert "offline a-v0: 20 episodes (0 terminated), 400 actions" in output
    assert "after 608 learner steps, " in output  # The last call is a whole one.
    evaluations = read_metrics(run_dir, "evaluator")
    assert evaluations["episode_return"][-1] > 18.5
    assert evaluations["environment_steps"][-1] == 601
    assert evaluated.read(run_dir, None).series.x_label == "learner steps"
    assert not len(read_metrics(run_dir, "actor"))
    folder = Checkpointer(run_dir / "checkpoints").latest().path / "replay"
    (table,) = read_tables(folder)
    assert table.rate_limiter.insert_count == 400
    assert len({item.priority for item in read_items(folder)}) > 100
    assert main(["train", "--run-dir", str(run_dir)]) == 0
    assert "finished: all 601 steps" in capsys.readouterr().out


def test_without_an_environment_the_policy_is_trained_and_exported(dataset, tmp_path, capsys):
    run_dir = tmp_path / "run"
    words = ["d4pg", "--offline", dataset, "--run-dir", str(run_dir)]
    assert train(*words, "--steps", "64") == 0
    assert "trained on a-v0; not evaluated, without --env" in capsys.readouterr().out
    action = load_policy(run_dir).act(np.zeros(2, np.float32))
    assert action.shape == (1,)
    assert main(["export", str(run_dir), "--format", "numpy", "--out", str(tmp_path / "out")]) == 0
    card = (tmp_path / "out" / "README.md").read_text()
    assert "d4pg on recorded steps" in card and "not evaluated" in card
    assert "| environment steps | 0 |" in card
    assert main(["eval", str(run_dir)]) == 2
    assert "got one of --offline without --env" in capsys.readouterr().err
    for policy in (run_dir, tmp_path / "out"):  # In an environment that has its specs.
        assert main(["play", str(policy), "--env", TARGET, "--out", str(tmp_path / "a.gif")]) == 0
    assert main(["train", "--run-dir", str(run_dir), "--steps", "128"]) == 0
    progress = Checkpointer(run_dir / "checkpoints").latest().path / "progress" / "state.json"
    assert json.loads(progress.read_text())["learner_steps"] == 128


def test_without_an_environment_actions_are_those_of_the_recorded_mask(dataset, tmp_path):
    small = ["--agent.critic-layers", "8", "--agent.global-batch-size", "8", "--no-video"]
    small += ["--agent.replay.min-size", "60", "--agent.replay.samples-per-insert", "8"]
    small += ["--agent.steps-per-call", "1", "--run-dir"]
    buttons = "tests.environments.discrete_fakes:make_buttons"
    recorded, learned = str(tmp_path / "recorded"), str(tmp_path / "learned")
    assert main(["train", "dqn", "--env", buttons, "--steps", "80", *small, recorded]) == 0
    assert main(["record", recorded, "--episodes", "9", "--dataset", "b-v0"]) == 0
    assert main(["train", "dqn", "--offline", "b-v0", "--steps", "8", *small, learned]) == 0
    policy = load_policy(learned)
    observations = [np.append(0.5, mask) for mask in np.eye(6)]
    assert [policy.act(each) for each in observations] == [*range(6)]


@pytest.mark.processes
@pytest.mark.timeout(300)
def test_a_killed_run_ends_with_the_weights_of_an_undisturbed_one(dataset, tmp_path):
    words = ["td3", "--offline", dataset, "--env", TARGET, "--deterministic", "--steps", "400"]
    words += ["--wrap", f"{interrupting.__name__}:wrap", "--evaluation.every", "200"]
    words += ["--evaluation.episodes", "1", "--agent.replay.priority-exponent", "0.6"]
    words += [*SMALL, "--run-dir"]
    cut, whole = str(tmp_path / "cut"), str(tmp_path / "whole")
    done = program(*words, cut, **{interrupting.VARIABLE: f"SIGKILL 5 {cut}"})
    assert done.returncode in (-signal.SIGKILL, 128 + signal.SIGKILL), done.stdout + done.stderr
    assert 0 < Checkpointer(tmp_path / "cut" / "checkpoints").latest().step < 400
    # In programs too: this process leaves oneDNN out, which rounds otherwise.
    for done in (program("--run-dir", cut), program(*words, whole)):
        assert done.returncode == 0, done.stdout + done.stderr
    assert state(tmp_path / "cut") == state(tmp_path / "whole")
    curves = [read_metrics(tmp_path / name, "evaluator") for name in ("cut", "whole")]
    for name in ("environment_steps", "episode_return"):
        np.testing.assert_array_equal(*(curve[name] for curve in curves))
    assert list(curves[0]["environment_steps"]) == [200, 400]


def test_what_cannot_be_learned_is_refused_in_one_line(dataset, tmp_path):
    for options, message in (
        ({"offline": "b-v0"}, "to be a Minari dataset or its folder, found none of the name b"),
        ({"offline": dataset, "env": "cartpole:swingup"}, "observations in a Box of 5 numbers"),
        ({"offline": dataset, "env": TARGET, "actors": 2}, "--actors: expected 1 with --offline"),
        ({"offline": dataset, "wrap": ["a:b"]}, "--wrap: expected --env with it"),
        ({"offline": dataset, "prefill": dataset}, "--prefill: expected None with --offline"),
        ({}, "--env: expected the name of an environment, got None"),
    ):
        with pytest.raises(UsageError, match=message) as error:
            rl_replicator.train("td3", run_dir=str(tmp_path / "run"), **options)
        assert "\n" not in str(error.value)
        assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("lengths", "terminated", "lacks"), [((9, 5, 9), 0, 1), ((9, 5), 1, 0), ((9, 9), 0, 0)]
)
def test_missing_terminations_are_noticed(lengths, terminated, lacks):
    """Episodes that a time limit cuts off are equally long."""
    lack = DatasetSummary(lengths, (1.0,) * len(lengths), terminated).lack
    assert lack.startswith("1 episodes are shorter than the longest") if lacks else lack == ""


def test_the_progress_line_names_no_actors():
    fields = {field.name: 0 for field in dataclasses.fields(Progress)}
    progress = Progress(
        **fields
        | {"environment_steps": 50, "total_steps": 100, "learner_steps": 50}
        | {"evaluation_return": 7.0, "evaluation_step": 20, "episode_return": None}
    )
    line = describe_offline(progress, actor_rate=9.0, learner_rate=5.0)
    assert line == "50/100 steps | ETA 0:10 | evaluation 7 @20 | learner 5/s"
