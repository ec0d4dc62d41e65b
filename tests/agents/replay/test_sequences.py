"""Sequences in a real table: each window of known episodes equals one cut out of them by NumPy."""

import functools
import itertools

import dm_env
import numpy as np
import pytest
import reverb
import tensorflow as tf
import tree
from acme import specs

from agents.replay.adder import NStepTransitionAdder
from agents.replay.config import ReplayConfig, SequenceConfig
from agents.replay.local import LocalReplay
from agents.replay.sequences import FrameSequenceLayout, Sequence, SequenceLayout, n_step_return
from agents.replay.table import LearnerDemand, make_input_fn, make_table
from agents.replay.transitions import TABLE, transitions_per_item
from tests.agents.fixed_samples import make_spec
from tests.agents.replay import queue_table

GAMMA, STACK = 0.9, 3
LENGTHS = (1, 2, 3, 5, 9, 17, 4, 7)
EXTRAS = {"state": specs.Array((2, 2), np.float32), "value": specs.Array((), np.float32)}
VECTOR, FRAME = (3,), (4, 3, 2)
NUMBER = specs.BoundedArray((), np.int32, 0, 4)
WINDOWS = [
    SequenceConfig(length=6),
    SequenceConfig(length=5, period=3),
    SequenceConfig(length=8, period=4, prefix=3),
]


def own(observation):
    return observation


def make_layout(shape, sequences, is_discrete=False, see=own):
    observation = see(specs.Array(shape, np.float32 if shape == VECTOR else np.uint8))
    spec = make_spec(observation, NUMBER if is_discrete else 2)
    if shape == VECTOR:
        return SequenceLayout(spec, sequences, EXTRAS)
    return FrameSequenceLayout(spec, sequences, STACK, 4, EXTRAS)


def extras_of(t):
    return {"state": np.full((2, 2), t + 1, np.float32), "value": np.float32(-t)}


def make_episodes(shape, is_discrete=False):
    """[(observations [T + 1], actions [T], rewards [T], discounts [T], is_cut)]."""
    random, episodes = np.random.default_rng(0), []
    dtype = np.float32 if shape == VECTOR else np.uint8
    for number, length in enumerate(LENGTHS):
        discounts = random.choice([1.0, 0.5], length)
        discounts[-1] = number % 2  # It terminates or is truncated.
        actions = random.uniform(-1, 1, (length, 2)).astype(np.float32)
        if is_discrete:
            actions = random.integers(0, 5, length, dtype=np.int32)
        observations = random.integers(0, 256, (length + 1, *shape)).astype(dtype)
        rewards = random.normal(size=length)
        episodes.append((observations, actions, rewards, discounts, number in (2, 4)))
    return episodes


def play(adder, episodes, see=own):
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


def expected_windows(episodes, sequences):
    """The windows of all episodes, in order: from the definition, one step at a time."""
    windows = []
    for observations, actions, rewards, discounts, _ in episodes:
        for start in range(0, len(actions), sequences.period):
            first = start - sequences.prefix
            steps = [
                _step(observations, actions, rewards, discounts, first + i)
                for i in range(sequences.length)
            ]
            extras = tree.map_structure(lambda x, first=first: x * (first >= 0), extras_of(first))
            windows.append(Sequence(*map(np.stack, zip(*steps, strict=True)), extras))
    return windows


def _step(observations, actions, rewards, discounts, t):
    """The step t, or what fills a window before the episode and after it."""
    ages = range(STACK)[::-1] if observations.ndim > 2 else [0]
    stack = [observations[min(max(t - age, 0), len(actions))] for age in ages]
    observation = np.stack(stack) if observations.ndim > 2 else stack[0]
    if not 0 <= t < len(actions):
        return observation, np.zeros_like(actions[0]), 0.0, 0.0, 0.0
    return observation, actions[t], rewards[t], GAMMA * discounts[t], 1.0


def check_equal(got, want):
    compare = functools.partial(np.testing.assert_allclose, rtol=1e-6)
    tree.map_structure(compare, got, want)


@pytest.mark.parametrize("sequences", WINDOWS)
@pytest.mark.parametrize("is_discrete", [False, True])
@pytest.mark.parametrize(
    ("shape", "see"), [(VECTOR, own), (FRAME, own), (FRAME, queue_table.with_vector)]
)
def test_windows_are_those_of_their_episodes(shape, see, is_discrete, sequences):
    layout = make_layout(shape, sequences, is_discrete, see)
    episodes = make_episodes(shape, is_discrete)
    server = reverb.Server([queue_table.make_table(layout)])
    play(queue_table.make_adder(server, layout, max_in_flight=32), episodes, see)
    want = expected_windows(episodes, sequences)
    info = reverb.Client(f"localhost:{server.port}").server_info()[TABLE]
    assert info.current_size == len(want) and transitions_per_item(info.signature) == 1
    demand = LearnerDemand(1, 1, 1)
    dataset = make_input_fn([f"localhost:{server.port}"], layout, demand)(None)
    for expected, sample in zip(want, dataset, strict=False):
        sequence = tree.map_structure(lambda x: x[0].numpy(), sample.transition)
        assert sequence.action.dtype == expected.action.dtype
        if see is not own:
            vectors = [see(stack[-1])["vector"] for stack in expected.observation]
            observation = {"pixels": expected.observation, "vector": np.stack(vectors)}
            expected = expected._replace(observation=observation)
        check_equal(sequence, expected)
    server.stop()


def test_deterministic_runs_draw_the_same_windows():
    sequences, layout = WINDOWS[2], make_layout(VECTOR, WINDOWS[2])
    episodes, demand = make_episodes(VECTOR), LearnerDemand(16, 1, 1)
    config = ReplayConfig(min_size=2, samples_per_insert=1e6)
    replay = LocalReplay(make_table(config, demand, layout).info, seed=0)
    adder = NStepTransitionAdder(
        replay,
        layout,
        n_step=1,
        discount=GAMMA,
        initial_priority=1.0,
        max_in_flight=0,
        on_wait=lambda _: None,
    )
    play(adder, episodes)
    want = expected_windows(episodes, sequences)
    batches = iter(replay.make_input_fn(layout, demand)(None))
    seen = set()
    for _ in range(20):
        replay.feed()
        sample = next(batches)
        for i, key in enumerate(sample.keys.numpy().tolist()):
            check_equal(
                tree.map_structure(lambda x, i=i: x[i].numpy(), sample.transition), want[key]
            )
            seen.add(key)
    assert seen == set(range(len(want)))
    replay.close()


@pytest.mark.parametrize("n", [1, 2, 5])
def test_returns_inside_windows_are_those_of_the_episode(n):
    """R_n, d and o_(t+k) by loops over the episode, for each valid step that n steps follow."""
    episodes = make_episodes(VECTOR)
    for sequences in WINDOWS[::2]:
        count = 0
        windows = iter(expected_windows(episodes, sequences))
        for observations, actions, rewards, discounts, _ in episodes:
            for start in range(0, len(actions), sequences.period):
                window = next(windows)
                batch = tree.map_structure(lambda x: tf.constant(x[None], tf.float32), window[:5])
                got = n_step_return(Sequence(*batch, ()), min(n, sequences.length - 1))
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


def test_windows_of_which_steps_would_be_left_out_are_refused():
    for length, period, prefix in ((4, 4, 0), (4, 1, 3), (4, 0, 0), (4, 1, -1)):
        with pytest.raises(ValueError, match="expected length > prefix"):
            SequenceConfig(length, period, prefix)
