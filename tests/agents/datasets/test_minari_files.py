"""Datasets of other programs: their episodes, and one-line errors for unusable ones."""

import json
import sys

import gymnasium
import minari
import numpy as np
import pytest
from gymnasium import spaces
from minari.data_collector import EpisodeBuffer

from agents.datasets.minari_files import DISCOUNT, open_dataset, recorded_task
from agents.task import Task
from rl_replicator.errors import UsageError

RANGED = "tests.agents.policies.range_fake:make"
LOW, HIGH = np.array([[-3.0, 0.0]]), np.array([[5.0, 0.25]])


def make(
    changes,
    low=LOW,
    high=HIGH,
    observation=(5,),
    env=RANGED,
    wrap=(),
    repeats=1,
    form=None,
    has_identity=True,
    spec=None,
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
        identity = {"env": env, "wrap": [*wrap], "action_repeat": repeats, "environment": form}
        dataset.storage.update_metadata({"rl_replicator": {"config": {"identity": identity}}})


def test_episodes_are_those_of_an_agent():
    """Rewards may be beyond their bounds by what a run allows; others' discounts may be gamma."""
    discounts = {"infos": {"discount": np.full(3, 0.99)}}
    rewards = np.array([-0.00009, 1.00009])
    make({"rewards": rewards, **discounts}, has_identity=False)
    (episode,) = open_dataset("a-v0", Task(RANGED)).episodes()
    np.testing.assert_allclose(episode.actions, [[0.0, 1.0], [-1.0, 0.0]])
    np.testing.assert_array_equal(episode.observations, np.arange(15.0).reshape(3, 5))
    np.testing.assert_allclose(episode.rewards, rewards)
    assert episode.discounts.tolist() == [1.0, 0.0] and episode.is_terminated
    assert {episode.observations.dtype, episode.actions.dtype} == {np.dtype(np.float32)}


def test_observations_and_actions_may_be_scalars_and_an_episode_may_have_no_end():
    env = "tests.agents.policies.range_fake:scalar"
    arrays = {"observations": np.arange(3.0), "actions": np.array([1.0, -3.0])}
    arrays["terminations"] = np.array([False, False])
    make(arrays, low=np.array(-3.0), high=np.array(5.0), observation=(), env=env)
    (episode,) = open_dataset("a-v0", Task(env)).episodes()
    np.testing.assert_array_equal(episode.observations, [[0.0], [1.0], [2.0]])
    np.testing.assert_allclose(episode.actions, [[0.0], [-1.0]])
    assert episode.discounts.tolist() == [1.0, 1.0] and not episode.is_terminated


@pytest.mark.parametrize(
    ("changes", "specs", "message"),
    [
        (None, {}, "expected episodes in the dataset a-v0, got none"),
        ({"rewards": np.array([0.0, np.nan])}, {}, "expected finite float32 rewards in episode 0"),
        ({"observations": np.full((3, 5), 1e39)}, {}, "expected finite float32 observations in"),
        ({"actions": np.full((2, 1, 2), 6.0)}, {}, "expected actions within the dataset's action"),
        ({"rewards": np.zeros(3)}, {}, "got 2 actions, 3 rewards and 3 observations"),
        ({"truncations": np.array([True, False])}, {}, "an end at the last step only in episode 0"),
        (
            {"infos": {DISCOUNT: np.array([1.0, 2.0, 1.0])}},
            {},
            "expected a discount from 0 to 1 for each action in episode 0",
        ),
        ({}, {"observation": ()}, r"in a Box of 5 numbers .* got Box\(-inf, inf, \(\), float64\)"),
        (
            {},
            {"low": np.zeros(3), "high": np.ones(3)},
            "range of the environment, -3 to 5, 2 of them, got",
        ),
        ({}, {"high": 2 * HIGH}, "expected actions from -1 to 1 in the dataset a-v0, or the range"),
        ({}, {"wrap": ["a:b"]}, f"expected episodes of {RANGED} in .* those of {RANGED} in a:b"),
        ({}, {"env": "walker:walk"}, "got those of walker:walk, which has different rewards"),
        ({}, {"repeats": None}, "expected 'action_repeat' among the stored settings .* got none"),
        ({}, {"repeats": 2}, "^--action-repeat: expected 2, with which the dataset a-v0 .*, got 1"),
        (
            {},
            {"form": {"observations": [5], "action_limits": [[-3.0, 0.0], [5.0, 0.5]]}},
            r"\[5.0, 0.5\]\]}, in which the dataset a-v0 was recorded, got .* \[5.0, 0.25\]\]};",
        ),
    ],
)
def test_one_line(changes, specs, message):
    make(changes, **specs)
    with pytest.raises(UsageError, match=message) as error:
        open_dataset("a-v0", Task(RANGED)).check()
    assert "\n" not in str(error.value)


@pytest.fixture
def pendulum():
    """A dataset that names Gymnasium's Pendulum-v1 and has none of our metadata."""
    arrays = {"observations": np.zeros((3, 3)), "actions": np.array([[[2.0]], [[-2.0]]])}
    sizes = {"low": np.full(1, -2.0), "high": np.full(1, 2.0), "observation": (3,)}
    make(arrays, **sizes, has_identity=False, spec=gymnasium.spec("Pendulum-v1"))


@pytest.mark.parametrize(("has_identity", "expected"), [(True, 2), (False, 1)])
def test_without_an_environment_actions_are_repeated_as_in_the_recording(has_identity, expected):
    """By those who play the policy in an environment of theirs."""
    make(None, repeats=2, has_identity=has_identity)
    assert recorded_task("a-v0").action_repeat == expected


def test_combined_datasets_keep_the_discounts_that_were_recorded():
    """Minari drops the metadata of the datasets that it combines."""
    make({"infos": {DISCOUNT: np.array([1.0, 0.5, 0.0])}})
    minari.combine_datasets([minari.load_dataset("a-v0")] * 2, "b-v0")
    for episode in open_dataset("b-v0", Task(RANGED)).episodes():
        assert episode.discounts.tolist() == [0.5, 0.0]


@pytest.mark.parametrize(
    "env",
    [
        "gym:Pendulum-v1",
        'gym:gymnasium.envs.classic_control:Pendulum-v1{"g": 9.81}',
        "tests.agents.datasets.pendulums:make",
    ],
)
def test_other_peoples_episodes_of_the_same_environment(env, pendulum):
    assert len(list(open_dataset("a-v0", Task(env)).episodes())) == 1


def test_what_is_no_dataset_of_the_environment(pendulum, tmp_path, monkeypatch):
    with pytest.raises(UsageError, match="expected episodes of gym:Mountain.*those of gym:Pendul"):
        open_dataset("a-v0", Task("gym:MountainCarContinuous-v0"))
    path = tmp_path / "minari" / "a-v0" / "data" / "metadata.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"data_format": "arrow"}))
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(UsageError, match="expected a Minari dataset in a-v0, got .*pyarrow"):
        open_dataset("a-v0", Task(RANGED))
    (tmp_path / "metadata.json").write_text("{}")
    with pytest.raises(UsageError, match="expected a Minari dataset in"):
        open_dataset(str(tmp_path), Task(RANGED))
