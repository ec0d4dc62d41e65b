"""Batch norm on uneven replicas equals batch norm on one replica with all their examples."""

import functools

import numpy as np
import pytest
import sonnet as snt
import tensorflow as tf

import rl_replicator as rr
from rl_replicator import collectives
from rl_replicator.checkpoints import parts
from rl_replicator.layers import batch_norm

pytestmark = pytest.mark.usefixtures("plain_graphs")
SIZES = {1: [8], 2: [3, 5], 4: [1, 0, 5, 2]}
IMAGES = np.random.default_rng(0).normal(size=(8, 5, 5, 2)).astype(np.float32) + 3.0
ROWS = IMAGES.reshape(8, -1)[:, :6]


@functools.cache
def replicator(count):
    return rr.SingleDeviceReplicator() if count == 1 else rr.MultiDeviceReplicator(count)


def share(array, replica, count):
    """The rows of one replica."""
    start = sum(SIZES[count][:replica])
    return array[start : start + SIZES[count][replica]]


def compile_on(count, function):
    """A step of `function(replica number)`."""
    chosen = replicator(count)

    def step_fn(replica):
        return function(int(tf.get_static_value(replica) or 0))

    step_fn = tf.autograph.experimental.do_not_convert(step_fn)
    return chosen.replicate(step_fn, chosen.make_inputs(lambda context: collectives.replica_id))


def test_one_replica_equals_sonnet():
    ours = rr.CrossReplicaBatchNorm(True, True, decay_rate=0.9)
    theirs = snt.BatchNorm(True, True, decay_rate=0.9)
    # For images, Sonnet's fused kernel would keep the unbiased variance.
    for i in range(3):
        got, expected = ours(ROWS * i, is_training=True), theirs(ROWS * i, is_training=True)
        np.testing.assert_allclose(got, expected, 1e-5, 1e-5)
    for is_local in (False, True):
        got, expected = (norm(ROWS + 1.0, False, is_local) for norm in (ours, theirs))
        np.testing.assert_allclose(got, expected, 1e-5, 1e-5)
    names = [parts.TrackablePart(norm=norm).variables() for norm in (ours, theirs)]
    shapes = [{name: tuple(v.shape) for name, v in found.items()} for found in names]
    assert shapes[0] == shapes[1]


def test_variance_of_values_far_from_zero():
    # In float32, the difference of two sums of squares would give 0, or worse.
    x = tf.constant([[10000.0], [10001.0], [10002.0], [10003.0]])
    split = tf.stack([batch_norm.moments(part, (0,)) for part in (x[:1], x[1:])])
    mean, variance = batch_norm.combine(split)
    assert (mean.numpy().tolist(), variance.numpy().tolist()) == ([10001.5], [1.25])


def test_moments_of_one_value_and_of_none():
    one = batch_norm.moments(tf.constant([[5.0, -7.0]]), (0,))
    none = batch_norm.moments(tf.zeros([0, 2]), (0,))
    assert (one.numpy().tolist(), none.numpy().tolist()) == ([1, 5, -7, 0, 0], [0] * 5)
    for rows, expected in (([one, none], [5, -7]), ([one], [5, -7]), ([none, none], [0, 0])):
        mean, variance = batch_norm.combine(tf.stack(rows))
        assert (mean.numpy().tolist(), variance.numpy().tolist()) == (expected, [0, 0])


def test_a_model_is_built_from_the_batch_that_it_is_given():
    """Outside of steps there are no other replicas, although the strategy has two."""
    with replicator(2).scope():
        norm = rr.CrossReplicaBatchNorm(True, True)
        got = norm(ROWS, True)
    np.testing.assert_allclose(got, (ROWS - ROWS.mean(0)) / ROWS.std(0), 1e-3, 1e-4)


