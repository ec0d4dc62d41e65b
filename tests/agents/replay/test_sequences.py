"""Sequences in a real table: each window of known episodes equals one cut out of them by NumPy."""

import itertools

import numpy as np
import pytest
import reverb
import tensorflow as tf
import tree
from acme import specs

from agents.replay.config import ReplayConfig, SequenceConfig
from agents.replay.local import LocalReplay
from agents.replay.sequences import FrameSequenceLayout, Sequence, SequenceLayout, n_step_return
from agents.replay.table import LearnerDemand, make_input_fn, make_table
from agents.replay.transitions import TABLE, transitions_per_item
from tests.agents.fixed_samples import make_spec
from tests.agents.replay import queue_table
from tests.agents.replay.episodes import (
    EXTRAS,
    FRAME,
    GAMMA,
    VECTOR,
    alone,
    check_equal,
    extras_of,
    make_episodes,
    observed,
    play,
    with_vector,
)

STACK = 3
LENGTHS = (1, 2, 3, 5, 9, 17, 4, 7)
WINDOWS = [
    SequenceConfig(length=6),
    SequenceConfig(length=5, period=3),
    SequenceConfig(length=8, period=4, prefix=3),
]


def make_layout(spec, sequences, num_actions=None, see=alone):
    actions = specs.DiscreteArray(num_actions, np.int32) if num_actions else 2
    environment_spec = make_spec(see(spec), actions)
    if spec is VECTOR:
        return SequenceLayout(environment_spec, sequences, EXTRAS)
    return FrameSequenceLayout(environment_spec, sequences, STACK, 4, EXTRAS)


def expected_windows(episodes, sequences, stack=None, see=alone):
    """The windows of all episodes, in order: from the definition, one step at a time."""
    windows = []
    for observations, actions, rewards, discounts, _ in episodes:
        for start in range(0, len(actions), sequences.period):
            steps = []
            for t in range(start - sequences.prefix, start - sequences.prefix + sequences.length):
                if 0 <= t < len(actions):
                    numbers = actions[t], rewards[t], GAMMA * discounts[t], 1.0
                else:  # What fills a window before the episode and after it.
                    numbers = np.zeros_like(actions[0]), 0.0, 0.0, 0.0
                steps.append((observed(observations, t, stack, see), *numbers))
            first = start - sequences.prefix
            extras = tree.map_structure(lambda x, first=first: x * (first >= 0), extras_of(first))
            columns = tree.map_structure(lambda *each: np.stack(each), *steps)
            windows.append(Sequence(*columns, extras))
    return windows


@pytest.mark.parametrize(
    ("spec", "see", "num_actions", "sequences"),
    [
        (VECTOR, alone, None, WINDOWS[0]),
        (VECTOR, alone, 5, WINDOWS[1]),
        (VECTOR, alone, None, WINDOWS[2]),
        (FRAME, alone, 5, WINDOWS[0]),
        (FRAME, alone, None, WINDOWS[2]),
        (FRAME, with_vector, None, WINDOWS[1]),
        (FRAME, with_vector, 5, WINDOWS[2]),
    ],
)
def test_windows_are_those_of_their_episodes(spec, see, num_actions, sequences):
    layout = make_layout(spec, sequences, num_actions, see)
    episodes = make_episodes(spec, LENGTHS, num_actions)
    server = reverb.Server([queue_table.make_table(layout)])
    play(queue_table.make_adder(server, layout, max_in_flight=32), episodes, see)
    want = expected_windows(episodes, sequences, None if spec is VECTOR else STACK, see)
    info = server.localhost_client().server_info()[TABLE]
    assert info.current_size == len(want) and transitions_per_item(info.signature) == 1
    demand = LearnerDemand(1, 1, 1)
    dataset = make_input_fn([f"localhost:{server.port}"], layout, demand)(None)
    for expected, sample in zip(want, dataset, strict=False):
        sequence = tree.map_structure(lambda x: x[0].numpy(), sample.transition)
        assert sequence.action.dtype == expected.action.dtype
        check_equal(sequence, expected)
    server.stop()


def test_deterministic_runs_draw_the_same_windows():
    sequences, layout = WINDOWS[2], make_layout(VECTOR, WINDOWS[2])
    episodes, demand = make_episodes(VECTOR, LENGTHS), LearnerDemand(16, 1, 1)
    config = ReplayConfig(min_size=2, samples_per_insert=1e6)
    replay = LocalReplay(make_table(config, demand, layout).info, seed=0)
    play(queue_table.make_adder(replay, layout), episodes)
    want = expected_windows(episodes, sequences)
    batches = iter(replay.make_input_fn(layout, demand)(None))
    seen = set()
    for _ in range(20):
        replay.feed()
        sample = tree.map_structure(lambda x: x.numpy(), next(batches))
        for i, key in enumerate(sample.keys.tolist()):
            check_equal(tree.map_structure(lambda x, i=i: x[i], sample.transition), want[key])
            seen.add(key)
    assert seen == set(range(len(want)))
    replay.close()


@pytest.mark.parametrize("n", [1, 2, 5])
def test_returns_inside_windows_are_those_of_the_episode(n):
    """R_n, d and o_(t+k) by loops over the episode, for each valid step that n steps follow."""
    episodes = make_episodes(VECTOR, LENGTHS)
    for sequences in WINDOWS[::2]:
        count = 0
        windows = iter(expected_windows(episodes, sequences))
        for observations, actions, rewards, discounts, _ in episodes:
            for start in range(0, len(actions), sequences.period):
                window = next(windows)
                batch = tree.map_structure(lambda x: tf.constant(x[None], tf.float32), window[:5])
                got = n_step_return(Sequence(*batch, ()), min(n, sequences.length - 1))
                got = tree.map_structure(lambda x: x.numpy(), got)
                for i, t in enumerate(itertools.count(start - sequences.prefix)):
                    if i == got.reward.shape[1]:
                        break
                    if not 0 <= t < len(actions):
                        assert (got.reward[0, i], got.place[0, i]) == (0, i)
                        continue
                    count += 1
                    end = min(t + n, len(actions))
                    total, factor = 0.0, 1.0
                    for k in range(t, end):
                        total += factor * rewards[k]
                        factor *= GAMMA * discounts[k]
                    np.testing.assert_allclose(got.reward[0, i], total, rtol=1e-4, atol=1e-6)
                    np.testing.assert_allclose(got.discount[0, i], factor, rtol=1e-5)
                    bootstrap = window.observation[got.place[0, i]]
                    np.testing.assert_array_equal(bootstrap, observations[end])
        assert count > 20
