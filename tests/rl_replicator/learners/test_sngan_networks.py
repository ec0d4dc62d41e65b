"""Spectral norms, projection, conditional norm and losses, against numbers worked out by hand."""

import numpy as np
import pytest
import sonnet as snt
import tensorflow as tf

from rl_replicator.learners.sngan import losses, networks
from rl_replicator.learners.sngan.spectral_norm import SpectralNorm

SHAPES = [(7, 5), (3, 3, 4, 6)]


def weight(shape):
    return tf.constant(np.random.default_rng(0).normal(size=shape))


@pytest.mark.parametrize("shape", SHAPES)
def test_spectral_norm_is_the_largest_singular_value(shape):
    norm, w = SpectralNorm(), weight(shape)
    matrix = w.numpy().reshape(-1, shape[-1])
    left, values, right = np.linalg.svd(matrix)
    for _ in range(300):
        normalised = norm(w, is_training=True)
    np.testing.assert_allclose(normalised, w / values[0], rtol=1e-9)
    np.testing.assert_allclose(abs(norm.u.numpy() @ right[0]), 1, rtol=1e-9)
    # The gradient of |W / sigma(W)|^2 / 2 with respect to W: (W - |W|^2 / sigma u v^T) / sigma^2.
    with tf.GradientTape() as tape:
        tape.watch(w)
        loss = tf.reduce_sum(norm(w, is_training=False) ** 2) / 2
    outer = np.sum(matrix**2) / values[0] * np.outer(left[:, 0], right[0])
    want = (matrix - outer) / values[0] ** 2
    np.testing.assert_allclose(tape.gradient(loss, w).numpy().reshape(want.shape), want, atol=1e-7)


def test_one_power_iteration():
    norm = SpectralNorm()
    w = tf.constant([[3.0, 0.0], [0.0, 4.0]])
    norm(w, is_training=False)
    norm.u.assign([0.6, 0.8])
    # v ~ (1.8, 3.2), u ~ (5.4, 12.8), sigma = v^T W u.
    v = np.array([1.8, 3.2]) / np.hypot(1.8, 3.2)
    u = np.array([5.4, 12.8]) / np.hypot(5.4, 12.8)
    read = norm(w, is_training=False)
    np.testing.assert_allclose(read, w / (v @ w.numpy() @ [0.6, 0.8]), rtol=1e-6)
    np.testing.assert_array_equal(norm.u, np.float32([0.6, 0.8]))  # Read, and not written.
    trained = norm(w, is_training=True)
    np.testing.assert_allclose(trained, w / (v @ w.numpy() @ u), rtol=1e-6)
    np.testing.assert_allclose(norm.u, u, rtol=1e-6)


def test_projection():
    features = tf.constant([[1.0, 2.0], [3.0, -1.0]])
    embedded = tf.constant([[0.5, 0.25], [-1.0, 2.0]])
    scores = networks.projection(features, tf.constant([10.0, 20.0]), embedded)
    np.testing.assert_allclose(scores, [11.0, 15.0])


def test_classes_change_scores_by_the_projection():
    discriminator = networks.Discriminator(networks.layout(8), width=4)
    images = tf.constant(np.random.default_rng(0).normal(size=[2, 8, 8, 1]), tf.float32)
    scores = [
        discriminator(images, tf.one_hot([k, k], 3), is_training=False).numpy() for k in range(3)
    ]
    x = images
    for block in discriminator._blocks:
        x = block(x, is_training=False)
    features = tf.reduce_sum(tf.nn.relu(x), axis=[1, 2]).numpy()
    w = discriminator._embedding.w.numpy()
    v = discriminator._embedding._weight_norm(tf.constant(w), is_training=False).numpy()
    np.testing.assert_allclose(v / w, np.full_like(w, v[0, 0] / w[0, 0]), rtol=1e-4)
    assert abs(v[0, 0] / w[0, 0] - 1) > 1e-3  # The projection's weights are normalised too.
    np.testing.assert_allclose(scores[1] - scores[0], features @ (v[1] - v[0]), rtol=1e-3)
    np.testing.assert_allclose(scores[2] - scores[0], features @ (v[2] - v[0]), rtol=1e-3)


