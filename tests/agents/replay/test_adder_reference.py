"""Random episodes through a real table: each item equals the result of loops over the episode."""

import itertools

import numpy as np
import pytest
import reverb
import tree
from acme import types

from agents.replay.frames import FrameLayout
from agents.replay.transitions import TABLE, TransitionLayout
from tests.agents.fixed_samples import make_spec
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
from tests.agents.replay.queue_table import make_adder, make_table

PRIORITY = 1.75
LENGTHS = np.random.default_rng(0).permutation((1, 2, 3, 5, 9, 17) * 4)


def expected_transitions(episodes, n_step, stack, see):
    """[[transition]] of each episode: by the definition of an n-step return, for every step.

    R = sum_{i<k} gamma^i (prod_{j<i} d_j) r_i and d = gamma^k prod_{j<k} d_j, with k = n or, if
    smaller, the number of steps left. Episodes that were cut off have full windows only.
    """
    found = []
    for observations, actions, rewards, discounts, is_cut in episodes:
        length, transitions = len(actions), []
        for t in range(length - n_step + 1 if is_cut else length):
            k = min(n_step, length - t)
            transitions.append(
                types.Transition(
                    observed(observations, t, stack, see),
                    actions[t],
                    sum(
                        GAMMA**i * np.prod(discounts[t : t + i]) * rewards[t + i] for i in range(k)
                    ),
                    GAMMA**k * np.prod(discounts[t : t + k]),
                    observed(observations, t + k, stack, see),
                    extras_of(t),
                )
            )
        found.append(transitions)
    return found


def check(layout, n_step, episodes, see, expected):
    """Compares the contents of a table after the episodes with transitions."""
    server = reverb.Server([make_table(layout)])
    client = server.localhost_client()
    adder = make_adder(
        server, layout, n_step, discount=GAMMA, initial_priority=PRIORITY, max_in_flight=32
    )
    play(adder, episodes, see)
    count, length = client.server_info()[TABLE].current_size, layout.transitions_per_item
    assert count * length == len(expected)
    samples = list(client.sample(TABLE, num_samples=count, emit_timesteps=False))
    adder.close()
    server.stop()
    assert [np.ravel(sample.info.priority)[0] for sample in samples] == [PRIORITY] * count
    rows = [tree.unflatten_as(layout.signature, sample.data) for sample in samples]
    data = tree.map_structure(
        lambda spec, *arrays: np.stack(arrays).reshape(-1, *spec.shape), layout.signature, *rows
    )
    items = np.arange(count)
    for first in range(length):
        places = (items + first) % length  # A batch has another place of each item.
        got = layout.unpack(data, places if length > 1 else None)
        wanted = [expected[length * item + places[item]] for item in items]
        check_equal(got, tree.map_structure(lambda *each: np.stack(each), *wanted))


@pytest.mark.parametrize(("n_step", "length"), [(1, 1), (2, 1), (5, 1), (1, 8), (3, 2), (5, 7)])
def test_rows_are_the_n_step_transitions_of_their_episodes(n_step, length):
    episodes = make_episodes(VECTOR, LENGTHS, seed=n_step)
    expected = list(itertools.chain(*expected_transitions(episodes, n_step, None, alone)))
    if rest := len(expected) % length:  # The last item repeats its own.
        expected += [expected[i % rest - rest] for i in range(length - rest)]
    check(TransitionLayout(make_spec(3, 2), EXTRAS, length), n_step, episodes, alone, expected)


@pytest.mark.parametrize(
    ("n_step", "stack", "chunk_length", "length", "see"),
    [
        *[(1, 3, 2, 1, alone), (3, 2, 5, 1, with_vector), (5, 1, 1, 1, alone)],
        *[(1, 1, 1, 2, with_vector), (3, 3, 4, 8, alone), (3, 3, 4, 8, with_vector)],
        (2, 4, 3, 5, with_vector),
    ],
)
def test_frames_are_the_stacks_of_their_episodes(n_step, stack, chunk_length, length, see):
    """An item holds transitions of one episode.

    The last item of an episode is filled up with the transitions before it; an episode that is too
    short for an item repeats its own.
    """
    episodes, expected = make_episodes(FRAME, LENGTHS, seed=n_step), []
    for transitions in expected_transitions(episodes, n_step, stack, see):
        full = len(transitions) // length * length
        expected += transitions[:full]
        if 0 < len(transitions) < length:
            expected += [transitions[i % len(transitions)] for i in range(length)]
        elif full < len(transitions):
            expected += transitions[-length:]
    layout = FrameLayout(make_spec(see(FRAME), 2), stack, n_step, chunk_length, EXTRAS, length)
    check(layout, n_step, episodes, see, expected)
