"""A GAN's initial values, inputs, evaluations, image grid and exports, without any training."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

import rl_replicator as rr
from rl_replicator.exports import formats
from rl_replicator.exports.model import Card, ExportedModel
from rl_replicator.exports.standalone import Model
from rl_replicator.learners.sngan import samples
from tests.rl_replicator.learners import image_files
from tests.rl_replicator.learners.tiny_gans import copies, make

pytestmark = pytest.mark.usefixtures("plain_graphs")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return image_files.fashion_mnist(tmp_path_factory.mktemp("images"))


@pytest.fixture(scope="module")
def fresh(folder):
    """A learner in float64 that is never trained."""
    return make(folder, precision="float64", samples=23)


def test_the_average_starts_at_the_generator_and_statistics_at_nothing(fresh):
    pairs = list(zip(fresh._average.variables, fresh._generator.variables, strict=True))
    assert len(pairs) > 20
    for average, x in pairs:
        np.testing.assert_array_equal(average.numpy(), x.numpy(), x.name)
    statistics = [x for x in fresh._generator.variables if "/moving_" in x.name]
    assert len(statistics) == 6
    for x in statistics:
        assert (x.numpy() == ("variance" in x.name)).all()


def test_slots_are_there_before_the_first_step(fresh):
    """Otherwise no checkpoint could be restored into them."""
    for name in ("generator", "discriminator"):
        network, optimizer = getattr(fresh, f"_{name}"), getattr(fresh, f"_{name}_optimizer")
        assert len(optimizer.m) == len(network.trainable_variables) > 5


def test_the_input_begins_with_the_first_batch(fresh):
    context = rr.InputContext(num_replicas=1)
    inputs = (fresh.input_fn(context), fresh.input_fn_from(context, 0))
    for got, want in zip(*(next(iter(data.as_numpy_iterator())) for data in inputs), strict=True):
        np.testing.assert_array_equal(got, want)


def test_pixels_are_scaled_in_full_precision(fresh):
    pixels = np.arange(256, dtype=np.uint8)
    np.testing.assert_array_equal(fresh._scaled(tf.constant(pixels)), pixels / 127.5 - 1.0)
    np.testing.assert_array_equal(fresh._pixels(tf.constant([-1.0, 0.5, 1.0])), [0, 191, 255])
    np.testing.assert_array_equal(fresh._pixels(fresh._scaled(tf.constant(pixels))), pixels)


def test_the_grid_shows_the_served_generator(fresh):
    for variable in fresh._average.trainable_variables:
        variable.assign_add(0.01 * tf.ones_like(variable))
    served = fresh.served().function

    def generate(noise, labels):
        return tf.cast(served(noise=noise, labels=labels)["images"], tf.uint8)

    want = samples.grid(generate, noise_size=8, num_classes=10, seed=1)
    assert len(np.unique(want)) > 3  # Not only the border and a single grey.
    np.testing.assert_array_equal(fresh.images(0)["samples"], want)
    np.testing.assert_array_equal(
        samples.grid(generate, 8, 10, 1), want
    )  # The average is unchanged.


def test_evaluations_make_as_many_images_of_each_class(fresh):
    evaluation = fresh.evaluation()
    assert evaluation.best == "score"
    batches = list(evaluation.input_fn(rr.InputContext(num_replicas=1)).as_numpy_iterator())
    assert [len(labels) for _, labels in batches] == [16, 7]
    np.testing.assert_array_equal(np.concatenate([y for _, y in batches]), np.arange(23) % 10)
    noise = tf.random.stateless_normal([23, 8], [1 + (3 << 40), 0])
    np.testing.assert_array_equal(np.concatenate([x for x, _ in batches]), noise)
    sums = {"score": np.float64(46.0), "samples": np.float64(23.0)}
    assert evaluation.metrics_fn(sums) == {"score": 2.0}


def test_an_evaluated_image_does_not_depend_on_the_others(fresh):
    """Nor does it depend on the padding of a batch; and the networks stay unchanged."""
    before = copies(fresh)
    noise = np.random.default_rng(0).normal(size=[3, 8]).astype(np.float32)
    noise[2] = np.nan
    labels, mask = np.int32([4, 7, 0]), np.float32([1, 1, 0])
    sums_fn = fresh.evaluation().sums_fn
    together = sums_fn((tf.constant(noise), tf.constant(labels)), tf.constant(mask))
    alone = [sums_fn((noise[i : i + 1], labels[i : i + 1]), mask[i : i + 1]) for i in range(2)]
    classes = tf.one_hot(labels[:2], 10, dtype=tf.float64)
    images = fresh._average(tf.cast(noise[:2], tf.float64), classes, is_training=False)
    scores = fresh._discriminator(images, classes, is_training=False)
    assert abs(scores[0] - scores[1]) > 1e-3
    np.testing.assert_allclose([float(each["score"]) for each in alone], scores, rtol=1e-6)
    np.testing.assert_allclose(float(together["score"]), tf.reduce_sum(scores), rtol=1e-6)
    assert float(together["samples"]) == 2
    for name, value in copies(fresh).items():
        np.testing.assert_array_equal(value, before[name], name)


def test_the_grid_has_a_row_for_each_class():
    def generate(noise, labels):
        shade = tf.cast(labels, tf.float32)[:, None] * 20 + tf.cast(noise[:, :1] > 0, tf.float32)
        return tf.cast(tf.tile(shade[:, :, None, None], [1, 4, 4, 1]), tf.uint8)

    image = samples.grid(generate, noise_size=3, num_classes=5, seed=1)
    assert image.shape == (5 * 6 - 2, 10 * 6 - 2, 1)
    assert (image[4:6] == 255).all() and (image[:, 4:6] == 255).all()
    cells = image[::6, ::6, 0]
    np.testing.assert_array_equal(cells // 20, np.arange(5)[:, None] * np.ones([1, 10]))
    np.testing.assert_array_equal(cells % 20, (cells % 20)[[0] * 5])  # Rows share the noise.


def test_learning_rate_falls_at_the_end(folder, tmp_path):
    learner = make(folder, decay_steps=4, generator_learning_rate=0.1)
    rates = []
    for step in (0, 15, 16, 17, 18, 19):
        learner._set_rate(learner._generator_optimizer, 0.1, tf.constant(step, tf.int64))
        rates.append(learner._generator_optimizer.learning_rate.numpy())
    np.testing.assert_allclose(rates, [0.1, 0.1, 0.1, 0.075, 0.05, 0.025], rtol=1e-6)
    learner._recipe = dataclasses.replace(learner._recipe, decay_steps=0)
    learner._set_rate(learner._generator_optimizer, 0.2, tf.constant(19, tf.int64))
    np.testing.assert_allclose(learner._generator_optimizer.learning_rate.numpy(), 0.2, rtol=1e-6)


def test_learning_rate_of_a_run_shorter_than_its_fall(folder):
    learner = make(folder, steps=10, decay_steps=100)
    rates = []
    for step in (0, 5, 9):
        learner._set_rate(learner._generator_optimizer, 0.1, tf.constant(step, tf.int64))
        rates.append(learner._generator_optimizer.learning_rate.numpy())
    np.testing.assert_allclose(rates, [0.1, 0.05, 0.01], rtol=1e-6)


def test_it_serves_the_averaged_generator(folder, tmp_path):
    learner = make(folder, precision="bfloat16")  # Which NumPy does not have.
    served = learner.served()
    noise, labels = np.ones((3, *served.inputs["noise"].shape[1:]), np.float32), np.int32([0, 1, 9])
    images = served.function(noise=noise, labels=labels)["images"]
    alone = served.function(noise=noise[1:2], labels=labels[1:2])["images"]
    np.testing.assert_allclose(alone[0], images[1], atol=1)  # As in the export below.
    assert images.shape == (3, 8, 8, 1) and images.dtype == tf.float32
    assert np.array_equal(images, np.rint(images))
    assert np.min(images) >= 0 and np.max(images) <= 255
    formats.write(
        ExportedModel(served.function, served.inputs, Card("A GAN", {}, "", {})),
        "numpy",
        tmp_path / "model",
    )
    exported = Model(tmp_path / "model" / "model.npz").run(noise=noise, labels=labels)["images"]
    np.testing.assert_allclose(exported, images, atol=1)  # A value near x.5 is rounded either way.
    learner._average.trainable_variables[0].assign_add(
        tf.ones_like(learner._average.trainable_variables[0])
    )
    assert not np.array_equal(images, served.function(noise=noise, labels=labels)["images"])
