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


@pytest.mark.parametrize(("dtype", "epsilon"), [("float32", 1e-8), ("float64", 1e-2)])
def test_fused_adam_equals_sonnet(dtype, epsilon):
    arguments = {"learning_rate": 0.01, "beta1": 0.8, "beta2": 0.95, "epsilon": epsilon}
    ours = run(rr.optimizers.Adam(**{**arguments, "learning_rate": tf.Variable(0.01)}), dtype)
    theirs = run(snt.optimizers.Adam(**arguments), dtype)
    for got, want in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-6)


def test_adamw_also_decays_what_it_updates():
    used, unused = tf.Variable([2.0, 2.0]), tf.Variable(2.0)
    rr.optimizers.AdamW(0.1, 0.5).apply([tf.constant([1.0, -3.0]), None], [used, unused])
    np.testing.assert_allclose(used, [2 - 0.1 - 0.1, 2 + 0.1 - 0.1], rtol=1e-6)
    assert unused.numpy() == 2.0


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
