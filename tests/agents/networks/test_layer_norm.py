"""Layer normalisation against Sonnet's, whose gradient TensorFlow derives."""

import numpy as np
import sonnet as snt
import tensorflow as tf

from agents.networks.mlp import LayerNorm, layer_norm, layer_norm_mlp, narrow_layer_norm


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


def test_for_few_inputs_it_is_the_same_but_for_rounding():
    random = np.random.default_rng(0)

    def draw(*shape):
        return tf.constant(random.normal(0.5, 1, shape), tf.float32)

    x, w, b, scale, offset = sources = [draw(7, 3), draw(3, 40), draw(40), draw(40), draw(40)]
    upstream = draw(7, 40)
    results = []
    for function in (
        lambda: layer_norm(x @ w + b, scale, offset),
        lambda: narrow_layer_norm(*sources),
    ):
        with tf.GradientTape() as tape:
            tape.watch(sources)
            y = function()
        results.append([y, *tape.gradient(y, sources, output_gradients=upstream)])
    for expected, got in zip(*results, strict=True):
        assert np.abs(expected).max() > 1  # Much more than the tolerance.
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)


def test_a_torso_takes_either_for_the_same_results():
    torso = layer_norm_mlp([64, 5], "torso")
    torso(tf.zeros([1, 3]))
    names = {variable.name: tuple(variable.shape) for variable in torso.variables}
    random = np.random.default_rng(0)
    for variable in torso.variables:
        variable.assign(random.normal(0.2, 0.5, variable.shape))
    x = tf.constant(random.normal(1, 3, (128, 3)), tf.float32)

    def run(signature):
        """Returns the loss and its gradients, and whether the inputs were joined with ones."""

        @tf.function(autograph=False, input_signature=[signature])
        def call(inputs):
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(tf.square(torso(inputs)))
            return loss, *tape.gradient(loss, torso.trainable_variables)

        assert {v.name: tuple(v.shape) for v in torso.variables} == names
        graph = call.get_concrete_function().graph
        return call(x), [op.type for op in graph.get_operations()].count("ConcatV2")

    wide, none = run(tf.TensorSpec([None, 3]))
    narrow, two = run(tf.TensorSpec([128, 3]))
    assert (none, two) == (0, 2)
    for expected, got in zip(wide, narrow, strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-3)
