"""`rl-replicator record` writes the episodes that were played, as read back by Minari."""

import errno
import os
import re
import types

import minari
import numpy as np
import pytest

import agents
from agents.cli import policies
from agents.datasets import minari_files, recording
from agents.task import Task
from rl_replicator.errors import DiskError, UsageError
from rl_replicator.runs.statistics import number
from tests.agents.datasets.untrained import make_run

TARGET = "environments.fakes:target"


@pytest.fixture
def run_dir(tmp_path):
    return make_run(tmp_path / "run", TARGET)


def by_hand(run_dir, seed):
    """Plays an episode: observations, actions, rewards."""
    policy = agents.load_policy(run_dir)
    environment = policy.make_environment(seed)
    timestep = environment.reset()
    policy.reset()
    observations, actions, rewards = [timestep.observation], [], []
    while not timestep.last():
        actions.append(np.array(policy.act(timestep.observation)))
        timestep = environment.step(actions[-1])
        observations.append(timestep.observation)
        rewards.append(timestep.reward)
    return np.stack(observations), np.stack(actions), np.stack(rewards)


def test_minari_reads_what_was_played(run_dir, capsys):
    words = [str(run_dir), "--episodes", "3", "--seed", "7", "--dataset", "fakes/target-v0"]
    assert policies.record(words) == 0
    dataset = minari.load_dataset("fakes/target-v0")
    assert (dataset.total_episodes, dataset.total_steps) == (3, 60)
    returns = []
    for seed, episode in zip((7, 8, 9), dataset, strict=True):
        observations, actions, rewards = by_hand(run_dir, seed)
        np.testing.assert_array_equal(episode.observations, observations)
        np.testing.assert_array_equal(episode.actions, actions)
        np.testing.assert_array_equal(episode.rewards, rewards)
        assert dataset.observation_space.contains(episode.observations[0])
        assert dataset.action_space.contains(episode.actions[0])
        # `target` ends by its time limit.
        assert episode.truncations.tolist() == [False] * 19 + [True]
        assert not episode.terminations.any()
        returns.append(float(rewards.sum(dtype=np.float64)))
    read = minari_files.open_dataset("fakes/target-v0", Task(TARGET))
    *_, last = read.episodes()
    np.testing.assert_array_equal(last.observations, observations)
    np.testing.assert_array_equal(last.actions, actions)
    np.testing.assert_array_equal(last.rewards, rewards)
    assert last.discounts.tolist() == [1.0] * 20
    found = list(dataset.storage.get_episode_metadata(range(3)))
    assert [each["seed"] for each in found] == [7, 8, 9]
    assert [each["return"] for each in found] == pytest.approx(returns)
    about = dataset.storage.metadata
    assert about["algorithm_name"] == "td3"
    assert about["rl_replicator"]["config"]["identity"]["env"] == TARGET
    assert about["rl_replicator"]["environment_steps"] == 1000
    mean = number(np.mean(returns))
    assert capsys.readouterr().out == (
        "dataset fakes/target-v0: 3 episodes (0 terminated), 60 actions, return "
        f"{mean} (min {number(min(returns))}, max {number(max(returns))})\n"
    )


def test_a_termination_is_none_of_the_time_limit(tmp_path):
    run_dir = make_run(tmp_path / "run", "environments.fakes:chain")
    assert policies.record([str(run_dir), "--episodes", "1"]) == 0
    (episode,) = minari.load_dataset("environments-fakes-chain-td3-v0")
    assert episode.terminations.tolist() == [False] * 9 + [True]
    assert not episode.truncations.any()


def test_exploration_follows_from_the_seed(run_dir):
    def actions(name, *words):
        assert policies.record([str(run_dir), "--dataset", name, *words]) == 0
        return [episode.actions for episode in minari.load_dataset(name)]

    greedy = actions("a-v0", "--episodes", "2")
    noisy = actions("b-v0", "--episodes", "2", "--explore")
    (second,) = actions("c-v0", "--episodes", "1", "--explore", "--seed", "1001")
    assert np.abs(noisy[0] - greedy[0]).max() > 0.05 and np.abs(noisy[0]).max() <= 1
    np.testing.assert_array_equal(noisy[1], second)


def test_exploration_draws_other_numbers_than_the_environment():
    """Gymnasium draws initial states from `default_rng(seed)`."""
    states = []

    class Actor:
        def __init__(self, context):
            self._random = context.random

        def begin(self, index, timestep):
            states.append(self._random.bit_generator.state["state"])

        def select_actions(self, observations):
            return np.zeros((1, 1), np.float32)

        def observe(self, *_):
            pass

    policy = types.SimpleNamespace(
        agent=types.SimpleNamespace(make_actor=lambda _, adders, contexts: Actor(*contexts)),
        actor=None,
        weights=None,
        environment_steps=0,
        max_actions=3,
        make_environment=Task(TARGET).make,
    )
    assert len(list(recording.record(policy, 2, 1000, explore=True))) == 2
    gymnasium = [np.random.default_rng(seed).bit_generator.state["state"] for seed in (1000, 1001)]
    assert len({str(state) for state in [*states, *gymnasium]}) == 4


def test_a_failure_leaves_nothing(run_dir, tmp_path, monkeypatch):
    class BreaksError(Exception):
        pass

    make = agents.policies.policy.Policy.make_environment

    def breaks(self, seed):
        if seed == 1001:
            (partial,) = (tmp_path / "minari").iterdir()
            assert (partial / "data" / "metadata.json").exists()
            assert not minari.list_local_datasets()  # If the process is killed now.
            raise BreaksError
        return make(self, seed)

    monkeypatch.setattr(agents.policies.policy.Policy, "make_environment", breaks)
    with pytest.raises(BreaksError):
        policies.record([str(run_dir), "--dataset", "a-v0"])
    assert list((tmp_path / "minari").iterdir()) == []


def test_a_full_disk_leaves_nothing(tmp_path):
    def episodes():
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        yield

    with pytest.raises(DiskError, match="cannot write the dataset to .*No space left on device"):
        minari_files.write("fakes/b-v0", episodes(), None, {})
    assert not [*(tmp_path / "minari" / "fakes").iterdir()]


def test_bad_input(run_dir, tmp_path, capsys, monkeypatch):
    assert policies.record([str(run_dir), "--episodes", "1", "--dataset", "a-v0"]) == 0
    with pytest.raises(UsageError, match="expected a new dataset, got a-v0"):
        minari_files.write("a-v0", [], None, {})
    assert minari.load_dataset("a-v0").total_steps == 20
    for words, message in (
        ([str(tmp_path)], "expected the directory of a run"),
        ([str(run_dir), "--episodes", "0"], "--episodes: expected at least 1, got 0"),
        (
            [str(run_dir), "--seed", str(2**32 - 99)],
            "--seed: expected a number from 0 to 4294967196",
        ),
        ([str(run_dir), "--dataset", "a b"], "--dataset: expected an ID such as"),
        ([str(run_dir), "--dataset", "a-v0"], "--dataset: expected a new dataset, got a-v0"),
        ([str(run_dir), "--best"], "expected a checkpoint in .*best"),
    ):
        with pytest.raises((UsageError, SystemExit)) as error:
            policies.record(words)
        # Options that the parser refuses are told in its box.
        told = str(error.value) if error.type is UsageError else capsys.readouterr().err
        assert re.search(message, re.sub(r"[│\s]+", " ", told))
    (tmp_path / "file").touch()
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "file" / "minari"))
    with pytest.raises(UsageError, match="cannot write the dataset a-v0: .*Not a directory"):
        minari_files.check_new("a-v0")
