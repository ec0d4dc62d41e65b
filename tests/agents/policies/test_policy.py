"""From a run's directory alone: its policy, its best checkpoint, and continued training."""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import tensorflow  # noqa: F401 - so that conftest splits its CPU before the first run

import agents
import rl_replicator as rr
from agents import td3
from agents.policies.policy import max_actions
from agents.runs.options import AgentOptions
from agents.task import Task
from environments.fakes import TargetMatching
from rl_replicator.checkpoints import Checkpointer
from rl_replicator.cli import main
from rl_replicator.errors import UsageError
from rl_replicator.runs import events
from rl_replicator.runs.metrics import read_metrics
from rl_replicator.runs.run_directory import RunDirectory
from rl_replicator.runs.statistics import number

pytestmark = pytest.mark.usefixtures("plain_graphs")
SETTINGS = {
    "env": "environments.fakes:target",
    "steps": 600,
    "keep_checkpoints": 3,
    "checkpoint_seconds": 0.2,
    "video": False,
    "evaluation": {"every": 200, "episodes": 2, "last_episodes": 2},
    "agent": {
        "policy_layers": [16],
        "critic_layers": [16],
        "global_batch_size": 16,
        "steps_per_call": 4,
        "replay": {"min_size": 200, "samples_per_insert": 4.0},
    },
}


