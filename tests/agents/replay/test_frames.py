"""Frames through the replay and back: equal to a naive reference, transition by transition."""

import dm_env
import numpy as np
import pytest
import reverb
from acme import specs, types

from agents.acting.acting_policy import FrameStack
from agents.networks.encoders import stacked
from agents.replay.adder import NStepTransitionAdder
from agents.replay.frames import FrameLayout
from agents.replay.table import LearnerDemand, make_input_fn
from tests.agents.replay.queue_table import make_table

SHAPE = (6, 5, 3)
GAMMA = 0.9
SPEC = specs.EnvironmentSpec(
    observations=specs.BoundedArray(SHAPE, np.uint8, 0, 255),
    actions=specs.BoundedArray((2,), np.float32, -1.0, 1.0),
    rewards=specs.Array((), np.float32),
    discounts=specs.BoundedArray((), np.float32, 0.0, 1.0),
)


def make_episodes(lengths, random):
    """Episodes of noise as [(first, [(action, timestep), ...])]; every second one terminates."""
    episodes = []
    for number, length in enumerate(lengths):
        frames = random.integers(0, 256, (length + 1, *SHAPE), dtype=np.uint8)
        steps = []
        for t in range(1, length + 1):
            last = t == length
            step_type = dm_env.StepType.LAST if last else dm_env.StepType.MID
            discount = np.float32(0.0 if last and number % 2 else random.choice([1.0, 0.95]))
            timestep = dm_env.TimeStep(step_type, np.float32(random.normal()), discount, frames[t])
            steps.append((random.uniform(-1, 1, 2).astype(np.float32), timestep))
        episodes.append((dm_env.restart(frames[0]), steps))
    return episodes


def reference(episodes, stack, n_step):
    """All transitions, computed from whole episodes: what the replay must return."""
    transitions = []
    for first, steps in episodes:
        frames = [first.observation, *(timestep.observation for _, timestep in steps)]

        def stacked(t, frames=frames):
            return np.concatenate([frames[max(i, 0)] for i in range(t - stack + 1, t + 1)], -1)

        for t in range(len(steps)):
            end = min(t + n_step, len(steps))
            total, discount = 0.0, 1.0
            for _, timestep in steps[t:end]:
                total += discount * timestep.reward
                discount *= GAMMA * timestep.discount
            transitions.append((stacked(t), steps[t][0], total, discount, stacked(end)))
    return transitions


@pytest.mark.parametrize(
    ("stack", "n_step", "chunk_length"), [(3, 3, 4), (1, 1, 1), (4, 2, 3), (2, 5, 16), (3, 1, 2)]
)
def test_replay_gives_back_what_a_naive_reference_holds(stack, n_step, chunk_length):
    episodes = make_episodes((7, 1, 2, 12, 3, 4, 40), np.random.default_rng(n_step))
    layout = FrameLayout(SPEC, stack, n_step, chunk_length)
    server = reverb.Server([make_table(layout)])
    adder = make_adder(server, layout, max_in_flight=4)
    history = FrameStack(stack)
    seen = []
    for first, steps in episodes:
        adder.add_first(first)
        history.reset()
        seen.append(history.observe(first.observation))
        for action, timestep in steps:
            adder.add(action, timestep)
            if not timestep.last():
                seen.append(history.observe(timestep.observation))

    # The last episode pushes those before it out of the writer, but may itself still be in it.
    expected = reference(episodes[:-1], stack, n_step)
    demand = LearnerDemand(len(expected), 1, 1)
    sample = next(iter(make_input_fn([f"localhost:{server.port}"], layout, demand)(None)))
    got = with_stacks(sample.transition)
    assert got.observation.dtype == np.uint8
    assert got.observation.shape == (len(expected), 6, 5, 3 * stack)
    for i, (o_tm1, action, reward, discount, o_t) in enumerate(expected):
        np.testing.assert_array_equal(got.observation[i], o_tm1, err_msg=f"transition {i}")
        np.testing.assert_array_equal(got.next_observation[i], o_t, err_msg=f"transition {i}")
        np.testing.assert_array_equal(got.action[i], action)
        np.testing.assert_allclose(got.reward[i], reward, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(got.discount[i], discount, rtol=1e-6)
        # An actor acts on the very stacks that the learner trains on.
        np.testing.assert_array_equal(seen[i], o_tm1)
    server.stop()


def with_stacks(transition):
    """Stacks the frames of a batch as a learner does."""
    return transition._replace(
        observation=stacked(transition.observation),
        next_observation=stacked(transition.next_observation),
    )


def make_adder(server, layout, max_in_flight):
    return NStepTransitionAdder(
        reverb.Client(f"localhost:{server.port}"),
        layout,
        n_step=layout.n_step,
        discount=GAMMA,
        initial_priority=1.0,
        max_in_flight=max_in_flight,
        on_wait=lambda _: None,
    )


def test_an_episode_cut_off_leaves_nothing_in_the_next(server_of):
    layout, server, adder = server_of
    frames = np.random.default_rng(0).integers(0, 256, (6, *SHAPE), dtype=np.uint8)
    adder.add_first(dm_env.restart(frames[0]))
    adder.add(np.zeros(2, np.float32), dm_env.transition(1.0, frames[1]))
    adder.reset()
    adder.add_first(dm_env.restart(frames[2]))
    adder.add(np.ones(2, np.float32), dm_env.termination(5.0, frames[3]))
    adder.flush()
    demand = LearnerDemand(1, 1, 1)
    sample = next(iter(make_input_fn([f"localhost:{server.port}"], layout, demand)(None)))
    got = with_stacks(sample.transition)
    np.testing.assert_array_equal(got.observation[0], np.concatenate([frames[2]] * 3, -1))
    np.testing.assert_array_equal(
        got.next_observation[0], np.concatenate([frames[2], frames[2], frames[3]], -1)
    )
    assert got.reward[0] == 5.0 and got.discount[0] == 0.0


@pytest.fixture
def server_of():
    layout = FrameLayout(SPEC, 3, 3, 4)
    server = reverb.Server([make_table(layout)])
    adder = make_adder(server, layout, max_in_flight=0)
    yield layout, server, adder
    server.stop()


def test_frames_of_another_kind_are_named(server_of):
    _, _, adder = server_of
    with pytest.raises(ValueError, match=r"observation of shape \(6, 5, 3\) and dtype uint8"):
        adder.add_first(dm_env.restart(np.zeros(SHAPE, np.float32)))
    with pytest.raises(ValueError, match=r"action of shape \(2,\)"):
        adder.add_first(dm_env.restart(np.zeros(SHAPE, np.uint8)))
        adder.add(np.zeros(1, np.float32), dm_env.transition(1.0, np.zeros(SHAPE, np.uint8)))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"observations": specs.Array((4,), np.uint8)}, "make the environment with `pixels=`"),
        ({"observations": specs.Array(SHAPE, np.float32)}, "make the environment with `pixels=`"),
        ({"actions": specs.Array((2, 1), np.float32)}, "wrap the environment"),
        ({"actions": specs.Array((2,), np.float64)}, "wrap the environment"),
    ],
)
def test_environments_without_frames_or_flat_actions_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        FrameLayout(SPEC._replace(**changes), 3, 3, 4)


def test_the_sizes_of_a_layout():
    layout = FrameLayout(SPEC, 3, 3, 4)
    assert layout.observation_shape == (6, 5, 9)
    transition = types.Transition(
        (), np.zeros(2, np.float32), 1.0, 0.9, (), np.empty(0, np.float32)
    )
    row = layout.pack_row(transition, steps=3, step=7)
    assert row.shape == layout.signature["row"].shape == (5,)
