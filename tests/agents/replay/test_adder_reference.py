"""Random episodes through a real table: each item equals the result of loops over the episode."""

import itertools

import dm_env
import numpy as np
import pytest
import reverb
import tree
from acme import specs

from agents.replay.adder import NStepTransitionAdder
from agents.replay.frames import FrameLayout
from agents.replay.transitions import TABLE, TransitionLayout
from tests.agents.fixed_samples import make_spec
from tests.agents.replay.queue_table import with_vector

GAMMA, PRIORITY = 0.9, 1.75
LENGTHS = (1, 2, 3, 5, 9, 17)
VECTOR, FRAME = (3,), (4, 3, 2)
EXTRAS = {"log_prob": specs.Array((), np.float32), "mean": specs.Array((2, 2), np.float32)}


def extras_of(action):
    """What an actor records with an action: a function of that action."""
    return {"log_prob": np.float32(2) * action[0], "mean": np.outer(action, action)}


def make_episodes(random, shape):
    """[(observations [T + 1], actions [T], rewards [T], discounts [T], cut)]: all kinds of ends.

    An episode terminates (discount 0), is truncated (discount 1), ends with a discount in between,
    or is cut off by its player (`cut`) and has no last step.
    """
    episodes = []
    for length in random.permutation(LENGTHS * 4):
        observations = random.integers(0, 256, (length + 1, *shape))
        discounts = random.choice([1.0, 0.9, 0.5], length)
        end = len(episodes) % 4
        discounts[-1] = (0.0, 1.0, 0.7, 1.0)[end]
        actions = random.uniform(-1, 1, (length, 2)).astype(np.float32)
        episodes.append((observations, actions, random.normal(size=length), discounts, end == 3))
    return episodes


def play(adder, episodes, see):
    """Adds all episodes, as an actor does; `see` makes the observations."""
    for observations, actions, rewards, discounts, cut in episodes:
        adder.add_first(dm_env.restart(see(observations[0])))
        for t, action in enumerate(actions):
            is_last = t == len(actions) - 1 and not cut
            adder.add(
                action,
                dm_env.TimeStep(
                    dm_env.StepType.LAST if is_last else dm_env.StepType.MID,
                    rewards[t],
                    discounts[t],
                    see(observations[t + 1]),
                ),
                extras_of(action),
            )
        if cut:
            adder.reset()
    assert adder.finish(60.0)


def expected_items(episodes, n_step):
    """[(episode, t, end, R, d)]: by the definition of an n-step return, for every step.

    R = sum_{i<k} gamma^i (prod_{j<i} d_j) r_i and d = gamma^k prod_{j<k} d_j, with k = n or, if
    smaller, the number of steps left. Episodes that were cut off have full windows only.
    """
    items = []
    for number, (_, actions, rewards, discounts, cut) in enumerate(episodes):
        length = len(actions)
        for t in range(length):
            k = min(n_step, length - t)
            if cut and k < n_step:
                continue
            total = sum(GAMMA**i * np.prod(discounts[t : t + i]) * rewards[t + i] for i in range(k))
            items.append((number, t, t + k, total, GAMMA**k * np.prod(discounts[t : t + k])))
    return items


def items_of(layout, see, n_step, episodes):
    """The contents of a table after the episodes: its items' priorities, and all transitions."""
    table = reverb.Table(
        TABLE,
        sampler=reverb.selectors.Fifo(),
        remover=reverb.selectors.Fifo(),
        max_size=10_000,
        max_times_sampled=1,
        rate_limiter=reverb.rate_limiters.MinSize(1),
        signature=layout.signature,
    )
    server = reverb.Server([table])
    client = reverb.Client(f"localhost:{server.port}")
    adder = NStepTransitionAdder(
        client,
        layout,
        n_step=n_step,
        discount=GAMMA,
        initial_priority=PRIORITY,
        max_in_flight=32,
        on_wait=lambda _: None,
    )
    play(adder, episodes, see)
    count = client.server_info()[TABLE].current_size
    samples = list(client.sample(TABLE, num_samples=count, emit_timesteps=False))
    adder.close()
    server.stop()
    rows = [tree.unflatten_as(layout.signature, sample.data) for sample in samples]
    data = tree.map_structure(
        lambda spec, *arrays: np.stack(arrays).reshape(-1, *spec.shape), layout.signature, *rows
    )
    length = layout.transitions_per_item
    places = [np.full(count, place) for place in range(length)] if length > 1 else [None]
    transitions = [layout.unpack(data, place) for place in places]
    got = tree.map_structure(
        lambda *each: np.stack(each, axis=1).reshape(-1, *each[0].shape[1:]), *transitions
    )
    return [np.ravel(sample.info.priority)[0] for sample in samples], got