def test_defaults():
    norm = rr.CrossReplicaBatchNorm(True, True)
    for i, x in enumerate(([[-1e-3], [1e-3]], [[3.0], [5.0]])):
        y = norm(np.array(x, np.float32), True)
        if i == 0:  # So small that epsilon, 1e-5, matters.
            np.testing.assert_allclose(y, np.array(x) / np.sqrt(1e-6 + 1e-5), 1e-4)
    # Averages with a decay of 0.999, and with bias correction.
    mean, variance = (metric.value[0, 0] for metric in (norm.moving_mean, norm.moving_variance))
    np.testing.assert_allclose([mean, variance], [4 / 1.999, (1 + 0.999e-6) / 1.999], 1e-4)
    # These averages are used when not training.
    y = norm(np.array([[7.0]], np.float32), False)
    np.testing.assert_allclose(y, [[(7 - mean) / np.sqrt(variance + 1e-5)]], 1e-4)


@pytest.mark.parametrize(
    ("data_format", "shape"),
    [("NWC", [2]), ("NCHW", [3, 1, 1])],
)
def test_every_channel_has_a_scale_and_an_offset(data_format, shape):
    norm = rr.CrossReplicaBatchNorm(
        True,
        True,
        scale_init=snt.initializers.Constant(2.0),
        offset_init=snt.initializers.Constant(1.0),
        data_format=data_format,
    )
    x = np.random.default_rng(0).normal(size=(4, 3, 5, 2)).astype(np.float32)
    others = tuple(i for i in range(4) if i != (3 if shape == [2] else 1))
    y = norm(x, True)
    assert norm.scale.shape == norm.offset.shape == shape
    np.testing.assert_allclose(tf.reduce_mean(y, others), np.ones(max(shape)), 1e-5)
    np.testing.assert_allclose(tf.math.reduce_std(y, others), np.full(max(shape), 2.0), 1e-4)


def test_a_moving_average_goes_back_to_its_start():
    average = batch_norm.MovingAverage(0.75, 2.0)
    average(tf.constant([4.0, 8.0], "float16"))
    np.testing.assert_allclose(average.value, [2.5, 3.5])
    average.reset()
    np.testing.assert_allclose(average.value, [2.0, 2.0])


def test_float64_is_normalized_in_float64():
    norm = rr.CrossReplicaBatchNorm(True, True, eps=0.0)
    x = np.random.default_rng(0).normal(size=(8, 3))
    for is_training, tolerance in ((True, 1e-12), (False, 1e-5)):  # Averages are float32.
        y = tf.function(norm)(x, is_training)  # As in a step; there, dtypes must agree.
        assert y.dtype == tf.float64
        np.testing.assert_allclose(y, (x - x.mean(0)) / x.std(0), tolerance, tolerance)


def test_statistics_of_halves_are_float32():
    dtype, chosen = "bfloat16", replicator(2)
    with chosen.scope():
        norm = rr.CrossReplicaBatchNorm(True, False, decay_rate=0.5)
    step = compile_on(2, lambda i: norm(tf.cast(share(ROWS, i, 2)[:3], dtype), True))
    assert chosen.gather(step()).dtype == tf.as_dtype(dtype).as_numpy_dtype
    assert {v.dtype for v in norm.variables} == {tf.float32, tf.int64}
    x = tf.cast(np.concatenate([ROWS[:3], ROWS[3:6]]), dtype).numpy().astype(np.float32)
    np.testing.assert_allclose(norm.moving_mean.value[0], x.mean(0), 1e-6)
    np.testing.assert_allclose(norm.moving_variance.value[0], x.var(0), 1e-5)


def test_plain_moving_averages_and_channels_first():
    norm = rr.CrossReplicaBatchNorm(
        False,
        False,
        batch_norm.MovingAverage(0.75, 0.0),
        batch_norm.MovingAverage(0.75, 1.0),
        data_format="channels_first",
    )
    x = np.moveaxis(IMAGES, -1, 1)
    norm(x, is_training=True)
    mean, variance = x.mean((0, 2, 3)), x.var((0, 2, 3))
    np.testing.assert_allclose(norm.moving_mean.value[0, :, 0, 0], 0.25 * mean, 1e-5)
    np.testing.assert_allclose(norm.moving_variance.value[0, :, 0, 0], 0.75 + 0.25 * variance, 1e-5)
    assert not any(variable.trainable for variable in norm.variables)
    got = norm(x, False, True, scale=2.0, offset=1.0)
    centred = (x - mean[:, None, None]) / np.sqrt(variance[:, None, None] + 1e-5)
    np.testing.assert_allclose(got, 2 * centred + 1, 1e-4, 1e-4)


