"""`rl-replicator play`: exported policies and runs, filmed; a window needs a display."""

import dataclasses
import json
import sys
import weakref

import imageio.v3 as iio
import numpy as np
import pytest

import environments
from agents.cli import play
from agents.d4pg.config import D4PGConfig
from agents.policies import exported, playing
from agents.runs.options import AgentOptions
from environments import flat
from rl_replicator.errors import UsageError
from rl_replicator.runs.statistics import number
from tests.agents.cli import wide_target

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
    assert play.run([str(path), "--seed", "7", "--episodes", "2", "--out", "a.gif"]) == 0
    *returns, last = capsys.readouterr().out.splitlines()
    expected = by_hand(weights, 2)
    assert returns == [f"return {number(value)} ({ENV})" for value in expected]
    assert expected[0] != expected[1] and last == "video a.gif"
    assert iio.imread("a.gif").shape[0] > 7  # Frames of two episodes; a GIF merges equal frames.


def test_a_film_keeps_no_frames(folder, monkeypatch):
    """Kept frames took 230 kB each, 80 MB for an episode of a thousand steps."""
    path, _ = folder
    frames, alive = [], []

    def render(self, height, width, camera_id=-1):
        alive.append(sum(one() is not None for one in frames))
        frame = np.zeros((height, width, 3), np.uint8)
        frames.append(weakref.ref(frame))
        return frame

    monkeypatch.setattr(flat.Environment, "render", render)
    assert play.run([str(path), "--episodes", "4", "--out", "a.mp4"]) == 0
    assert len(frames) == 28 and max(alive) <= 2
    assert sum(1 for _ in iio.imiter("a.mp4", plugin="FFMPEG")) == 28


def test_a_film_of_an_environment_that_fails_blames_no_disk(folder, monkeypatch):
    path, _ = folder
    monkeypatch.setattr(flat.Environment, "render", lambda *_: int("no number"))
    with pytest.raises(ValueError, match="no number"):
        play.run([str(path), "--out", "a.mp4"])
    assert [found.name for found in path.parent.iterdir()] == ["policy"]


@pytest.mark.parametrize("output", ["a.mp4", "a.gif"])
@pytest.mark.parametrize("name", ["drawn_small", "drawn_grey"])
def test_a_film_takes_frames_of_its_size_alone(folder, name, output):
    path, _ = folder
    name = f"tests.environments.faulty:{name}"
    with pytest.raises(environments.EnvironmentDataError, match=r"expected uint8 \[240, 320, 3\]"):
        play.run([str(path), "--env", name, "--out", output])
    assert [found.name for found in path.parent.iterdir()] == ["policy"]


def test_a_window_without_tkinter_is_refused(monkeypatch):
    monkeypatch.setitem(sys.modules, "tkinter", None)  # Debian's Python comes without it.
    with pytest.raises(UsageError, match=r"expected Python's tkinter .*--out"):
        playing.Window("a task")


def test_a_window_that_is_closed_ends_the_episode(folder, capsys, windows):
    path, weights = folder
    assert play.run([str(path), "--seed", "7", "--episodes", "4"]) == 0
    (window,) = windows
    assert (window.title, window.frames, window.is_closed) == (ENV, 10, True)
    assert capsys.readouterr().out == f"return {number(by_hand(weights, 1)[0])} ({ENV})\n"


def test_without_a_display_there_is_a_film(folder, capsys, monkeypatch):
    path, _ = folder
    assert play.run([str(path)]) == 0
    assert capsys.readouterr().out.endswith("video play.mp4\n")
    monkeypatch.setenv("DISPLAY", ":4711")
    with pytest.raises(UsageError, match=r"expected (a display|Python's tkinter) .*--out"):
        play.run([str(path)])


def test_another_environment_must_fit(folder, tmp_path):
    path, _ = folder
    with pytest.raises(UsageError, match=r"expected an environment with observations"):
        play.run([str(path), "--env", "cartpole:swingup"])
    with pytest.raises(UsageError, match=r"expected a run directory or a policy exported"):
        play.run([str(tmp_path)])
    with pytest.raises(UsageError, match=r"expected a path that .* of 300 characters"):
        play.run(["a" * 300])
    with pytest.raises(UsageError, match=r"a file named .mp4 or .gif, got a.avi"):
        play.run([str(path), "--out", "a.avi"])
    with pytest.raises(SystemExit, match="2"):
        play.run([str(path), "--episodes", "0"])


@pytest.mark.parametrize("share", [0.0, 0.5, 0.99])
def test_a_policy_that_was_cut_off_is_refused_in_one_line(folder, share):
    path, _ = folder
    file = path / exported.MODEL
    file.write_bytes(file.read_bytes()[: int(share * file.stat().st_size)])
    with pytest.raises(UsageError, match=r"expected a run directory or a policy exported.*npz: "):
        play.run([str(path)])


@pytest.mark.parametrize(
    ("op", "attributes"),
    [
        ("load", {}),  # A name of NumPy, but no operation.
        ("Reduce", {"kind": "load", "axes": [1], "keep": False}),
        ("Tanh", {"axis": 1}),
        ("Slice", {"starts": "x", "stops": [None], "steps": [0]}),
    ],
)
def test_a_policy_whose_program_is_no_program_is_refused_in_one_line(folder, op, attributes):
    path, _ = folder
    with np.load(path / exported.MODEL) as file:
        arrays = dict(file)
    program = json.loads(str(arrays["program"]))
    program["operations"][1] = {"op": op, "in": ["a"], "out": "b", **attributes}
    arrays["program"] = np.array(json.dumps(program))
    np.savez(path / exported.MODEL, **arrays)
    with pytest.raises(UsageError, match=r"or a policy exported by --format numpy.*npz: \w+Error"):
        play.run([str(path)])


def test_a_policy_whose_card_lacks_the_run_is_refused_in_one_line(folder):
    path, _ = folder
    with np.load(path / exported.MODEL) as file:
        arrays = dict(file)
    card = json.loads(str(arrays["card"]))
    del card["config"]
    np.savez(path / exported.MODEL, **{**arrays, "card": np.array(json.dumps(card))})
    with pytest.raises(UsageError, match="expected 'config' among the stored settings .* got none"):
        play.run([str(path)])


def test_another_environment_is_played_with_the_actions_of_the_own_one(folder):
    """Its range is twice as wide; the policy's actions cover half of it."""
    path, weights = folder
    name = f"{wide_target.__name__}:make"
    assert environments.make(name, seed=0).own_action_spec.maximum == 2.0
    player = play.opened(path, name, seed=0, best=False)
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
    assert play.run([str(path), "--seed", "7"]) == 0
    assert f"return {number(by_hand(weights, 1)[0])} ({ENV})" in capsys.readouterr().out


def test_an_exported_policy_has_no_best_checkpoint(folder):
    path, _ = folder
    with pytest.raises(UsageError, match=r"--best: expected a run directory with it, got .*; leav"):
        play.run([str(path), "--best"])


def test_actions_are_mapped_from_the_own_range():
    """From [1, 5] to [-1, 1]."""

    @dataclasses.dataclass
    class Spec:
        shape = (2,)
        minimum, maximum = 1.0, np.array([5.0, 5.0])

    class Constant:
        def act(self, observation):
            return np.array([1.0, 4.0])

    actor = exported.ExportedActor(Constant(), Spec)
    np.testing.assert_allclose(actor.select_action(np.zeros(1)), [-1.0, 0.5])
