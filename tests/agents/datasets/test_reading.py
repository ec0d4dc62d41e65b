"""Datasets of other programs: their action ranges, and one-line errors for unusable ones."""

import contextlib
import dataclasses
import json
import sys

import gymnasium
import minari
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.envs.registration import WrapperSpec
from minari.data_collector import EpisodeBuffer

from agents.datasets import reading
from agents.datasets.minari_library import DISCOUNT
from agents.task import Task
from rl_replicator.errors import UsageError

RANGED = "tests.agents.policies.range_fake:make"
LOW, HIGH = np.array([[-3.0, 0.0]]), np.array([[5.0, 0.25]])


@pytest.fixture(autouse=True)
def minari_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))


def make(
    changes, low=LOW, high=HIGH, observation=(5,), env=RANGED, wrap=(), has_identity=True, spec=None
):
    """Makes a dataset of two actions as other programs do; `changes` replaces its arrays."""
    arrays = {
        "observations": np.arange(15.0).reshape(3, 5),
        "actions": np.array([[[1.0, 0.25]], [[-3.0, 0.125]]]),
        "rewards": np.array([0.25, 0.5]),
        "terminations": np.array([False, True]),
        "truncations": np.array([False, False]),
    }
    episodes = [] if changes is None else [EpisodeBuffer(**(arrays | changes))]
    dataset = minari.create_dataset_from_buffers(
        "a-v0",
        episodes,
        observation_space=spaces.Box(-np.inf, np.inf, observation, np.float64),
        action_space=spaces.Box(low, high, dtype=np.float64),
        env=spec,
    )
    if has_identity:
        identity = {"env": env, "wrap": [*wrap]}
        dataset.storage.update_metadata({"rl_replicator": {"config": {"identity": identity}}})


def test_actions_are_mapped_from_the_range_of_the_environment():
    make({})
    (episode,) = reading.open_dataset("a-v0", Task(RANGED)).episodes([0])
    np.testing.assert_allclose(episode.actions, [[0.0, 1.0], [-1.0, 0.0]])
    np.testing.assert_array_equal(episode.observations, np.arange(15.0).reshape(3, 5))
    assert episode.rewards.tolist() == [0.25, 0.5] and episode.discounts.tolist() == [1.0, 0.0]
    assert {episode.observations.dtype, episode.actions.dtype} == {np.dtype(np.float32)}


def test_observations_and_actions_may_be_scalars():
    env = "tests.agents.policies.range_fake:scalar"
    arrays = {"observations": np.arange(3.0), "actions": np.array([1.0, -3.0])}
    make(arrays, low=np.array(-3.0), high=np.array(5.0), observation=(), env=env)
    (episode,) = reading.open_dataset("a-v0", Task(env)).episodes([0])
    np.testing.assert_array_equal(episode.observations, [[0.0], [1.0], [2.0]])
    np.testing.assert_allclose(episode.actions, [[0.0], [-1.0]])


def test_an_episode_without_an_end_was_cut_off():
    make({"terminations": np.array([False, False])})
    (episode,) = reading.open_dataset("a-v0", Task(RANGED)).episodes([0])
    assert episode.discounts.tolist() == [1.0, 1.0] and not episode.is_terminated


def test_rewards_may_be_beyond_their_bounds_by_what_a_run_allows():
    """Otherwise, `train --prefill` refuses what `record` wrote."""
    rewards = [-0.00009, 1.00009]
    make({"rewards": np.array(rewards)})
    (episode,) = reading.open_dataset("a-v0", Task(RANGED)).episodes([0])
    np.testing.assert_allclose(episode.rewards, rewards)


@pytest.mark.parametrize(
    ("changes", "specs", "message"),
    [
        (None, {}, "expected episodes in the dataset a-v0, got none"),
        ({"rewards": np.array([0.0, np.nan])}, {}, "expected finite float32 rewards in episode 0"),
        ({"observations": np.full((3, 5), np.inf)}, {}, "expected finite float32 observations in"),
        ({"observations": np.full((3, 5), 1e39)}, {}, "expected finite float32 observations in"),
        ({"actions": np.full((2, 1, 2), 6.0)}, {}, "expected actions within the dataset's action"),
        ({"rewards": np.zeros(3)}, {}, "got 2 actions, 3 rewards and 3 observations"),
        ({"truncations": np.array([True, False])}, {}, "an end at the last step only in episode 0"),
        (
            {"infos": {DISCOUNT: np.array([1.0, 2.0, 1.0])}},
            {},
            "expected a discount from 0 to 1 for each action in episode 0",
        ),
        ({}, {"observation": (4,)}, "expected observations in a Box of 5 numbers"),
        ({}, {"observation": ()}, r"in a Box of 5 numbers .* got Box\(-inf, inf, \(\), float64\)"),
        ({}, {"low": np.zeros(3), "high": np.ones(3)}, "expected actions in a Box of 2 numbers"),
        ({}, {"high": 2 * HIGH}, "expected actions from -1 to 1 in the dataset a-v0, or the range"),
        (
            {"rewards": np.array([0.5, 50.0])},
            {},
            "expected rewards from 0 to 1, as the environment gives them in episode 0 of the "
            "dataset a-v0, got 0.5 to 50",
        ),
        ({"rewards": np.array([-0.0002, 0.5])}, {}, "expected rewards from 0 to 1, .* got -0.0002"),
        ({}, {"wrap": ["a:b"]}, f"expected episodes of {RANGED} in .* those of {RANGED} in a:b"),
        ({}, {"env": "walker:walk"}, "got those of walker:walk, which has different rewards"),
    ],
)
def test_one_line(changes, specs, message):
    make(changes, **specs)
    with pytest.raises(UsageError, match=message) as error:
        reading.open_dataset("a-v0", Task(RANGED)).check()
    assert "\n" not in str(error.value)


