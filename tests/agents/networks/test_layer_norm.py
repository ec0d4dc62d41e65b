"""Layer normalisation against Sonnet's, whose gradient TensorFlow derives."""

import numpy as np
import sonnet as snt
import tensorflow as tf

from agents.networks.mlp import LayerNorm, layer_norm


def test_values_gradients_and_names_are_those_of_sonnet():
    random = np.random.default_rng(0)
    x = tf.constant(random.normal(3, 2, size=(7, 5)), tf.float32)
    upstream = tf.constant(random.normal(size=(7, 5)), tf.float32)
    results = []
    for module in (snt.LayerNorm(-1, True, True), LayerNorm()):
        module(x)
        assert [v.name for v in module.trainable_variables] == [
            "layer_norm/offset:0",
            "layer_norm/scale:0",
        ]
        module.scale.assign([0.5, 2, -1, 1, 3])
        module.offset.assign([0, 1, 2, 3, 4])
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = module(x)
        sources = [x, *module.trainable_variables]
        results.append([y, *tape.gradient(y, sources, output_gradients=upstream)])
    for expected, got in zip(*results, strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)


def test_constant_rows_have_finite_gradients():
    x = tf.ones([2, 3])
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = layer_norm(x, tf.ones([3]), tf.zeros([3]))
    np.testing.assert_array_equal(y, np.zeros((2, 3)))
    assert np.isfinite(tape.gradient(y, x)).all()
