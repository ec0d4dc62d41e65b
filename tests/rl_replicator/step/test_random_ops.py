"""Which operations draw numbers that a resumed run cannot draw again."""

import numpy as np
import pytest
import tensorflow as tf

from rl_replicator import errors
from rl_replicator.step import random_ops

IMAGE = np.arange(400.0, dtype=np.float32).reshape(1, 20, 20, 1)


def pooled(**options):
    # Not a constant, because TensorFlow would pool a constant only once.
    image = IMAGE * tf.cast(tf.timestamp() > 0, tf.float32)
    return tf.nn.fractional_max_pool(image, 1.4, True, **options)[0]


DRAWN = {
    "RandomStandardNormal": lambda: tf.random.normal([4]),
    "RandomUniform": lambda: tf.nn.dropout(tf.ones([64]), 0.5),
    "FractionalMaxPool": pooled,
}
REPEATED = {
    "stateless": lambda: tf.random.stateless_normal([4], [1, 2]),
    "of fixed regions": lambda: pooled(seed=3),
}


def traced(function):
    return tf.function(function, autograph=False).get_concrete_function()


def check(function):
    with random_ops.refused("a step", "draw them elsewhere"):
        random_ops.check(function)


@pytest.mark.parametrize(("name", "is_nested"), zip(DRAWN, [False, True, False], strict=True))
def test_an_operation_that_draws_is_refused(name, is_nested):
    function = traced(tf.function(DRAWN[name]) if is_nested else DRAWN[name])
    random_ops.check(function)  # Outside of the context, anything goes.
    match = rf"a step whose .* found {name} \(.*\); draw them elsewhere"
    with pytest.raises(errors.ConfigError, match=match):
        check(function)
    draws = {bytes(function().numpy()) for _ in range(3)}
    assert len(draws) > 1  # Otherwise there would be nothing to refuse.


@pytest.mark.parametrize("name", REPEATED)
def test_an_operation_that_repeats_is_not(name):
    function = traced(REPEATED[name])
    check(function)
    assert len({bytes(function().numpy()) for _ in range(3)}) == 1


def test_generators_and_recurrent_layers_are_not():
    generator = tf.random.Generator.from_seed(1)
    check(traced(lambda: generator.normal([4])))
    layer = tf.keras.layers.LSTM(5)
    layer(tf.zeros([2, 3, 4]))  # Creates the weights.
    # On GPUs, it is an operation that could drop units.
    check(traced(lambda: layer(tf.zeros([2, 3, 4]), training=True)))
