"""The fused Adam against Sonnet's, and the wrapped optimizers."""

import numpy as np
import pytest
import sonnet as snt
import tensorflow as tf

import rl_replicator as rr

SHAPES = ((3, 4), (4,), ())


def run(optimizer, dtype="float32", steps=20):
    variables = [tf.Variable(tf.ones(shape, dtype)) for shape in SHAPES]
    rng = np.random.default_rng(0)
    for step in range(steps):
        updates = [tf.constant(rng.normal(size=shape), dtype) for shape in SHAPES]
        if step % 3 == 0:
            updates[1] = None
        optimizer.apply(updates, variables)
    return [x.numpy() for x in [*variables, *optimizer.m, *optimizer.v]]


@pytest.mark.parametrize("epsilon", [1e-8, 1e-2])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_fused_adam_equals_sonnet(dtype, epsilon):
    arguments = {"learning_rate": 0.01, "beta1": 0.8, "beta2": 0.95, "epsilon": epsilon}
    ours = run(rr.optimizers.Adam(**{**arguments, "learning_rate": tf.Variable(0.01)}), dtype)
    theirs = run(snt.optimizers.Adam(**arguments), dtype)
    for got, want in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-6)


def test_first_step_by_hand():
    # m_hat = g and v_hat = g^2, so the first step is lr * g / (|g| + eps).
    variable = tf.Variable([1.0, 1.0])
    rr.optimizers.Adam(0.1, epsilon=1.0).apply([tf.constant([1.0, -3.0])], [variable])
    np.testing.assert_allclose(variable.numpy(), [1 - 0.1 * 0.5, 1 + 0.1 * 0.75], rtol=1e-6)


def test_adamw_also_decays_what_it_updates():
    decayed = run(rr.optimizers.AdamW(0.01, weight_decay=0.3))
    plain = run(rr.optimizers.Adam(0.01))
    for number, (got, want) in enumerate(zip(decayed, plain, strict=True)):
        if number >= len(SHAPES):  # The slots.
            np.testing.assert_array_equal(got, want)
    # Of 20 updates of a variable, 7 are None.
    for index, updates in ((0, 20), (1, 13)):
        assert np.abs(decayed[index] - plain[index]).min() > 0.5 * (1 - 0.997**updates)
    variable = tf.Variable([2.0, 2.0])
    optimizer = rr.optimizers.AdamW(0.1, 0.5)
    optimizer.apply([tf.constant([1.0, -3.0])], [variable])
    np.testing.assert_allclose(variable, [2 - 0.1 - 0.1, 2 + 0.1 - 0.1], rtol=1e-6)


def test_fused_adam_with_sparse_rows():
    def trained(kind):
        """A table beside a vector, whose gradient is dense."""
        table, vector = tf.Variable(tf.ones([4, 2])), tf.Variable(tf.ones([2]))
        optimizer = kind(0.1, epsilon=1e-2)
        for i in range(5):
            rows = tf.IndexedSlices(i * tf.ones([2, 2]), tf.constant([i % 4, i % 4]), [4, 2])
            optimizer.apply([rows, tf.constant([1.0, -i])], [table, vector])
        return [x.numpy() for x in [table, vector, optimizer.step, *optimizer.m, *optimizer.v]]

    for got, want in zip(trained(rr.optimizers.Adam), trained(snt.optimizers.Adam), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-6)


def test_a_dense_gradient_beside_sparse_rows_takes_one_operation():
    """So two workers that update one vector at the same time lose nothing."""
    table, vector = tf.Variable(tf.ones([4, 2])), tf.Variable(tf.ones([2]))
    optimizer = rr.optimizers.Adam(0.1)

    @tf.function
    def step():
        rows = tf.IndexedSlices(tf.ones([1, 2]), tf.constant([1]), [4, 2])
        optimizer.apply([rows, tf.ones([2])], [table, vector])

    graph = step.get_concrete_function().graph
    (handle,) = [inner for outer, inner in graph.captures if outer is vector.handle]
    assert [op.type for op in handle.consumers()] == ["ResourceApplyAdam"]


def test_parameters_that_would_become_nan_are_refused():
    half = tf.Variable([1.0, 0.0], dtype=tf.bfloat16, name="half")
    with pytest.raises(rr.ConfigError, match="got 'half:0' in bfloat16; keep it in float32"):
        rr.optimizers.Adam().apply([2 * half], [half])
