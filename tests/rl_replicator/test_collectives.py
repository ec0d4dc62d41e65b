"""Every collective against NumPy, values and gradients, on 1, 2 and 4 replicas."""

import functools

import hypothesis
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import strategies as st

import rl_replicator as rr
from rl_replicator import collectives

COUNTS = (1, 2, 4)
DTYPES = ("float32", "float64", "int32", "int64", "bfloat16")
shapes = st.lists(st.integers(0, 3), max_size=3).map(tuple)
quick = hypothesis.settings(
    max_examples=5,  # Each compiles a step.
    deadline=None,
    derandomize=True,
    database=None,
    phases=[hypothesis.Phase.explicit, hypothesis.Phase.generate],
)


@functools.cache
def replicator(count):
    return rr.SingleDeviceReplicator() if count == 1 else rr.MultiDeviceReplicator(count)


def on_replicas(count, function):
    """Runs `function(replica number)` on each replica; the outputs, stacked over replicas."""
    chosen = replicator(count)
    inputs = chosen.make_inputs(lambda context: collectives.replica_id)
    return chosen.gather(chosen.replicate(function, inputs)())


def values(seed, count, shape, dtype):
    """[count] + shape small integers, which every dtype holds and adds exactly."""
    rng = np.random.default_rng(seed)
    return rng.integers(-8, 8, size=(count, *shape)).astype(tf.as_dtype(dtype).as_numpy_dtype)


REDUCTIONS = {
    "sum": lambda x: x.astype(np.float64).sum(0),
    "min": lambda x: x.astype(np.float64).min(0),
    "max": lambda x: x.astype(np.float64).max(0),
}


@pytest.mark.parametrize("count", COUNTS)
@quick
@hypothesis.given(
    shapes, st.lists(st.sampled_from(DTYPES), min_size=1, max_size=3), st.integers(0, 99)
)
def test_nests_of_mixed_dtypes(count, shape, dtypes, seed):
    xs = [values(seed + i, count, shape, dtype) for i, dtype in enumerate(dtypes)]

    def step_fn(replica):
        nest = {"list": [tf.constant(x)[replica] for x in xs], "none": None}
        return {
            "gather": collectives.all_gather(nest),
            "broadcast": collectives.broadcast(nest, count - 1),
            **{op: collectives.all_reduce(nest, op) for op in REDUCTIONS},
        }

    results = on_replicas(count, step_fn)
    for name, result in results.items():
        assert result["none"] is None
        for got, x in zip(result["list"], xs, strict=True):
            assert got.dtype == x.dtype
            for replica in range(count):
                if name == "gather":
                    expected = x
                elif name == "broadcast":
                    expected = x[-1]
                else:
                    expected = REDUCTIONS[name](x)
                np.testing.assert_array_equal(got[replica].astype(np.float64), expected)


@pytest.mark.parametrize("count", COUNTS)
@quick
@hypothesis.given(shapes, st.sampled_from(("float32", "float64", "bfloat16")), st.integers(0, 99))
def test_mean(count, shape, dtype, seed):
    x = values(seed, count, shape, dtype)
    got = on_replicas(count, lambda i: collectives.all_mean(tf.constant(x)[i]))
    for replica in range(count):
        np.testing.assert_array_equal(got[replica].astype(np.float64), x.astype(np.float64).mean(0))


@pytest.mark.parametrize("count", COUNTS)
@quick
@hypothesis.given(st.integers(1, 6), st.integers(0, 99))
def test_maps(count, length, seed):
    xs = values(seed, length, (3,), "float32")
    items = list(xs)

    def step_fn(replica):
        def function(x):
            return {"square": x * x, "first": x[0]}

        return {
            "gather": collectives.map_gather(function, items),
            **{op: collectives.map_reduce(function, items, op) for op in collectives.OPS},
        }

    results = on_replicas(count, step_fn)
    for replica in range(count):
        got = [item["square"][replica] for item in results["gather"]]
        np.testing.assert_array_equal(got, xs**2)
        np.testing.assert_array_equal(
            [item["first"][replica] for item in results["gather"]], xs[:, 0]
        )
        for op in collectives.OPS:
            np.testing.assert_allclose(
                results[op]["square"][replica], getattr(np, op)(xs**2, axis=0), rtol=1e-6
            )


def gradients(count, collective, weights):
    """d sum_i(weights_i . collective(x)_i) / d x, on each replica."""

    def step_fn(replica):
        x = tf.constant([1.0, 2.0, 3.0]) * tf.cast(replica + 1, tf.float32)
        with tf.GradientTape() as tape:
            tape.watch(x)
            loss = tf.reduce_sum(collective(x) * tf.constant(weights)[replica])
        return tape.gradient(loss, x)

    return on_replicas(count, step_fn)


@pytest.mark.parametrize("count", COUNTS)
def test_gradients(count):
    rng = np.random.default_rng(0)
    w = rng.normal(size=(count, 3)).astype(np.float32)
    check = functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6)
    total = np.broadcast_to(w.sum(0), (count, 3))
    check(gradients(count, collectives.all_sum, w), total)
    check(gradients(count, collectives.all_mean, w), total / count)
    only = np.zeros_like(w)
    only[-1] = w.sum(0)
    check(gradients(count, lambda x: collectives.broadcast(x, count - 1), w), only)
    check(gradients(count, collectives.all_max, w), only)  # The last replica has the largest.
    first = np.zeros_like(w)
    first[0] = w.sum(0)
    check(gradients(count, collectives.all_min, w), first)
    wide = rng.normal(size=(count, count, 3)).astype(np.float32)
    check(gradients(count, collectives.all_gather, wide), wide.sum(0))


@pytest.mark.parametrize("count", COUNTS)
def test_sparse_rows_add_up(count):
    def step_fn(replica):
        rows = tf.IndexedSlices(tf.ones([1, 2]), tf.reshape(replica, [1]), tf.constant([count, 2]))
        return tf.convert_to_tensor(collectives.all_sum([rows])[0])

    got = on_replicas(count, step_fn)
    np.testing.assert_array_equal(got, np.ones([count, count, 2]))


@pytest.mark.parametrize("count", COUNTS)
def test_numbers_of_replicas(count):
    got = on_replicas(count, lambda i: (collectives.replica_id(), collectives.num_replicas()))
    assert got[0].tolist() == list(range(count))
    assert got[1].tolist() == [count] * count


def test_empty_nests_pass():
    assert on_replicas(2, lambda i: {"a": collectives.all_sum({"x": None, "y": []}), "i": i})[
        "a"
    ] == {
        "x": None,
        "y": [],
    }


def test_misuse_has_one_line():
    with pytest.raises(rr.ConfigError, match="expected an op out of"):
        collectives.all_reduce(tf.constant(1.0), "median")
    with pytest.raises(rr.ConfigError, match=r"source_replica in \[0, 1\), got 1"):
        collectives.broadcast(tf.constant(1.0), 1)
    with pytest.raises(rr.ConfigError, match="at least one item"):
        collectives.map_reduce(tf.square, [])
    with replicator(2).scope(), pytest.raises(rr.ConfigError, match="inside a replicated step"):
        collectives.all_sum(tf.constant(1.0))