def keras_state(count, synchronized):
    """Moving statistics of every replica after two steps of Keras's layer, and the outputs."""
    chosen = replicator(count)
    with chosen.scope():
        layer = tf.keras.layers.BatchNormalization(momentum=0.5, synchronized=synchronized)
        layer.build([None, 6])
        idle = tf.Variable([1.0], trainable=False, aggregation=tf.VariableAggregation.MEAN)
    statistics = [layer.moving_mean, layer.moving_variance]

    def step_fn(replica):
        y = layer(tf.constant(ROWS[replica * 8 // count : (replica + 1) * 8 // count]), True)
        return y, idle + 0.0

    step = compile_on(count, step_fn)
    step()
    outputs = chosen.gather(step()[0]).reshape(8, 6)
    copies = [[c.numpy() for c in getattr(v, "values", (v,))] for v in statistics]
    for mine in copies:
        for copy in mine:
            np.testing.assert_array_equal(copy, mine[0])
    return outputs, [mine[0] for mine in copies]


def test_keras_statistics_are_averaged(monkeypatch):
    exchanged = []
    all_mean = collectives.all_mean
    monkeypatch.setattr(
        batch_norm.collectives, "all_mean", lambda x: exchanged.append(len(x)) or all_mean(x)
    )
    outputs, (mean, variance) = keras_state(2, synchronized=False)
    halves = [ROWS[:4], ROWS[4:]]
    expected = np.concatenate([(x - x.mean(0)) / np.sqrt(x.var(0) + 1e-3) for x in halves])
    np.testing.assert_allclose(outputs, expected, 1e-4, 1e-4)  # Each with its own statistics.
    np.testing.assert_allclose(mean, 0.75 * np.mean([x.mean(0) for x in halves], 0), 1e-5)
    np.testing.assert_allclose(variance, 0.25 + 0.75 * np.mean([x.var(0) for x in halves], 0), 1e-5)
    assert set(exchanged) == {2}  # Neither the scale nor the idle variable.


def test_a_gradient_has_a_gradient():
    """As a gradient penalty takes it."""
    found = []
    for count in (1, 2):
        with replicator(count).scope():
            norm = rr.CrossReplicaBatchNorm(True, True)
            norm(ROWS, is_training=False)

        def step_fn(replica, count=count, norm=norm):
            x = tf.constant(share(ROWS, replica, count))
            with tf.GradientTape() as outer:
                outer.watch(x)
                with tf.GradientTape() as inner:
                    inner.watch(x)
                    y = tf.reduce_sum(tf.sin(norm(x, is_training=True)))
                # Of squares, the part through the mean would be 0, as is the sum of a gradient.
                penalty = tf.reduce_sum(inner.gradient(y, x) ** 3)
            return tf.pad(outer.gradient(penalty, x), [[0, 8 - x.shape[0]], [0, 0]])

        outputs = replicator(count).gather(compile_on(count, step_fn)())
        pairs = zip(outputs, SIZES[count], strict=True)
        found.append(np.concatenate([rows[:size] for rows, size in pairs]))
    np.testing.assert_allclose(found[1], found[0], rtol=1e-3, atol=1e-4)


def test_sonnets_statistics_are_averaged_after_each_step():
    """As Sonnet's networks make them; each replica normalizes by its own batch."""
    chosen = replicator(2)
    with chosen.scope():
        layers = [snt.BatchNorm(True, True, decay_rate=0.75) for _ in range(2)]
        scale = tf.Variable(1.0, trainable=False)

    def step_fn(replica):
        x = scale * tf.constant(ROWS[replica * 4 : (replica + 1) * 4])
        return [layer(x * factor, True) for layer, factor in zip(layers, (1.0, 2.0), strict=True)]

    step = compile_on(2, step_fn)
    halves, expected = [ROWS[:4], ROWS[4:]], np.zeros(6)
    for count in range(1, 21):
        with chosen.scope():
            scale.assign(count)
        outputs = step()
        means = np.mean([count * x.mean(0) for x in halves], 0)
        expected += (means - expected) * 0.25
        for layer, factor in zip(layers, (1.0, 2.0), strict=True):
            first, second = (copy.numpy() for copy in layer.moving_mean.average.values)
            np.testing.assert_array_equal(first, second)
            moved = factor * expected / (1 - 0.75**count)
            np.testing.assert_allclose(first.ravel(), moved, 1e-4)
    own = [(x - x.mean(0)) / x.std(0) for x in halves]
    np.testing.assert_allclose(
        chosen.gather(outputs[0]).reshape(8, 6), np.concatenate(own), atol=1e-3
    )


def test_misuse_has_one_line():
    with pytest.raises(rr.ConfigError, match="no scale_init without create_scale"):
        rr.CrossReplicaBatchNorm(False, True, scale_init=snt.initializers.Ones())
    with pytest.raises(rr.ConfigError, match="data_format such as"):
        rr.CrossReplicaBatchNorm(False, True, data_format="HWC")
    with pytest.raises(rr.ConfigError, match="data_format such as"):
        rr.CrossReplicaBatchNorm(False, True, data_format="NHW")
    norm = rr.CrossReplicaBatchNorm(False, True)
    with pytest.raises(rr.ConfigError, match="expected floating inputs of batch norm, got uint8"):
        norm(IMAGES.astype(np.uint8), True)
    with pytest.raises(rr.ConfigError, match="no scale or offset beside"):
        norm(ROWS, True, offset=1.0)


def uncorrected():
    return rr.CrossReplicaBatchNorm(
        True, True, batch_norm.MovingAverage(0.9, 0.0), batch_norm.MovingAverage(0.9, 1.0)
    )


@pytest.mark.parametrize(
    ("kind", "reduction", "count"),
    [
        (lambda: rr.CrossReplicaBatchNorm(True, True, decay_rate=0.9), "mean", 2),
        (uncorrected, "none", 2),
        (lambda: tf.keras.layers.BatchNormalization(momentum=0.9), "none", 2),
        (lambda: snt.BatchNorm(True, True, decay_rate=0.9), "mean", 1),
        (lambda: snt.BatchNorm(True, True, decay_rate=0.9), "none", 2),
    ],
    ids=["ours", "without correction", "keras", "sonnet", "sonnet on replicas"],
)
def test_a_skipped_step_keeps_the_statistics(kind, reduction, count):
    """A NaN in the data must not stay in the moving averages, which the next step updates.

    This also holds if the step reduces the gradients itself, and applies them in a branch.
    """
    chosen = replicator(count)
    with chosen.scope():
        norm = kind()
        optimizer = chosen.wrap_optimizer(
            snt.optimizers.SGD(0.1), reduction=reduction, skip_nonfinite=True
        )
        is_due = tf.Variable(True, trainable=False)
        spoiled = tf.Variable(0.0, trainable=False)
        seen = tf.Variable(0.0, trainable=False)
        is_keras = isinstance(norm, tf.keras.layers.Layer)
        apply = (lambda x, t: norm(x, training=t)) if is_keras else norm
        apply(tf.zeros([2, 6]), False)

    def step_fn(replica):
        x = tf.constant(share(ROWS, replica, count)) + spoiled
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(apply(x, True)))
        parameters = norm.trainable_variables
        gradients = tape.gradient(loss, parameters)
        if reduction == "none":
            gradients = collectives.all_mean(gradients)
            tf.cond(is_due, lambda: optimizer.apply(gradients, parameters), lambda: None)
        else:
            optimizer.apply(gradients, parameters)
        # What the rest of the step reads is restored already.
        seen.assign(tf.reduce_sum([tf.reduce_sum(tf.cast(v, tf.float32)) for v in norm.variables]))

    def state():
        return [v.numpy() for v in norm.variables]

    step = compile_on(count, step_fn)
    with chosen.scope():
        spoiled.assign(float("nan"))
    start = state()
    step()
    for before, after in zip(start, state(), strict=True):
        np.testing.assert_array_equal(before, after)
    assert np.isfinite(seen.numpy())
    with chosen.scope():
        spoiled.assign(0.0)
    step()
    assert int(optimizer.num_skipped) == 1
    moved = [not np.array_equal(a, b) for a, b in zip(start, state(), strict=True)]
    assert all(moved) and np.isfinite(np.concatenate([v.ravel() for v in state()])).all()