@pytest.mark.parametrize(
    ("n_step", "length"), [(1, 1), (2, 1), (3, 1), (4, 1), (5, 1), (1, 8), (3, 2), (5, 7)]
)
def test_rows_are_the_n_step_transitions_of_their_episodes(n_step, length):
    episodes = make_episodes(np.random.default_rng(n_step), VECTOR)
    layout = TransitionLayout(make_spec(3, 2), EXTRAS, length)
    priorities, got = items_of(layout, np.float32, n_step, episodes)
    expected = expected_items(episodes, n_step)
    count = -(-len(expected) // length)
    assert priorities == [PRIORITY] * count
    assert len(got.reward) == length * count  # The last item repeats some.
    for i, (number, t, end, total, discount) in enumerate(expected):
        observations, actions = episodes[number][:2]
        np.testing.assert_array_equal(got.observation[i], observations[t])
        np.testing.assert_array_equal(got.action[i], actions[t])
        for name, value in extras_of(actions[t]).items():
            np.testing.assert_array_equal(got.extras[name][i], value)
        np.testing.assert_allclose(got.reward[i], total, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(got.discount[i], discount, rtol=1e-6)
        np.testing.assert_array_equal(got.next_observation[i], observations[end])


def in_items(transitions, length):
    """The transitions of each item of frames, in order; an item holds those of one episode.

    The last item of an episode is filled up with the transitions before it; an episode that is too
    short for an item repeats its own.
    """
    found = []
    for _, group in itertools.groupby(transitions, key=lambda transition: transition[0]):
        episode = list(group)
        full = len(episode) // length * length
        found += episode[:full]
        if len(episode) < length:
            found += [episode[i % len(episode)] for i in range(length)]
        elif full < len(episode):
            found += episode[-length:]
    return found


@pytest.mark.parametrize("has_vector", [False, True])
@pytest.mark.parametrize(
    ("n_step", "stack", "chunk_length", "length"),
    [(1, 3, 2, 1), (3, 2, 5, 1), (5, 1, 1, 1), (1, 1, 1, 2), (3, 3, 4, 8), (2, 4, 3, 5)],
)
def test_frames_are_the_stacks_of_their_episodes(n_step, stack, chunk_length, length, has_vector):
    episodes = make_episodes(np.random.default_rng(n_step), FRAME)
    see = with_vector if has_vector else lambda frame: frame
    spec = make_spec(3, 2)._replace(observations=see(specs.Array(FRAME, np.uint8)))
    layout = FrameLayout(spec, stack, n_step, chunk_length, EXTRAS, length)
    priorities, got = items_of(layout, lambda frame: see(frame.astype(np.uint8)), n_step, episodes)
    expected = in_items(expected_items(episodes, n_step), length)
    assert priorities == [PRIORITY] * (len(expected) // length)
    assert len(got.reward) == len(expected)

    def check(got, i, frames, t):
        """Frames t - S + 1 .. t, the oldest first; the first frame replaces earlier ones."""
        stacked = np.stack([frames[max(t - age, 0)] for age in reversed(range(stack))])
        np.testing.assert_array_equal(got["pixels"][i] if has_vector else got[i], stacked)
        if has_vector:
            np.testing.assert_array_equal(got["vector"][i], with_vector(frames[t])["vector"])

    for i, (number, t, end, total, discount) in enumerate(expected):
        frames, actions = episodes[number][:2]
        check(got.observation, i, frames, t)
        np.testing.assert_array_equal(got.action[i], actions[t])
        for name, value in extras_of(actions[t]).items():
            np.testing.assert_array_equal(got.extras[name][i], value)
        np.testing.assert_allclose(got.reward[i], total, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(got.discount[i], discount, rtol=1e-6)
        check(got.next_observation, i, frames, end)
