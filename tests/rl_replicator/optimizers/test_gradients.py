"""Unscaling, clipping and skipping against NumPy, in half precision too."""

import functools
import math

import numpy as np
import pytest
import tensorflow as tf

import rl_replicator as rr
from rl_replicator.optimizers import gradients
from tests.rl_replicator.optimizers import numpy_optimizers as reference

RATE = 0.5
START = np.array([0.5, -1.0, 2.0, 0.25], np.float32)
# Gradients of the loss, one row per step.
ROWS = np.random.default_rng(0).uniform(0.01, 0.4, size=(4, 4)).astype(np.float32)


@functools.cache
def replicator(count):
    return rr.SingleDeviceReplicator() if count == 1 else rr.MultiDeviceReplicator(count)


class Learner:
    """SGD on the loss `factor * x . w`, whose gradient is `factor * x`, on every replica."""

    def __init__(self, count, dtype, compute_dtype, factor=1.0, **options):
        self.replicator = replicator(count)
        with self.replicator.scope():
            self.weights = tf.Variable(START, dtype=dtype)
            self.optimizer = self.replicator.wrap_optimizer(
                rr.optimizers.Momentum(
                    lambda step: tf.constant(RATE), lambda ws: [False] * len(ws), momentum=0.0
                ),
                **options,
            )
            self._x = tf.Variable(tf.zeros([4]), trainable=False)
            self._factor = tf.Variable(factor, trainable=False)
        self.replicator.build_optimizer(self.optimizer, [self.weights])

        def step_fn(_):
            with tf.GradientTape() as tape:
                half = tf.cast(self.weights, compute_dtype)
                tape.watch(half)
                product = tf.cast(half * tf.cast(self._x, compute_dtype), tf.float32)
                loss = self.optimizer.scale_loss(tf.reduce_sum(product) * self._factor)
            (gradient,) = tape.gradient(loss, [half])
            assert gradient.dtype == compute_dtype
            self.optimizer.apply([gradient], [self.weights])
            return gradient

        inputs = self.replicator.make_inputs(lambda context: lambda: tf.constant(0))
        self._step = self.replicator.replicate(step_fn, inputs)

    def step(self, x, factor=None):
        with self.replicator.scope():
            self._x.assign(x)
            if factor is not None:
                self._factor.assign(factor)
        return self.replicator.gather(self._step())[0]

    @property
    def value(self):
        return self.weights.numpy().astype(np.float32)


NO_OPTIONS = {
    "reduction": "mean",
    "max_global_norm": None,
    "loss_scale": None,
    "skip_nonfinite": False,
}


def test_options_have_one_line_for_what_they_refuse():
    for option, bad, message in (
        ("reduction", "median", "reduction out of mean, sum, none, got 'median'"),
        ("max_global_norm", 0, "max_global_norm above 0 .* got 0"),
        ("max_global_norm", float("nan"), "max_global_norm above 0 .* got nan"),
        ("max_global_norm", float("inf"), "got inf; use None not to clip"),
        ("max_global_norm", np.finfo(np.float32).max, "above 0 and up to 1e.30, got 3.4"),
        ("loss_scale", 0, "loss_scale above 0"),
        ("loss_scale", float("inf"), "loss_scale above 0"),
        ("loss_scale", "static", "loss_scale above 0"),
    ):
        with pytest.raises(rr.ConfigError, match=message):
            gradients.Options(**(NO_OPTIONS | {option: bad}))


