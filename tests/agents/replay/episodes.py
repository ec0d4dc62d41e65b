"""Random episodes for the replay, and what is to be read of them at each step."""

from typing import NamedTuple

import dm_env
import numpy as np
import tree
from acme import specs

GAMMA = 0.9
EXTRAS = {"value": specs.Array((), np.float32), "mean": specs.Array((2, 2), np.float32)}
VECTOR, FRAME = specs.Array((3,), np.float32), specs.Array((4, 3, 2), np.uint8)


class Episode(NamedTuple):
    """An episode of T steps; it ends in one of four ways.

    It terminates (discount 0), is truncated (discount 1), ends with a discount in between, or is
    cut off by its player and has no last step.
    """

    observations: np.ndarray  # [T + 1, ...]
    actions: np.ndarray  # [T, A] float32 or [T] int32
    rewards: np.ndarray
    discounts: np.ndarray
    is_cut: bool


def extras_of(t):
    """What an actor records with the action at step t."""
    return {"value": np.float32(-t), "mean": np.full((2, 2), t + 1, np.float32)}


def with_vector(frame):
    """An observation of a frame, or its spec, and a vector of three numbers that depend on it."""
    if isinstance(frame, specs.Array):
        return {"pixels": frame, "vector": specs.Array((3,), np.float32)}
    return {"pixels": frame, "vector": np.ravel(frame)[:3].astype(np.float32) / 7}


def alone(observation):
    """An observation, or its spec, without such a vector."""
    return observation


def make_episodes(spec, lengths, num_actions=None, seed=0):
    """Makes episodes of these lengths with two actions, or one of several numbered ones."""
    random, episodes = np.random.default_rng(seed), []
    for length in lengths:
        actions = random.uniform(-1, 1, (length, 2)).astype(np.float32)
        if num_actions:
            actions = random.integers(num_actions, size=length, dtype=np.int32)
        end = len(episodes) % 4
        discounts = random.choice([1.0, 0.9, 0.5], length)
        discounts[-1] = (0.0, 1.0, 0.7, 1.0)[end]
        observations = random.integers(0, 256, (length + 1, *spec.shape)).astype(spec.dtype)
        rewards = random.normal(size=length)
        episodes.append(Episode(observations, actions, rewards, discounts, is_cut=end == 3))
    return episodes


def play(adder, episodes, see=alone):
    """Adds all episodes, as an actor does; `see` makes the observations."""
    for observations, actions, rewards, discounts, is_cut in episodes:
        adder.add_first(dm_env.restart(see(observations[0])))
        for t, action in enumerate(actions):
            is_last = t == len(actions) - 1 and not is_cut
            kind = dm_env.StepType.LAST if is_last else dm_env.StepType.MID
            step = dm_env.TimeStep(kind, rewards[t], discounts[t], see(observations[t + 1]))
            adder.add(action, step, extras_of(t))
        if is_cut:
            adder.reset()
    assert adder.finish(60.0)


def observed(observations, t, stack=None, see=alone):
    """What an agent observes at step t, or nearest to it: a vector, or a stack of frames.

    The oldest frame is the first; the first frame of the episode replaces earlier ones.
    """
    last = len(observations) - 1
    newest = see(observations[np.clip(t, 0, last)])
    if stack is None:
        return newest
    frames = np.stack([observations[np.clip(t - age, 0, last)] for age in range(stack)[::-1]])
    return {**newest, "pixels": frames} if see is with_vector else frames


def check_equal(got, expected):
    """Compares nests of arrays."""
    tree.map_structure(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), got, expected
    )
