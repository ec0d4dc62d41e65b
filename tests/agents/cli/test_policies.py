"""`rl-replicator play` and `zoo`: policies of runs and exported ones, played and measured."""

import errno
import json
import os
import pathlib
import re
import shlex
import shutil
import signal
import subprocess
import sys

import imageio.v2 as iio_v2
import imageio.v3 as iio
import numpy as np
import pytest

import environments
from agents import d4pg
from agents.cli import policies
from agents.d4pg.config import D4PGConfig
from agents.policies import exported, playing
from agents.runs.options import AgentOptions
from environments import flat
from rl_replicator.errors import DiskError, UsageError
from rl_replicator.runs.statistics import number
from tests.agents.cli import wide_target
from tests.agents.policies import test_export
from tests.suite import forked

ENV = "environments.fakes:target"


class FakeWindow:
    """A window that is closed in the second episode."""

    def __init__(self, title):
        self.title, self.frames, self.is_closed = title, 0, False

    def show(self, frame):
        self.frames += 1
        return self.frames < 10

    def close(self):
        self.is_closed = True


@pytest.fixture
def windows(monkeypatch):
    """The windows that were opened."""
    opened = []

    def open_one(title):
        opened.append(FakeWindow(title))
        return opened[-1]

    monkeypatch.setattr(playing, "has_display", lambda: True)
    monkeypatch.setattr(playing, "Window", open_one)
    return opened


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A policy whose action is tanh(observation weights), as an export would hold it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DISPLAY", raising=False)
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    environment = environments.make(ENV, seed=0)
    sizes = environment.observation_spec().shape[0], environment.action_spec().shape[0]
    weights = np.random.default_rng(0).normal(size=sizes).astype(np.float32)
    action = ["b", [sizes[1]], "float32"]
    operations = [
        {"op": "MatMul", "in": ["observation", "w"], "out": "a"}
        | {"transpose_a": False, "transpose_b": False},
        {"op": "Tanh", "in": ["a"], "out": "b"},
    ]
    program = {
        "inputs": {"observation": [[sizes[0]], "float32"]},
        "outputs": {"action": action},
        "operations": operations,
        "constants": {"w": "constant_0"},
    }
    identity = {**AgentOptions(env=ENV, agent=D4PGConfig()).identity, "trainable": "d4pg"}
    card = {"title": "a policy", "agent": "agents.d4pg:command", "config": identity}
    path = tmp_path / "policy"
    path.mkdir()
    np.savez(
        path / exported.MODEL,
        program=np.array(json.dumps(program)),
        card=np.array(json.dumps(card)),
        constant_0=weights,
    )
    return path, weights


def by_hand(weights, episodes):
    """The returns of the policy's episodes."""
    environment, returns = environments.make(ENV, seed=7), []
    for _ in range(episodes):
        timestep, total = environment.reset(), 0.0
        while not timestep.last():
            timestep = environment.step(np.tanh(timestep.observation @ weights))
            total += float(timestep.reward)
        returns.append(total)
    return returns


def test_an_exported_policy_is_filmed(folder, capsys):
    path, weights = folder
    assert policies.play([str(path), "--seed", "7", "--episodes", "2", "--out", "a.gif"]) == 0
    expected = by_hand(weights, 2)
    told = ", ".join(map(number, expected))
    assert capsys.readouterr().out == f"film: return {told} ({ENV}), a.gif\n"
    assert expected[0] != expected[1]
    assert iio.imread("a.gif").shape[0] > 7  # Frames of two episodes; a GIF merges equal frames.


