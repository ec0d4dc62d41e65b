"""The step from pixels: what trains what, shifts by hand, replicas against one device."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf
from acme import specs, types

import rl_replicator as rr
from agents.acting.actors import GaussianNoise, LinearSchedule
from agents.acting.frame_stack import FrameStack
from agents.d4pg.agent import D4PG
from agents.d4pg.networks import PixelCritic, tanh_with_way_back
from agents.d4pg.pixel_config import PixelD4PGConfig, PixelReplayConfig
from agents.networks.augmentation import random_shift
from agents.networks.encoders import make_encoder
from agents.nodes.observation_images import strip
from agents.replay.transitions import Sample
from rl_replicator.errors import ConfigError

SIZE, BATCH, STEPS = 24, 8, 6
SPEC = specs.EnvironmentSpec(
    observations=specs.BoundedArray((SIZE, SIZE, 3), np.uint8, 0, 255),
    actions=specs.BoundedArray((2,), np.float32, -1.0, 1.0),
    rewards=specs.BoundedArray((), np.float32, 0.0, 1.0),
    discounts=specs.BoundedArray((), np.float32, 0.0, 1.0),
)
SMALL = PixelD4PGConfig(
    policy_layers=(16,),
    critic_layers=(16,),
    num_atoms=11,
    feature_size=8,
    max_shift=2,
    precision="float32",
)


def make_samples(count):
    random = np.random.default_rng(3)
    frames = random.integers(0, 256, (2, count, SIZE, SIZE, 9), dtype=np.uint8)
    return Sample(
        keys=np.arange(count, dtype=np.uint64),
        probabilities=np.full(count, 1e-3),
        table_size=np.full(count, 1000, np.int64),
        transition=types.Transition(
            observation=frames[0],
            action=random.uniform(-1, 1, (count, 2)).astype(np.float32),
            reward=random.uniform(0, 5, count).astype(np.float32),
            discount=random.choice([0.0, 0.95], count).astype(np.float32),
            next_observation=frames[1],
        ),
    )


def make_module(config, replicator):
    tf.random.set_seed(5)
    with replicator.scope():
        return D4PG(config, SPEC).make_module(replicator, importance_steps=STEPS)


def train(replicator_name, config):
    """Trains on fixed batches; returns all weights by path."""
    replicator = rr.make(replicator_name)
    module = make_module(config, replicator)
    start = np.random.default_rng(7)
    for network in (module.encoder, module.policy, module.critic):
        for variable in network.trainable_variables:
            variable.assign(start.normal(scale=0.1, size=variable.shape).astype(np.float32))
    for source, copy in module.target_pairs():
        copy.assign(source)

    def input_fn(context):
        size = context.per_replica_batch_size(BATCH)
        samples = tf.data.Dataset.from_tensor_slices(make_samples(STEPS * BATCH))
        return samples.batch(size, drop_remainder=True)

    step = replicator.replicate(module.step_fn, replicator.make_inputs(input_fn), 3)
    for _ in range(STEPS // 3):
        step()
    names = ("encoder", "policy", "critic", "target_encoder", "target_policy", "target_critic")
    return module.get_variables(names)


def test_replicas_train_as_one_device_does():
    """Without shifts, whose seeds differ between replicas."""
    config = dataclasses.replace(SMALL, max_shift=0)
    one, two = train("single_device", config), train("multi_device:2", config)
    assert sorted(one) == sorted(two) and "target_encoder/block_0/w" in one
    for path, array in one.items():
        np.testing.assert_allclose(two[path], array, rtol=1e-3, atol=1e-4, err_msg=path)


def test_the_critic_trains_the_encoder_and_the_policy_does_not():
    def encoder_after(policy_rate, critic_rate):
        config = dataclasses.replace(
            SMALL, policy_learning_rate=policy_rate, critic_learning_rate=critic_rate
        )
        module = make_module(config, rr.make("single_device"))
        before = [variable.numpy() for variable in module.encoder.variables]
        policy_before = [variable.numpy() for variable in module.policy.variables]
        module.step_fn(tf.nest.map_structure(tf.constant, make_samples(BATCH)))
        moved = [
            abs(v.numpy() - b).max() for v, b in zip(module.encoder.variables, before, strict=True)
        ]
        pairs = zip(module.policy.variables, policy_before, strict=True)
        return max(moved), max(abs(v.numpy() - b).max() for v, b in pairs)

    encoder, policy = encoder_after(policy_rate=0.5, critic_rate=1e-12)
    assert encoder < 1e-9 and policy > 0.01
    encoder, _ = encoder_after(policy_rate=1e-12, critic_rate=0.01)
    assert encoder > 1e-3


def test_targets_follow_by_tau_at_every_step():
    config = dataclasses.replace(SMALL, target_update_rate=0.25)
    module = make_module(config, rr.make("single_device"))
    before = [copy.numpy() for _, copy in module.target_pairs()]
    module.step_fn(tf.nest.map_structure(tf.constant, make_samples(BATCH)))
    for (source, copy), old in zip(module.target_pairs(), before, strict=True):
        np.testing.assert_allclose(copy, old + 0.25 * (source - old), rtol=1e-5, atol=1e-7)


def test_a_policy_far_beyond_a_limit_comes_back():
    x = tf.constant([-20.0, -1.0, 0.0, 1.0, 20.0])

    def gradient(wish):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tanh_with_way_back(x)
        np.testing.assert_allclose(y, np.tanh(x), rtol=1e-6)
        return tape.gradient(y, x, output_gradients=wish * tf.ones_like(x)).numpy()

    room_below = np.tanh(x) + 1  # A positive gradient is descended: y becomes less.
    np.testing.assert_allclose(gradient(0.5), 0.5 * room_below, atol=1e-6)
    np.testing.assert_allclose(gradient(-0.5), -0.5 * room_below[::-1], atol=1e-6)


@pytest.mark.parametrize(("low", "high"), [(0.0, 800.0), (-50.0, 50.0), (-300.0, 0.0), (5.0, 9.0)])
def test_a_new_critic_expects_a_return_near_zero(low, high):
    atoms = np.linspace(low, high, 51, dtype=np.float32)
    critic = PixelCritic(8, (16,), atoms)
    random = np.random.default_rng(0)
    logits = critic(
        tf.constant(random.normal(size=(32, 100)), tf.float32),
        tf.constant(random.uniform(-1, 1, (32, 2)), tf.float32),
    )
    mean = tf.linalg.matvec(tf.nn.softmax(logits), atoms).numpy()
    nearest_to_zero = min(max(low, 0.0), high)
    np.testing.assert_allclose(mean, nearest_to_zero, atol=0.12 * (high - low))


def test_a_shift_moves_whole_pictures_and_repeats_their_borders():
    random = np.random.default_rng(0)
    frames = random.integers(0, 256, (400, 5, 6, 2), dtype=np.uint8)
    shifted = random_shift(tf.constant(frames), tf.constant([1, 2]), most=2).numpy()
    assert shifted.shape == frames.shape and shifted.dtype == np.uint8
    found = set()
    padded = np.pad(frames, ((0, 0), (2, 2), (2, 2), (0, 0)), mode="edge")
    for before, after in zip(padded, shifted, strict=True):
        crops = {
            (y, x) for y in range(5) for x in range(5)
            if np.array_equal(before[y : y + 5, x : x + 6], after)
        }  # fmt: skip
        assert len(crops) == 1
        found |= crops
    assert len(found) == 25  # Each of them, in 400 draws.
    again = random_shift(tf.constant(frames), tf.constant([1, 2]), most=2)
    np.testing.assert_array_equal(again, shifted)
    other = random_shift(tf.constant(frames), tf.constant([1, 3]), most=2)
    assert (other.numpy() != shifted).any()


@pytest.mark.parametrize("kind", ["small", "nature", "drq_v2", "impala"])
def test_encoders_agree_in_both_precisions(kind):
    frames = tf.constant(np.random.default_rng(1).integers(0, 256, (2, 64, 64, 9), dtype=np.uint8))
    exact, fast = (make_encoder(kind, dtype, "encoder") for dtype in (tf.float32, tf.bfloat16))
    features, _ = exact(frames), fast(frames)
    for a, b in zip(exact.variables, fast.variables, strict=True):
        assert a.dtype == b.dtype == tf.float32 and a.name == b.name
        b.assign(a)
    assert len({v.name for v in exact.variables}) == len(exact.variables)
    difference = np.abs(fast(frames) - features).max() / np.abs(features).max()
    assert fast(frames).dtype == tf.float32 and difference < 0.05
    sizes = {"small": 11 * 11 * 32, "nature": 4 * 4 * 64, "drq_v2": 25 * 25 * 32, "impala": 2048}
    assert features.shape == (2, sizes[kind])


def test_noise_falls_linearly_and_then_no_further():
    schedule = LinearSchedule(1.0, 0.1, 100)
    np.testing.assert_allclose([schedule(s) for s in (0, 50, 100, 500)], [1.0, 0.55, 0.1, 0.1])
    steps = 0
    noise = GaussianNoise(lambda: LinearSchedule(0.2, 0.0, 10)(steps), np.random.default_rng(0))
    draws = np.concatenate([noise(np.zeros(1000, np.float32)) for _ in range(3)])
    assert draws.dtype == np.float32 and abs(draws.std() - 0.2) < 0.01
    steps = 10
    assert not noise(np.zeros(3, np.float32)).any()


def test_an_actor_stacks_frames_and_the_strip_shows_them():
    memory = FrameStack(3)
    frames = [np.full((2, 2, 3), value, np.uint8) for value in range(4)]
    memory.begin()
    seen = [memory.observe(frame) for frame in frames]
    assert [s[0, 0, ::3].tolist() for s in seen] == [[0, 0, 0], [0, 0, 1], [0, 1, 2], [1, 2, 3]]
    assert strip(seen[-1])[0, :, 0].tolist() == [1, 1, 2, 2, 3, 3]
    memory.begin()
    assert memory.observe(frames[2])[0, 0, ::3].tolist() == [2, 2, 2]
    assert strip(np.zeros(4, np.float32)) is None


def test_frames_too_small_for_the_encoder_are_refused():
    with pytest.raises(ConfigError, match="--picture.width: expected at least 36 .* got 24"):
        D4PG(dataclasses.replace(SMALL, encoder="nature"), SPEC)


def test_bad_settings_are_named_by_their_option():
    with pytest.raises(ConfigError, match="--agent.frame-stack: expected at least 1, got 0"):
        PixelD4PGConfig(frame_stack=0)
    with pytest.raises(ConfigError, match="--agent.n-step: .* got 0"):
        PixelD4PGConfig(n_step=0)
    with pytest.raises(ConfigError, match="--agent.replay.chunk-length: .* got 0"):
        PixelReplayConfig(chunk_length=0)