@pytest.mark.parametrize(("count", "scale"), [(1, np.float32(65536.0)), (2, "dynamic")])
def test_half_gradients_equal_float32(count, scale, monkeypatch):
    monkeypatch.setattr(gradients, "INITIAL_SCALE", 65536.0)
    # 1e-7 rounds to a multiple of 6e-8 in float16; scaled, it is a normal number.
    learner = Learner(count, tf.float32, tf.float16, factor=1e-7, loss_scale=scale)
    expected = START.astype(np.float64)
    for x in ROWS:
        learner.step(x)
        expected -= RATE * 1e-7 * x
    moved = learner.value - START
    np.testing.assert_allclose(moved, expected - START, atol=1.5e-7)  # Float32 near 1.
    # And exactly, where the weights are near 0.
    learner = Learner(count, tf.float32, tf.float16, factor=1e-7, loss_scale=scale)
    with learner.replicator.scope():
        learner.weights.assign(tf.zeros([4]))
    for x in ROWS:
        learner.step(x)
    np.testing.assert_allclose(learner.value, -RATE * 1e-7 * ROWS.sum(0), rtol=2e-3)
    assert int(learner.optimizer.num_skipped) == 0


def test_half_gradients_that_the_step_reduces_are_unscaled_in_float32():
    options = {"reduction": "none", "loss_scale": 65536.0}
    learner = Learner(1, tf.float32, tf.float16, factor=1e-7, **options)
    learner.weights.assign(tf.zeros([4]))
    learner.step(ROWS[0])
    np.testing.assert_allclose(learner.value, -RATE * 1e-7 * ROWS[0], rtol=2e-3)


def test_half_parameters_equal_float32():
    options = {"loss_scale": 65536.0, "skip_nonfinite": True}
    learner = Learner(2, tf.float16, tf.float16, factor=0.25, **options)
    for x in ROWS:
        learner.step(x)
    moved = learner.value - START
    np.testing.assert_allclose(moved, -RATE * 0.25 * ROWS.sum(0), atol=4e-3)  # Float16 near 2.
    assert int(learner.optimizer.num_skipped) == 0


def test_dynamic_scale_finds_its_range(monkeypatch):
    """It doubles beyond 65,536, overflows, and training goes on at the largest scale that fits."""
    monkeypatch.setattr(gradients, "INITIAL_SCALE", 65536.0)
    monkeypatch.setattr(gradients, "GROWTH_INTERVAL", 1)
    # The gradient of the sum, 0.25 * 2**17, fits in float16; twice that is infinite.
    learner = Learner(1, tf.float32, tf.float16, factor=0.25, loss_scale="dynamic")
    x = np.full(4, 0.4, np.float32)
    scales = []
    for _ in range(4):
        learner.step(x)
        scales.append(float(learner.optimizer.loss_scale))
    assert scales == [2.0**17, 2.0**18, 2.0**17, 2.0**18]
    assert int(learner.optimizer.num_skipped) == 1
    np.testing.assert_allclose(learner.value, START - 3 * RATE * 0.25 * x, rtol=1e-3)


def test_updates_of_a_step_adapt_the_scale_once(monkeypatch):
    """Three finite updates double it, at the end of their step; any skipped one halves it."""
    monkeypatch.setattr(gradients, "GROWTH_INTERVAL", 3)
    guard = gradients.LossScaleGuard(is_dynamic=True)
    scales = []
    for step in ([True], [True], [True], [True] * 2, [True] * 2, [True, False, False, True]):
        for finite in step:
            guard.update(tf.constant(finite))
        guard.adapt()
        scales.append(float(guard.scale) / gradients.INITIAL_SCALE)
    assert scales == [1.0, 1.0, 2.0, 2.0, 4.0, 2.0]
    assert int(guard.num_skipped) == 2 and int(guard.num_good) == 0
    # A step may look for trainable variables in the optimizer, of which the guard is a part.
    assert len(guard.variables) == 3 and not guard.trainable_variables
    # Halving an infinite scale would leave it infinite; below 1, gradients would become smaller.
    for scale, finite in ((2.0**127, True), (1.0, False)):
        guard.scale.assign(scale)
        for _ in range(3):
            guard.update(tf.constant(finite))
        guard.adapt()
        assert float(guard.scale) == scale