def test_evaluations_are_cut_off_by_steps_of_the_simulator(tmp_path):
    run = RunDirectory(tmp_path)
    run.describe("td3", {}, {"evaluation": {"max_episode_steps": 20}})
    assert max_actions(run, Task(SETTINGS["env"], repeats=3)) == 7


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A finished run, and the figures that its callback received."""
    heard = []
    run_dir = tmp_path_factory.mktemp("trained") / "run"
    run = rr.train("td3", run_dir=run_dir, on_evaluation=heard.append, **SETTINGS)
    assert run.path == run_dir
    return run_dir, heard


@pytest.fixture
def run_dir(trained, tmp_path):
    return Path(shutil.copytree(trained[0], tmp_path / "run"))


def command(capsys, *words):
    """Runs `rl-replicator WORDS` in this process; returns its status, output and errors."""
    status = main.main([str(word) for word in words])
    return status, *capsys.readouterr()


def progress(folder):
    return json.loads((Checkpointer(folder).latest().path / "progress/state.json").read_text())


def test_an_evaluation_closes_its_environment(trained, monkeypatch, capsys):
    made, closed, init = [], [], TargetMatching.__init__
    monkeypatch.setattr(
        TargetMatching, "__init__", lambda self, *args: made.append(self) or init(self, *args)
    )
    monkeypatch.setattr(TargetMatching, "close", lambda self: closed.append(self))
    assert command(capsys, "eval", trained[0], "--episodes", 1)[0] == 0
    assert made and [*map(id, made)] == [*map(id, closed)]


def test_evaluations_and_checkpoints(trained):
    """A callback hears every evaluation once, and the best one chooses the best checkpoint."""
    run_dir, heard = trained
    table = read_metrics(run_dir, "evaluator")
    assert [row["environment_steps"] for row in heard] == table["environment_steps"].tolist()
    assert [row["episode_return"] for row in heard] == table["episode_return"].tolist()
    assert heard[-1]["environment_steps"] == 600
    assert 1 <= len(list((run_dir / "checkpoints").iterdir())) <= 3
    assert json.loads((run_dir / "config.json").read_text())["options"]["keep_checkpoints"] == 3
    best = max(reversed(heard), key=lambda row: row["episode_return"])
    kept = progress(run_dir / "best")
    assert kept["evaluation"]["return"] == best["episode_return"]
    assert kept["environment_steps"] == best["environment_steps"]
    assert kept["learner_steps"] == best["learner_steps"]


@pytest.mark.parametrize("best", [False, True])
def test_a_loaded_policy_acts_like_the_evaluator(trained, best, capsys):
    run_dir, _ = trained
    policy = agents.load_policy(run_dir, best=best)
    environment = policy.make_environment(seed=5)
    timestep, total = environment.reset(), 0.0
    policy.reset()
    while not timestep.last():
        action = policy.act(timestep.observation)
        assert action.shape == (1,) and action.dtype == np.float32
        timestep = environment.step(action)
        total += float(timestep.reward)
    kept = progress(run_dir / ("best" if best else "checkpoints"))
    assert policy.learner_steps == kept["learner_steps"]
    assert policy.environment_steps == kept["environment_steps"]
    words = ("--episodes", 1, "--seed", 5, *(["--best"] if best else []))
    assert command(capsys, "eval", run_dir, *words)[:2] == (
        0,
        f"return {number(total)} (min {number(total)}, max {number(total)}, 1 episode)\n",
    )


def test_an_evaluation_names_the_starts_from_which_the_policy_fails(trained, monkeypatch, capsys):
    reset, step = TargetMatching.reset, TargetMatching.step

    def restart(self):
        timestep = reset(self)
        self.may_succeed = timestep.observation[0] > 0
        return timestep

    def halved(self, action):
        timestep = step(self, action)
        return timestep._replace(reward=timestep.reward * self.may_succeed)

    monkeypatch.setattr(TargetMatching, "reset", restart)
    monkeypatch.setattr(TargetMatching, "step", halved)
    status, told, _ = command(capsys, "eval", trained[0], "--episodes", 20)
    assert status == 0
    assert re.search(
        r"\nepisodes that began with observation\[0\] up to -0\.\d+ returned 0 on average "
        r"\(\d+ of 20\), the others 1\d(\.\d)?\n",
        told,
    )


def test_a_nested_observation_of_ones_own_environment_is_refused(trained):
    policy = agents.load_policy(trained[0])
    match = r"one array \[2\] of float32, got a dict; .* policy.adapt\(environment"
    with pytest.raises(TypeError, match=match):
        policy.act({"position": np.zeros(3)})
    with pytest.raises(ValueError, match=r"one array \[2\] of float32, got \[3\] of float64; use"):
        policy.act(np.zeros(3))
    numbers = policy.act(np.array([0.5, 1.0]))  # In any dtype.
    np.testing.assert_array_equal(numbers, policy.act(np.array([0.5, 1.0], np.float32)))


def test_another_agent_is_refused(run_dir, capsys):
    status, _, err = command(capsys, "train", "sac", "--run-dir", run_dir)
    assert status == 2 and "expected the settings of sac" in err and "got those of td3" in err
    status, _, err = command(capsys, "train", "--run-dir", run_dir.parent / "no")
    assert status == 2 and "expected the directory of a run" in err
    status, _, err = command(capsys, "train", "--steps", 3)
    assert status == 2 and "--run-dir or --config after 'rl-replicator train'" in err


TD3 = "trainable = 'td3'\n[options]\nenv = 'environments.fakes:target'\n"


def test_what_a_file_has_wrong_is_one_line_with_its_name(tmp_path, capsys):
    file = tmp_path / "settings.toml"
    for text, message in (
        (f"{TD3}stepz = 5", "got 'stepz'; 'rl-replicator train td3 --help' lists them"),
        (f"{TD3}agent.n_stp = 5", "got 'agent.n_stp'; 'rl-replicator train td3 --help' lists"),
        (f"{TD3}agent.replay.min_size = 'x'", "integer for 'agent.replay.min_size', got 'x'"),
        (f"{TD3}agent.policy_layers = [[16]]", "for 'agent.policy_layers.0', got [16]"),
        (f"{TD3}preset = 'nonsense'", "--preset: expected default, got nonsense"),
        ("trainable = 'resnet'\n[options]\nsed = 5", "'sed'; 'rl-replicator train resnet --help'"),
        ("{", "--config: expected settings in"),
        ("trainable = 'td3'\n[option]\nsteps = 5", "got 'option'; did you mean 'options'?"),
        ("trainable = 'td3'\nsteps = 5\n", "got 'steps'; move settings to 'options'"),
    ):
        file.write_text(text)
        status, out, err = command(capsys, "train", "--config", file)
        assert (status, out, err.count("\n")) == (2, "", 1)
        assert str(file) in err and message in err, err


def test_a_wrong_argument_in_python_is_no_fault_of_a_version():
    with pytest.raises(UsageError, match="^the arguments: expected .*'stepz'; .*td3 --help' lists"):
        rr.train("td3", env="environments.fakes:target", stepz=5)


def test_an_error_of_the_callback_ends_the_run_and_saves_it(tmp_path, monkeypatch):
    def fail(figures):
        raise LookupError(f"return {figures['episode_return']}")

    told = []
    monkeypatch.setattr("rl_replicator.runs.run.trackers.fail", lambda run: told.append(run.path))
    with pytest.raises(LookupError, match="return "):
        rr.train(
            "td3", run_dir=tmp_path / "run", on_evaluation=fail, **{**SETTINGS, "steps": 50_000}
        )
    saved = progress(tmp_path / "run" / "checkpoints")["environment_steps"]
    written = read_metrics(tmp_path / "run", "learner")["environment_steps"]
    assert written[-1] <= saved < 50_000  # The program has stopped and saved.
    assert told == [tmp_path / "run"]
    assert events.read(tmp_path / "run")[-1].event == events.FAILED


def test_a_learners_run_has_no_policy(tmp_path, monkeypatch):
    (tmp_path / "config.json").write_text('{"trainable": "resnet", "identity": {}}')
    monkeypatch.setenv("HOME", str(tmp_path.parent))  # Expands `~`, as `rl_replicator.train` does.
    with pytest.raises(rr.UsageError, match="expected a run of an agent"):
        agents.load_policy(f"~/{tmp_path.name}")


def test_a_run_whose_settings_are_not_whole_is_refused_in_one_line():
    identity = {**AgentOptions(env="cartpole:swingup", agent=td3.command.config()).identity}
    assert td3.command.restore(identity)[0].name == "cartpole:swingup"
    del identity["agent"]
    with pytest.raises(rr.UsageError, match="expected 'agent' among the stored .* got none"):
        td3.command.restore(identity)
