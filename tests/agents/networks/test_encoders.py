"""Encoders: their sizes, their precisions, and encoders of a user's own."""

import numpy as np
import pytest
import sonnet as snt
import tensorflow as tf

from agents.networks.encoders import make_encoder, smallest_frame
from rl_replicator.errors import ConfigError


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


@pytest.mark.parametrize("kind", ["small", "impala"])
def test_frames_are_scaled_to_half_around_zero(kind):
    frames = np.random.default_rng(1).integers(0, 256, (2, 40, 40, 9), dtype=np.uint8)
    encoder = make_encoder(kind, tf.float32, "encoder")
    features = encoder(tf.constant(frames))
    # An actor's frames are uint8, a learner's of the encoder's dtype.
    np.testing.assert_allclose(encoder(tf.constant(frames, tf.float32)), features)
    scaled = tf.constant(frames / 255 - 0.5, tf.float32)
    weights = {variable.name: variable for variable in encoder.variables}
    if kind == "small":
        first = weights["encoder/block_0/w:0"]
        expected = tf.nn.conv2d(scaled, first, 2, "VALID")
        for i, stride in ((1, 2), (2, 1), (3, 1)):
            w = weights[f"encoder/block_{i}/w:0"]
            expected = tf.nn.conv2d(tf.nn.relu(expected), w, stride, "VALID")
        expected = tf.nn.relu(expected)
        np.testing.assert_allclose(features, tf.reshape(expected, [2, -1]), atol=1e-5)
    else:
        # Zeros that pad the frames are the middle of their range.
        first = weights["encoder/block_0/first/w:0"]
        expected = tf.nn.conv2d(scaled, first, 1, "SAME")
        found = encoder._blocks[0]._first(tf.constant(frames - 127.5, tf.float32))
        np.testing.assert_allclose(found, expected, atol=1e-5)


def own_encoder(dtype, name):
    """An encoder that a user names by its import path."""
    del dtype
    return snt.Sequential([lambda x: tf.cast(x, tf.float32), snt.Flatten()], name=name)


def test_an_encoder_by_import_path():
    encoder = make_encoder(f"{__name__}:own_encoder", tf.float32, "encoder")
    assert encoder(tf.zeros([2, 3, 4, 5], tf.uint8)).shape == (2, 60)
    assert smallest_frame(f"{__name__}:own_encoder") == 1
    assert smallest_frame("nature") == 36


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("tiny", "--agent.encoder: expected small, nature, .* or package.module:name, got 'tiny'"),
        ("no_such_package.encoders:make", "found no module 'no_such_package'"),
        ("agents.networks.encoders:tiny", "encoders.py has no 'tiny'"),
    ],
)
def test_an_unknown_encoder_is_refused_in_one_line(kind, message):
    with pytest.raises(ConfigError, match=message) as error:
        make_encoder(kind, tf.float32, "encoder")
    assert "\n" not in str(error.value)