def test_every_weight_of_the_discriminator_is_normalised():
    discriminator = networks.Discriminator(networks.layout(28), width=2)
    images, classes = tf.zeros([1, 28, 28, 1]), tf.one_hot([0], 10)
    discriminator(images, classes, is_training=False)
    weights = [v for v in discriminator.trainable_variables if v.shape.rank > 1]
    vectors = [v for v in discriminator.variables if not v.trainable]
    assert sorted(v.shape[-1] for v in weights) == sorted(v.shape[0] for v in vectors)
    before = [v.numpy() for v in vectors]
    discriminator(images, classes, is_training=False)
    for old, new in zip(before, vectors, strict=True):
        np.testing.assert_array_equal(new, old)
    discriminator(images, classes, is_training=True)
    assert not any(
        np.array_equal(old, new) for old, new in zip(before, vectors, strict=True) if len(old) > 1
    )


def test_conditional_norm():
    norm = networks.ConditionalNorm(2)
    x = tf.constant(np.random.default_rng(0).normal(size=[4, 3, 3, 2]))
    labels = [0, 1, 1, 2]
    classes = tf.one_hot(labels, 3, dtype=tf.float64)
    norm(x, classes, is_training=False)
    scale, offset = np.array([[1, 2], [3, 4], [5, 6.0]]), np.array([[0, 1], [2, 3], [4, 5.0]])
    norm._scale.w.assign(scale)
    norm._offset.w.assign(offset)
    y = norm(x, classes, is_training=True).numpy()
    mean, variance = x.numpy().mean((0, 1, 2)), x.numpy().var((0, 1, 2))
    plain = (x.numpy() - mean) / np.sqrt(variance + 1e-5)
    want = scale[labels][:, None, None] * plain + offset[labels][:, None, None]
    np.testing.assert_allclose(y, want, rtol=1e-9)


@pytest.mark.parametrize(
    ("size", "side", "generator", "discriminator", "halvings"),
    [
        (8, 4, (2, 1), (1, 2), 1),
        (28, 7, (4, 2, 1), (1, 2, 4), 2),
        (32, 4, (4, 4, 4, 4), (2, 2, 2, 2), 2),  # Miyato et al. 2018, table 4.
        (64, 4, (16, 8, 4, 2, 1), (1, 2, 4, 8, 16), 4),
        (128, 4, (16, 16, 8, 4, 2, 1), (1, 2, 4, 8, 16, 16), 5),  # Miyato & Koyama 2018.
    ],
)
def test_layouts(size, side, generator, discriminator, halvings):
    layout = networks.layout(size)
    assert layout == networks.Shape(side, generator, discriminator, halvings)


def test_image_sizes():
    generator = networks.Generator(networks.layout(28), width=2, image_channels=1)
    images = generator(tf.zeros([3, 5]), tf.one_hot([0, 1, 2], 10), is_training=False)
    assert images.shape == [3, 28, 28, 1]


def test_doubled_and_halved():
    x = tf.constant([[[[1.0], [2.0]], [[3.0], [4.0]]]])
    doubled = networks.double(x)
    np.testing.assert_array_equal(
        doubled[0, :, :, 0], [[1, 1, 2, 2], [1, 1, 2, 2], [3, 3, 4, 4], [3, 3, 4, 4]]
    )
    np.testing.assert_array_equal(networks.halve(doubled), x)


def test_hinge_losses():
    real, fake = tf.constant([0.5, 1.5, -2.0]), tf.constant([-0.5, -1.5, 2.0])
    with tf.GradientTape(persistent=True) as tape:
        tape.watch([real, fake])
        d_loss = losses.discriminator_hinge(real, fake)
        g_loss = losses.generator_hinge(fake)
    np.testing.assert_allclose(d_loss, [1.0, 0.0, 6.0])
    np.testing.assert_allclose(g_loss, [0.5, 1.5, -2.0])
    np.testing.assert_array_equal(tape.gradient(d_loss, real), [-1, 0, -1])
    np.testing.assert_array_equal(tape.gradient(d_loss, fake), [1, 0, 1])
    np.testing.assert_array_equal(tape.gradient(g_loss, fake), [-1, -1, -1])


def test_initial_weights_are_glorots():
    layer = networks.Layer(64, networks._GLOROT_RELU, size=3)
    layer(tf.zeros([1, 4, 4, 32]), is_training=False)
    assert isinstance(networks._GLOROT, snt.initializers.VarianceScaling)
    limit = np.sqrt(2) * np.sqrt(6 / (9 * (32 + 64)))
    assert 0.98 * limit < abs(layer.w.numpy()).max() <= limit