@pytest.mark.cpu("TensorFlow has no momentum in bfloat16 for GPUs")
@pytest.mark.parametrize("dtype", [tf.float16, tf.bfloat16])
def test_clipping_of_large_half_gradients(dtype):
    """The square of the norm, 360,000, is infinite in float16."""
    learner = Learner(1, dtype, dtype, factor=1000.0, max_global_norm=0.75)
    learner.step([0.3] * 4)
    np.testing.assert_allclose(learner.value, START - RATE * 0.375, rtol=8e-3)


@pytest.mark.parametrize("bad", [3e38, np.nan])
def test_a_norm_that_overflows_is_skipped(bad):
    learner = Learner(1, tf.float32, tf.float32, max_global_norm=1.0, skip_nonfinite=True)
    learner.step([bad, 1.0, 3e38, 0.0])
    np.testing.assert_array_equal(learner.value, START)
    assert int(learner.optimizer.num_skipped) == 1


def test_a_gradient_too_large_for_its_parameter_is_skipped():
    learner = Learner(2, tf.float16, tf.float16, reduction="sum", skip_nonfinite=True)
    learner.step([0.0] * 4)
    learner.step([4e4] * 4)  # Finite on each replica; their sum, 80,000, overflows float16.
    np.testing.assert_array_equal(learner.value, START)
    assert int(learner.optimizer.num_skipped) == 1


@pytest.mark.parametrize("limit", [0.1, 100.0])
def test_clip_equals_numpy(limit):
    rng = np.random.default_rng(1)
    dense, rows = rng.normal(size=(3, 2)), rng.normal(size=(4, 2))
    indices = [0, 2, 0, 1]
    table = np.zeros([3, 2])
    np.add.at(table, indices, rows)
    slices = tf.IndexedSlices(tf.constant(rows), tf.constant(indices), tf.constant([3, 2]))
    got = gradients.clip([tf.constant(dense), None, slices], limit)
    assert got[1] is None
    want = reference.clip([dense, table], limit)
    np.testing.assert_allclose(got[0], want[0], rtol=1e-12)
    np.testing.assert_allclose(tf.convert_to_tensor(got[2]), want[1], rtol=1e-12)


@pytest.mark.parametrize("bad", [np.nan, -np.inf])
def test_one_bad_number_is_found_among_all(bad):
    good, spoiled = tf.constant([1.0, 2.0]), tf.constant([1.0, bad])

    def rows(values):
        return tf.IndexedSlices(values, tf.constant([3, 0]), tf.constant([5]))

    assert gradients.all_finite([good, None, rows(good)])
    assert not gradients.all_finite([good, None, rows(spoiled)])
    assert not gradients.all_finite([spoiled, None, rows(good)])


def test_a_half_loss_is_refused():
    with replicator(1).scope():
        optimizer = replicator(1).wrap_optimizer(rr.optimizers.Adam(), loss_scale="dynamic")
    with pytest.raises(rr.ConfigError, match="expected a loss in float32 to scale, got float16"):
        optimizer.scale_loss(tf.constant(1.0, tf.float16))


@pytest.mark.parametrize(
    ("indices", "shape"), [([], (2, 2)), ([3, 1, 3, 3], (2, 2)), ([3, 1, 3, 3], ())]
)
def test_rows_with_one_index_are_summed(indices, shape):
    """This also holds if they are merged again."""
    values = np.arange(1, 1 + len(indices) * math.prod(shape), dtype=np.float32)
    values = values.reshape(len(indices), *shape)
    merged = tf.IndexedSlices(tf.constant(values), tf.constant(indices, tf.int64), [5, *shape])
    expected = np.zeros([5, *shape], np.float32)
    np.add.at(expected, np.array(indices, int), values)
    for _ in range(2):
        merged = gradients.merge_rows(merged)
        sums, found = merged.values.numpy(), merged.indices.numpy()
        assert len(sums) == len(found) == len(indices) and set(found) == set(indices)
        for i in set(indices):  # One row has the sum, and the others are 0.
            first, *rest = sums[found == i]
            np.testing.assert_array_equal(first, expected[i])
            assert not np.any(rest)