def test_a_film_of_an_environment_that_fails_blames_no_disk(folder, monkeypatch):
    path, _ = folder
    monkeypatch.setattr(flat.Environment, "render", lambda *_: int("no number"))
    with pytest.raises(ValueError, match="no number"):
        policies.play([str(path), "--out", "a.mp4"])
    assert [found.name for found in path.parent.iterdir()] == ["policy"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_film_that_a_signal_ends_leaves_nothing(folder, number):
    path, _ = folder
    program = f"""
import os, signal, sys
from environments import flat
from rl_replicator.cli import main
signal.signal({int(number)}, signal.SIG_DFL)  # It may be ignored, as under `nohup`.
flat.Environment.render = lambda *_: os.kill(os.getpid(), {int(number)})
sys.exit(main.main(["play", {str(path)!r}, "--out", "a.mp4"]))
"""
    done = subprocess.run([*forked.python(), "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stdout + done.stderr) == (128 + number, "")
    assert [found.name for found in path.parent.iterdir()] == ["policy"]


def test_a_window_without_tkinter_is_refused(monkeypatch):
    monkeypatch.setitem(sys.modules, "tkinter", None)  # Debian's Python comes without it.
    with pytest.raises(UsageError, match=r"expected Python's tkinter .*--out"):
        playing.Window("a task")


def test_a_window_that_is_closed_ends_the_episode(folder, capsys, windows):
    path, weights = folder
    assert policies.play([str(path), "--seed", "7", "--episodes", "4"]) == 0
    (window,) = windows
    assert (window.title, window.frames, window.is_closed) == (ENV, 10, True)
    assert capsys.readouterr().out == f"return {number(by_hand(weights, 1)[0])} ({ENV})\n"


def test_without_a_display_there_is_a_film(folder, capsys, monkeypatch):
    path, _ = folder
    assert policies.play([str(path)]) == 0
    assert re.fullmatch(r"film: return .*, play\.mp4\n", capsys.readouterr().out)
    monkeypatch.setenv("DISPLAY", ":4711")
    with pytest.raises(UsageError, match=r"expected (a display|Python's tkinter) .*--out"):
        policies.play([str(path)])


def test_another_environment_must_fit(folder, tmp_path):
    path, _ = folder
    with pytest.raises(UsageError, match=r"expected an environment with observations"):
        policies.play([str(path), "--env", "cartpole:swingup"])
    with pytest.raises(UsageError, match=r"expected an environment with actions \[1\], .* got 5; "):
        policies.play([str(path), "--env", f"{wide_target.__name__}:make_numbered"])
    with pytest.raises(UsageError, match=r"expected a run directory or a policy exported"):
        policies.play([str(tmp_path)])
    with pytest.raises(UsageError, match=r"a file named .mp4 or .gif, got a.avi"):
        policies.play([str(path), "--out", "a.avi"])
    with pytest.raises(SystemExit, match="2"):
        policies.play([str(path), "--episodes", "0"])


def test_a_policy_that_is_none_is_refused_in_one_line(folder):
    """One that was cut off, whose program is no program, or whose card lacks the run."""
    path, _ = folder
    file = path / exported.MODEL
    whole = file.read_bytes()
    expected = r"expected a run directory or a policy exported.*npz: "
    for share in (0.0, 0.5, 0.99):
        file.write_bytes(whole[: int(share * len(whole))])
        with pytest.raises(UsageError, match=expected):
            policies.play([str(path)])
    file.write_bytes(whole)
    with np.load(file) as found:
        arrays = dict(found)
    program = json.loads(str(arrays["program"]))
    program["operations"][1] = {"op": "Tanh", "in": ["a"], "out": "b", "axis": 1}
    np.savez(file, **{**arrays, "program": np.array(json.dumps(program))})
    with pytest.raises(UsageError, match=rf"{expected}\w+Error"):
        policies.play([str(path)])
    card = json.loads(str(arrays["card"]))
    del card["config"]
    np.savez(file, **{**arrays, "card": np.array(json.dumps(card))})
    with pytest.raises(UsageError, match="expected 'config' among the stored settings .* got none"):
        policies.play([str(path)])


def test_another_environment_is_played_with_the_actions_of_the_own_one(folder):
    """Its range is twice as wide; the policy's actions cover half of it."""
    path, weights = folder
    name = f"{wide_target.__name__}:make"
    assert environments.make(name, seed=0).own_action_spec.maximum == 2.0
    player = policies.opened(path, name, seed=0, best=False)
    assert player.task.name == name
    observation = player.environment.reset().observation
    np.testing.assert_allclose(
        player.actor.select_action(observation), np.tanh(observation @ weights), rtol=1e-5
    )


def test_an_exported_policy_needs_no_code_of_its_agent(folder, capsys):
    path, weights = folder
    with np.load(path / exported.MODEL) as file:
        arrays = dict(file)
    card = json.loads(str(arrays["card"])) | {"agent": "agent_of_another_folder:command"}
    np.savez(path / exported.MODEL, **{**arrays, "card": np.array(json.dumps(card))})
    assert policies.play([str(path), "--seed", "7"]) == 0
    assert f"return {number(by_hand(weights, 1)[0])} ({ENV})" in capsys.readouterr().out


@pytest.mark.parametrize(
    "settings",
    [
        {"env": "of_a_stranger:make"},
        {"env": 'gym:of_a_stranger:Id-v0{"lidar": false}'},
        {"wrap": ["of_a_stranger:f"]},
    ],
)
def test_the_code_of_a_strangers_model_does_not_run(folder, monkeypatch, settings):
    path, _ = folder
    monkeypatch.syspath_prepend(path)
    (path / "of_a_stranger.py").write_text("raise AssertionError('it ran')")
    with np.load(path / exported.MODEL) as file:
        arrays = dict(file)
    card = json.loads(str(arrays["card"]))
    card["config"] |= settings
    np.savez(path / exported.MODEL, **{**arrays, "card": np.array(json.dumps(card))})
    for words in ([], ["--env", f"{wide_target.__name__}:make"]):
        name = card["config"]["env"]
        typed = re.escape(shlex.quote(name))
        told = rf"expected --env {typed}, .* \(of_a_stranger\), whose code would run; pass it"
        with pytest.raises(UsageError, match=told):
            policies.play([str(path), *words])
    with pytest.raises(environments.EnvironmentConstructionError, match="it ran"):
        policies.play([str(path), "--env", name])


def test_an_exported_policy_has_no_best_checkpoint(folder):
    path, _ = folder
    with pytest.raises(UsageError, match=r"--best: expected a run directory with it, got .*; leav"):
        policies.play([str(path), "--best"])


def test_a_policy_is_exported_measured_and_played(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    run = test_export.make_run(tmp_path / "run", d4pg.command, None)
    words = ["--out", "zoo", "--episodes", "2", "--seed", "3", "--license", "MIT"]
    assert policies.zoo([str(run), *words]) == 0
    (line,) = _lines(capsys)
    name, measured = line.split(": return ")
    table = (tmp_path / "zoo" / "README.md").read_text()
    assert (
        f"| [{name}]({name}/README.md) | {test_export.ENV} | d4pg | 1,000 | {measured} | "
        f"[frames]({name}/episode.jpg) |" in table
    )
    assert iio.imread(tmp_path / "zoo" / name / "episode.jpg").shape == (120, 6 * 160, 3)
    assert [path.name for path in (tmp_path / "zoo").glob("**/model.py")] == ["model.py"]
    card = (tmp_path / "zoo" / name / "README.md").read_text()
    assert "8.25 (min 7, max 9, 5 episodes)" in card and "| licence | MIT |" in card
    # The run and what was exported from it play the same episodes.
    returns = []
    for path in (run, tmp_path / "zoo" / name):
        words = [str(path), "--seed", "3", "--episodes", "2", "--out", "film.gif"]
        words += ["--env", test_export.ENV]  # The model's card names a module of these tests.
        assert policies.play(words) == 0
        (told,) = re.findall(r"^film: return (.*) \(", "\n".join(_lines(capsys)))
        returns.append([float(x) for x in told.split(", ")])
    assert returns[0] == pytest.approx(returns[1], abs=0.11) and len(returns[0]) == 2
    low, high = re.search(r"\((\S+) to (\S+)\)", measured).groups()
    assert [float(low), float(high)] == pytest.approx(sorted(returns[1]), abs=0.11)


def test_episodes_are_cut_off_where_the_run_did(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    run = test_export.make_run(tmp_path / "run", d4pg.command, None)
    config = json.loads((run / "config.json").read_text())
    config["options"]["evaluation"] = {"max_episode_steps": 2}
    (run / "config.json").write_text(json.dumps(config))
    assert d4pg.command.evaluate(run, episodes=1, seed=3, out=pathlib.Path("first.gif")) == 0
    assert iio.imread("first.gif").shape[0] == 1  # Of two actions.
    assert policies.play([str(run), "--seed", "3", "--out", "film.gif"]) == 0
    assert policies.zoo([str(run), "--out", "zoo", "--episodes", "1", "--seed", "3"]) == 0
    told = "\n".join(_lines(capsys))
    evaluated, filmed, played, *_, measured = re.findall(r"return ([^\s,]+)", told)
    assert evaluated == filmed == played == measured
    assert f"\nfilm: return {filmed}, first.gif\n" in told


def test_what_fails_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    runs = [str(tmp_path / name) for name in ("first", "second")]
    test_export.make_run(tmp_path / "first", d4pg.command, None)
    shutil.copytree(*runs)
    with pytest.raises(UsageError, match=r"one run for each task and agent, got .*first and .*sec"):
        policies.zoo([*runs, "--out", "zoo"])
    shutil.rmtree("second/checkpoints")
    config = json.loads(pathlib.Path("second/config.json").read_text())
    config["identity"]["env"] = "environments.fakes:target"
    pathlib.Path("second/config.json").write_text(json.dumps(config))
    with pytest.raises(UsageError, match="checkpoint"):
        policies.zoo([*runs, "--out", "zoo", "--episodes", "1"])

    def fail(*args, **settings):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(iio_v2, "imwrite", fail)
    with pytest.raises(DiskError, match="--out: cannot write .*No space left on device"):
        policies.zoo([runs[0], "--out", "zoo", "--episodes", "1"])
    assert not any("zoo" in path.name for path in tmp_path.iterdir())


def _lines(capsys):
    return [line for line in capsys.readouterr().out.splitlines() if "return" in line]
