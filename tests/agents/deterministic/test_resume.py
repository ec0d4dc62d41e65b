"""Deterministic runs end with the same bits whether killed, stopped or left alone."""

import hashlib
import json
import os
import signal
import subprocess
from pathlib import Path

import numpy as np
import pytest

import environments
from agents.deterministic.episode import SavedEpisode
from rl_replicator.checkpoints import Checkpointer
from rl_replicator.checkpoints.parts import VariableValues
from rl_replicator.errors import CheckpointError
from rl_replicator.runs.metrics import read_metrics
from tests.agents.deterministic import interrupting
from tests.suite import forked

ROOT = Path(__file__).parents[3]
COMMAND = [
    *("-m", "rl_replicator.cli.main", "train", "d4pg", "--deterministic", "--steps", "1500"),
    *("--env", "environments.fakes:target", "--wrap", f"{interrupting.__name__}:wrap"),
    *("--agent.policy-layers", "16", "--agent.critic-layers", "16", "--agent.replay.min-size"),
    *("200", "--agent.global-batch-size", "16", "--agent.steps-per-call", "4"),
    *("--agent.value-min", "0", "--agent.value-max", "20", "--no-video"),
    # Both the random actions of the first 480 steps and the later noise have a memory.
    *("--agent.exploration", "pink", "--agent.exploration-random-steps", "480"),
    *("--agent.replay.samples-per-insert", "8", "--checkpoint-seconds", "0.05"),
    *("--evaluation.every", "500", "--evaluation.episodes", "1", "--evaluation.last-episodes", "2"),
]


def start(run_dir, interrupt=None):
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    if interrupt is not None:
        environment[interrupting.VARIABLE] = f"{interrupt} {run_dir}"
    return subprocess.Popen(
        [*forked.python(), *COMMAND, "--run-dir", str(run_dir)],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def finish(process):
    output, _ = process.communicate(timeout=200)
    return process.returncode, output


def state(run_dir):
    """Hashes of everything that a run has learned and seen, by name."""
    checkpoint = Checkpointer(run_dir / "checkpoints").latest().path
    found = VariableValues.read(checkpoint / "learner")
    for path in (
        *("replay/rows.npy", "replay/weights.npy", "replay/state.json"),
        *("episode/state.json", "exploration/state.json"),
    ):
        found[path] = np.frombuffer((checkpoint / path).read_bytes(), np.uint8)
    return {name: hashlib.sha256(array.tobytes()).hexdigest() for name, array in found.items()}


def curves(run_dir):
    return {
        (group, name): list(map(str, column))  # NaN equals itself.
        for group in ("actor", "learner", "evaluator")
        for name, column in read_metrics(run_dir, group).items()
        if name != "wall_time"
    }


@pytest.mark.processes
@pytest.mark.timeout(600)
def test_a_killed_and_a_stopped_run_end_with_the_weights_of_an_undisturbed_one(tmp_path):
    whole = start(tmp_path / "whole")
    # Episodes have 20 steps: a save comes in the middle of an episode or between two.
    status, output = finish(start(tmp_path / "cut", "SIGKILL 450"))
    assert status in (-signal.SIGKILL, 128 + signal.SIGKILL), output
    status, output = finish(start(tmp_path / "cut", "SIGTERM e5"))
    assert status == 128 + signal.SIGTERM and "stopped and saved" in output, output
    assert "continuing in" in output
    checkpoint = Checkpointer(tmp_path / "cut" / "checkpoints").latest()
    progress = json.loads((checkpoint.path / "progress" / "state.json").read_text())
    # An evaluation was interrupted.
    assert progress["environment_steps"] in (500, 1000)
    assert progress["evaluation"]["step"] == progress["environment_steps"] - 500
    step = checkpoint.step
    assert 0 < step < (1500 - 200) * 8 / 16
    status, output = finish(start(tmp_path / "cut"))
    assert status == 0, output
    status, output = finish(whole)
    assert status == 0 and "after 1,500 environment steps, 648 learner steps" in output, output
    assert state(tmp_path / "cut") == state(tmp_path / "whole")
    assert curves(tmp_path / "cut") == curves(tmp_path / "whole")
    assert len(curves(tmp_path / "cut")["actor", "episodes"]) == 1500 // 20


class Recorder:
    """An actor that steps towards zero and records its observations."""

    def __init__(self):
        self.observed = []

    def begin(self, index, timestep):
        self.observed = [timestep.observation]

    def select_actions(self, observations):
        return [-0.5 * observations[0][:1]]

    def observe(self, index, action, next_timestep):
        self.observed.append(next_timestep.observation)


def played(steps, seed=3, is_random_state_known=True):
    environment = environments.make("environments.fakes:target", seed=seed)
    if not is_random_state_known:
        environment._random = None
    episode = SavedEpisode(environment, Recorder(), np.random.default_rng(1))
    for _ in range(steps):
        episode.step()
    return episode


@pytest.mark.parametrize("steps", [0, 7, 20, 33])
def test_a_restored_environment_goes_on_where_it_was(tmp_path, steps):
    before = played(steps)
    before.save(tmp_path)
    after = played(0, seed=99)
    after.restore(tmp_path)
    noise, expected = (episode._noise.bit_generator.state for episode in (after, before))
    assert noise == expected
    for _ in range(25):
        want, got = before.step(), after.step()
        np.testing.assert_array_equal(want.observation, got.observation)
        assert (want.reward, want.last()) == (got.reward, got.last())
        assert after.length == before.length
    assert after.episode_return == before.episode_return


def test_a_random_state_that_is_not_known_is_noticed_between_two_episodes(tmp_path):
    """The restored environment would restart from its seed, as before its first episode."""
    before = played(40, is_random_state_known=False)
    before.save(tmp_path)
    with pytest.raises(CheckpointError, match="after action 1; keep all of its"):
        played(0, is_random_state_known=False).restore(tmp_path)


def test_an_environment_that_does_not_repeat_itself_is_refused(tmp_path):
    played(7).save(tmp_path)
    environment = environments.make("environments.fakes:target", seed=3)
    draws = np.random.default_rng()
    environment.reset = lambda: (
        type(environment).reset(environment)._replace(observation=draws.random(2, np.float32))
    )
    step = environment.step
    environment.step = lambda action: step(action)._replace(observation=draws.random(2, np.float32))
    other = SavedEpisode(environment, Recorder(), np.random.default_rng(1))
    with pytest.raises(
        CheckpointError, match="another observation after action 7; keep all of its"
    ):
        other.restore(tmp_path)
