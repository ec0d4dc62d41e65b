"""Encoders: their sizes, their precisions, and user-defined encoders."""

import numpy as np
import pytest
import sonnet as snt
import tensorflow as tf

from agents.networks.encoders import make_encoder, smallest_frame
from rl_replicator.errors import ConfigError

# (height, width, channels in, filters) of all convolutions, for frames of nine channels.
_THIRTY_TWO = [(3, 3, 9, 32)] + 3 * [(3, 3, 32, 32)]
_KERNELS = {
    "small": _THIRTY_TWO,
    "nature": [(8, 8, 9, 32), (4, 4, 32, 64), (3, 3, 64, 64)],
    "drq_v2": _THIRTY_TWO,
    "mrq": _THIRTY_TWO,
    "impala": [
        kernel
        for channels, filters in ((9, 16), (16, 32), (32, 32))
        for kernel in [(3, 3, channels, filters)] + 4 * [(3, 3, filters, filters)]
    ],
}


@pytest.mark.parametrize(
    ("kind", "size"),
    [
        ("small", 11 * 11 * 32),
        ("nature", 4 * 4 * 64),
        ("drq_v2", 25 * 25 * 32),
        ("mrq", 5 * 5 * 32),
        ("impala", 2048),
    ],
)
def test_convolutions_are_those_published_keep_the_variance_and_agree_in_both_precisions(
    kind, size
):
    frames = tf.constant(np.random.default_rng(1).integers(0, 256, (2, 64, 64, 9), dtype=np.uint8))
    exact, fast = (make_encoder(kind, dtype, "encoder") for dtype in (tf.float32, tf.bfloat16))
    features, _ = exact(frames), fast(frames)
    for a, b in zip(exact.variables, fast.variables, strict=True):
        assert a.dtype == b.dtype == tf.float32 and a.name == b.name
        b.assign(a)
    assert len({v.name for v in exact.variables}) == len(exact.variables)
    difference = np.abs(fast(frames) - features).max() / np.abs(features).max()
    assert fast(frames).dtype == tf.float32 and 1e-4 < difference < 0.05
    assert features.shape == (2, size)
    kernels = [v.numpy() for v in exact.variables if v.shape.rank == 4]
    assert sorted(k.shape for k in kernels) == sorted(_KERNELS[kind])
    for kernel in kernels:
        matrix = kernel.reshape(-1, kernel.shape[-1])
        rows, columns = matrix.shape
        product = matrix.T @ matrix if rows >= columns else matrix @ matrix.T
        np.testing.assert_allclose(product, 2 * np.eye(min(rows, columns)), atol=1e-5)


def test_impala_is_three_sections_of_two_residual_blocks():
    encoder = make_encoder("impala", tf.float32, "encoder")
    frames = np.random.default_rng(1).integers(0, 256, (2, 21, 18, 3), dtype=np.uint8)
    encoder(tf.constant(frames))  # Creates the variables.
    for variable in encoder.variables:  # Biases start at 0.
        if variable.shape.rank == 1:
            variable.assign(np.random.default_rng(2).normal(size=variable.shape))
    features = encoder(tf.constant(frames))
    weights = {variable.name: variable for variable in encoder.variables}

    def convolve(x, name):
        w, b = weights[f"encoder/{name}/w:0"], weights[f"encoder/{name}/b:0"]
        return tf.nn.conv2d(x, w, 1, "SAME") + b

    x = tf.constant(frames / 255 - 0.5, tf.float32)
    for i in range(3):
        x = tf.nn.max_pool2d(convolve(x, f"block_{i}/first"), 3, 2, "SAME")
        for j in range(2):
            inner = convolve(tf.nn.relu(x), f"block_{i}/residual_{j}_0")
            x = x + convolve(tf.nn.relu(inner), f"block_{i}/residual_{j}_1")
        x = tf.nn.relu(x)
    np.testing.assert_allclose(features, tf.reshape(x, [2, -1]), rtol=1e-4, atol=1e-4)


def test_frames_are_scaled_to_half_around_zero():
    frames = np.random.default_rng(1).integers(0, 256, (2, 40, 40, 9), dtype=np.uint8)
    encoder = make_encoder("small", tf.float32, "encoder")
    features = encoder(tf.constant(frames))
    # An actor's frames are uint8, a learner's have the encoder's dtype.
    np.testing.assert_allclose(encoder(tf.constant(frames, tf.float32)), features)
    scaled = tf.constant(frames / 255 - 0.5, tf.float32)
    weights = {variable.name: variable for variable in encoder.variables}
    expected = tf.nn.conv2d(scaled, weights["encoder/block_0/w:0"], 2, "VALID")
    for i, stride in ((1, 2), (2, 1), (3, 1)):
        w = weights[f"encoder/block_{i}/w:0"]
        expected = tf.nn.conv2d(tf.nn.relu(expected), w, stride, "VALID")
    expected = tf.nn.relu(expected)
    np.testing.assert_allclose(features, tf.reshape(expected, [2, -1]), atol=1e-5)


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
        ("./encoders.py:make", "was found .*; name it as in an import, package.module, not by"),
        ("agents.networks.encoders:tiny", "no function in agents.networks.encoders"),
        ("agents.networks.encoders:_IMPALA_FILTERS", "_IMPALA_FILTERS', which is no function"),
        ("ruined.parts:make", "encoder: expected the module ruined.parts to be imported, got Zero"),
    ],
)
def test_an_unknown_encoder_is_refused_in_one_line(kind, message, tmp_path, monkeypatch):
    (tmp_path / "ruined").mkdir()
    (tmp_path / "ruined" / "__init__.py").write_text("\n1 / 0\n")
    (tmp_path / "ruined" / "parts.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match=message) as error:
        make_encoder(kind, tf.float32, "encoder")
    assert "\n" not in str(error.value)
    assert ("__init__.py, line" in str(error.value)) == kind.startswith("ruined")