@pytest.fixture
def pendulum():
    """A dataset that names Gymnasium's Pendulum-v1 and has none of our metadata."""
    arrays = {"observations": np.zeros((3, 3)), "actions": np.array([[[2.0]], [[-2.0]]])}
    sizes = {"low": np.full(1, -2.0), "high": np.full(1, 2.0), "observation": (3,)}
    make(arrays, **sizes, has_identity=False, spec=gymnasium.spec("Pendulum-v1"))


@pytest.mark.parametrize(
    ("env", "wrap"),
    [
        ("gym:Pendulum-v1", ()),
        ("gym:gymnasium.envs.classic_control:Pendulum-v1", ()),
        ("tests.agents.datasets.pendulums:make", ()),
        ("tests.agents.datasets.pendulums:make", ("tests.agents.datasets.pendulums:same",)),
    ],
)
def test_other_peoples_episodes_of_the_same_environment(env, wrap, pendulum):
    assert reading.open_dataset("a-v0", Task(env, wrap=wrap)).num_episodes == 1


@pytest.mark.parametrize(
    ("env", "wrap", "message"),
    [
        (
            "gym:MountainCarContinuous-v0",
            (),
            "expected episodes of gym:MountainCarContinuous-v0 in the dataset a-v0, got those of "
            "gym:Pendulum-v1, which has different rewards",
        ),
        (
            "gym:Pendulum-v1",
            ("a:b",),
            "expected episodes of gym:Pendulum-v1 in a:b in the dataset a-v0, got those of "
            "gym:Pendulum-v1, which has different rewards",
        ),
    ],
)
def test_other_peoples_episodes_of_another_environment(env, wrap, message, pendulum):
    with pytest.raises(UsageError, match=message):
        reading.open_dataset("a-v0", Task(env, wrap=wrap))


@pytest.mark.parametrize(
    ("change", "got"),
    [
        ({"kwargs": {"g": 1.0}}, "those of gym:Pendulum-v1 with g=1.0, another environment"),
        (
            {
                "additional_wrappers": (
                    WrapperSpec("ClipReward", "gymnasium.wrappers:ClipReward", {}),
                )
            },
            "those of gym:Pendulum-v1 in ClipReward, which has different rewards",
        ),
        ({"kwargs": {"render_mode": "rgb_array"}}, None),
        ({"kwargs": {"g": 10.0}}, None),  # The default.
    ],
)
def test_other_peoples_episodes_of_a_changed_environment(change, got, pendulum, monkeypatch):
    """Minari stores the arguments and wrappers with which the environment was made."""
    spec = dataclasses.replace(gymnasium.spec("Pendulum-v1"), **change)
    monkeypatch.setattr(minari.MinariDataset, "env_spec", spec)
    task = Task("gym:Pendulum-v1")
    with pytest.raises(UsageError, match=f"got {got}") if got else contextlib.nullcontext():
        reading.open_dataset("a-v0", task)


def test_the_discounts_of_others_may_be_anything():
    """Such as gamma in each step."""
    make({"infos": {"discount": np.full(3, 0.99)}}, has_identity=False)
    (episode,) = reading.open_dataset("a-v0", Task(RANGED)).episodes([0])
    assert episode.discounts.tolist() == [1.0, 0.0]


def test_combined_datasets_keep_the_discounts_that_were_recorded():
    """Minari drops the metadata of the datasets that it combines."""
    make({"infos": {DISCOUNT: np.array([1.0, 0.5, 0.0])}})
    minari.combine_datasets([minari.load_dataset("a-v0")] * 2, "b-v0")
    for episode in reading.open_dataset("b-v0", Task(RANGED)).episodes([0, 1]):
        assert episode.discounts.tolist() == [0.5, 0.0]


def test_what_is_no_dataset(tmp_path):
    (tmp_path / "metadata.json").write_text("{}")
    with pytest.raises(UsageError, match="expected a Minari dataset in"):
        reading.open_dataset(str(tmp_path), Task(RANGED))


def test_a_format_for_which_a_package_is_missing(tmp_path, monkeypatch):
    make({})
    path = tmp_path / "a-v0" / "data" / "metadata.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"data_format": "arrow"}))
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(UsageError, match="expected a Minari dataset in a-v0, got .*pyarrow"):
        reading.open_dataset("a-v0", Task(RANGED))


def test_a_number_of_the_action_that_is_always_the_same():
    make({"actions": np.array([[[1.0, 0.25]], [[-3.0, 0.25]]])})
    data = reading.open_dataset("a-v0", Task(RANGED))._data
    low, high = np.array([-3.0, 0.25]), np.array([5.0, 0.25])
    rewards = Task(RANGED).spec().rewards
    (episode,) = reading.EpisodeDataset("a-v0", data, low, high, rewards).episodes([0])
    np.testing.assert_allclose(episode.actions, [[0.0, 0.0], [-1.0, 0.0]])
