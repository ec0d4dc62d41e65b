"""Building a step that assigns values of a replica's own data logs a warning."""

import logging

import pytest
import sonnet as snt
import tensorflow as tf

import rl_replicator as rr


def warned(caplog, step_fn, replicator):
    """Returns the warnings about the step when it is built."""
    caplog.clear()
    data = tf.data.Dataset.range(100).map(lambda i: tf.cast(tf.fill([4, 3], i), tf.float32))
    with caplog.at_level(logging.WARNING, logger="rl_replicator"):
        batches = data.unbatch().batch(4)  # Of a size unknown in the graph.
        replicator.replicate(step_fn, replicator.make_inputs(lambda context: batches))
    return caplog.text


@pytest.fixture
def replicator():
    return rr.make("multi_device:2")


CASES = {
    "local": (lambda v, x: v.assign(x[0, 0]), True),
    "added": (lambda v, x: v.assign_add(tf.reduce_mean(x)), True),
    # It is usually equal on all replicas, but not necessarily.
    "size": (lambda v, x: v.assign_add(tf.cast(tf.shape(x)[0], tf.float32)), True),
    "in part": (lambda v, x: v[...].assign(x[0, 0]), True),
    "through a cond": (
        lambda v, x: tf.cond(x[0, 0] > 0, lambda: v.assign_add(1.0), lambda: v.read_value()),
        True,
    ),
    "through a loop": (
        lambda v, x: v.assign(
            tf.while_loop(lambda i, y: i < 3, lambda i, y: (i + 1, y + x[0, 0]), (0, 0.0))[1]
        ),
        True,
    ),
    "through a dataset": (
        lambda v, x: v.assign(
            tf.data.Dataset.range(3)
            .flat_map(tf.data.Dataset.from_tensors)
            .reduce(x[0, 0], lambda y, i: y + tf.cast(i, tf.float32))
        ),
        True,
    ),
    "through a function": (lambda v, x: tf.function(lambda y: v.assign(y))(x[0, 0]), True),
    "overwritten": (
        lambda v, x: (v.assign(x[0, 0]), v.assign(rr.collectives.all_max(x[0, 0]))),
        False,
    ),
    "reduced": (lambda v, x: v.assign(rr.collectives.all_mean(x[0, 0])), False),
    "reduced in a cond": (
        lambda v, x: tf.cond(
            rr.collectives.all_max(x[0, 0]) > 0, lambda: v.assign_add(1.0), lambda: v.read_value()
        ),
        False,
    ),
    "counted": (lambda v, x: v.assign_add(1.0), False),
    "read": (lambda v, x: v * x, False),
}


@pytest.mark.parametrize("name", CASES)
def test_assignments(caplog, replicator, name):
    assign, is_local = CASES[name]
    with replicator.scope():
        variable = tf.Variable(0.0, name="v", trainable=False)

    def step_fn(x):
        assign(variable, x)

    assert ("'v:0'" in warned(caplog, step_fn, replicator)) == is_local


def test_a_learner_is_not_named(caplog, replicator):
    """Averaged gradients, their slots, a target network, statistics over all replicas, noise."""
    with replicator.scope():
        norm = rr.CrossReplicaBatchNorm(True, True)
        layer, target = snt.Linear(2), snt.Linear(2)
        for part in (layer, target):
            part(tf.zeros([1, 3]))
        norm(tf.zeros([1, 3]), is_training=True)
        keras = tf.keras.layers.BatchNormalization()
        keras(tf.zeros([1, 3]), training=True)
        optimizer = replicator.wrap_optimizer(rr.optimizers.Adam(0.1), max_global_norm=1.0)
        guarded = replicator.wrap_optimizer(snt.optimizers.Adam(0.1), skip_nonfinite=True)
        local = snt.BatchNorm(True, True, name="local")
        noise = tf.random.Generator.from_seed(1)
        local(tf.zeros([1, 3]), is_training=True)

    def step_fn(x):
        x += noise.normal(tf.shape(x))
        with tf.GradientTape(persistent=True) as tape:
            loss = tf.reduce_sum(layer(keras(norm(x, is_training=True), training=True)))
        for one in (optimizer, guarded):
            one.apply(tape.gradient(loss, layer.trainable_variables), layer.trainable_variables)
        for new, old in zip(layer.variables, target.variables, strict=True):
            old.assign(0.9 * old + 0.1 * new)

    assert warned(caplog, step_fn, replicator) == ""

    def with_local_statistics(x):
        local(x, is_training=True)

    text = warned(caplog, with_local_statistics, replicator)
    assert "local" in text and "moving_mean" in text
    assert "their copies may differ" in text and "all_mean(value) instead" in text
