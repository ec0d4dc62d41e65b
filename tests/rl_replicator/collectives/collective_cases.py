"""The expected values and gradients of every collective, in NumPy, for any kind of replicator."""

import numpy as np
import tensorflow as tf

from rl_replicator import collectives

FLOATS = ("float32", "float64", "float16", "bfloat16", "complex64")
# Every dtype; scalars, matrices, an empty array, and axes of length 1.
FIXED = [
    *(((2,), "float32"), ((3, 0, 2), "float32"), ((2, 2), "complex64"), ((2, 1, 3), "bfloat16")),
    *(((1,), "int64"), ((2, 3), "float64"), ((2, 3), "int32"), ((2, 3), "uint8"), ((2, 3), "bool")),
    *(((), dtype) for dtype in ("float32", "float16", "complex64", "uint64")),
]


def has_order(x):
    return x.dtype.kind != "c"


def is_float(x):
    return tf.as_dtype(x.dtype).name in FLOATS


def draw(seed, count, specs):
    """For each (shape, dtype) the values of all replicas, [count, ...]: exact in every dtype."""
    rng = np.random.default_rng(seed)
    arrays = []
    for shape, dtype in specs:
        x = rng.integers(-8, 8, size=(count, *shape))
        if dtype == "bool":
            x = x > 0
        elif dtype == "complex64":
            x = x + 1j * rng.integers(-8, 8, size=x.shape)
        elif dtype.startswith("u"):
            x = x + 8
        arrays.append(x.astype(tf.as_dtype(dtype).as_numpy_dtype))
    return arrays


def collectives_of(x, count):
    """Name -> collective, for all collectives that accept `x`."""
    found = {
        "mean": collectives.all_mean,
        "gather": collectives.all_gather,
        "broadcast": lambda y: collectives.broadcast(y, count - 1),
    }
    if x.dtype.kind != "b":
        found["sum"] = collectives.all_sum
    if has_order(x):
        found.update(min=collectives.all_min, max=collectives.all_max)
    return found


def weights(x, name, seed):
    """The weights of each replica's loss over a collective's result, [count, ...]."""
    rng = np.random.default_rng(seed)
    shape = (x.shape[0], *x.shape) if name == "gather" else x.shape
    return rng.integers(-4, 4, size=shape).astype(np.float32)


def make_step(xs, count, seed):
    """Returns a step function that computes each collective of a nest of arrays, and gradients."""
    names = ("sum", "mean", "min", "max", "gather", "broadcast")

    def step_fn(replica):
        results = {}
        for name in names:
            chosen = [i for i, x in enumerate(xs) if name in collectives_of(x, count)]
            with tf.GradientTape() as tape:
                inputs = {i: tf.constant(xs[i])[replica] for i in chosen}
                tape.watch(inputs)
                nest = {"some": inputs, "none": [None], "empty": []}
                outputs = collectives_of(xs[0], count)[name](nest)
                loss = 0.0
                for i in chosen:
                    if is_float(xs[i]):
                        w = tf.constant(weights(xs[i], name, seed))[replica]
                        value = tf.math.real(outputs["some"][i])
                        loss += tf.reduce_sum(tf.cast(value, tf.float32) * w)
            floats = {i: x for i, x in inputs.items() if is_float(xs[i])}
            results[name] = {"nest": outputs, "gradients": tape.gradient(loss, floats)}
        return results

    return step_fn


def value(x, name, count):
    """The expected result on each replica."""
    wide = x.astype(np.complex128 if x.dtype.kind == "c" else np.float64)
    if name == "gather":
        return wide
    if name == "broadcast":
        return wide[-1]
    return getattr(np, name)(wide, axis=0)


def gradient(x, name, seed):
    """The expected gradient of each replica's value, [count, ...]; its real part if complex."""
    w = weights(x, name, seed)
    count = x.shape[0]
    total = np.broadcast_to(w.sum(0), w.shape)
    if name == "gather":
        return w.sum(0)
    if name == "broadcast":
        only = np.zeros_like(w)
        only[-1] = w.sum(0)
        return only
    if name == "sum":
        return total
    if name == "mean":
        return total / count
    wide = x.astype(np.float64)
    shares = wide == getattr(np, name)(wide, axis=0)
    return total * shares / shares.sum(0)


def check(results, xs, count, seed):
    """Checks the step's results, which `Replicator.gather` has stacked: [count] + shape."""
    for name, result in results.items():
        assert result["nest"]["none"] == [None] and result["nest"]["empty"] == []
        for i, got in result["nest"]["some"].items():
            x = xs[i]
            if name == "mean" and not is_float(x):
                assert got.dtype == np.float32
            else:
                assert got.dtype == x.dtype
            expected = value(x, name, count)
            tolerance = 1e-2 if got.dtype.itemsize == 2 else 1e-6
            for replica in range(count):
                mine = got[replica].astype(expected.dtype)
                np.testing.assert_allclose(mine, expected, tolerance, err_msg=f"{name} {x.dtype}")
        for i, got in result["gradients"].items():
            mine = np.real(got) if got.dtype.kind == "c" else got.astype(np.float32)
            expected = gradient(xs[i], name, seed)
            tolerance = 1e-2 if got.dtype.itemsize == 2 else 1e-6
            np.testing.assert_allclose(mine, expected, tolerance, err_msg=f"{name} {xs[i].dtype}")


def slices_step(count):
    """Rows of an embedding: replica i looks up i + 2 rows with duplicates, of unknown number."""

    def step_fn(replica):
        number = replica + 2
        indices = tf.range(number) % 2 + replica  # [number]
        values = tf.cast(indices, tf.float32)[:, tf.newaxis] * [1.0, 10.0] + 1.0
        results = {}
        for name in ("sum", "mean"):
            with tf.GradientTape() as tape:
                tape.watch(values)
                slices = tf.IndexedSlices(values, indices, tf.constant([count + 2, 2]))
                both = [tf.concat([x, x], axis=0) for x in (values, indices)]
                twice = tf.IndexedSlices(*both, slices.dense_shape)  # With more rows.
                nest = {"rows": slices, "none": None, "twice": twice, "x": 1.0}
                reduced = collectives.all_reduce(nest, name)
                assert reduced["rows"].values.shape[1:] == [2]  # Still known.
                dense = tf.convert_to_tensor(reduced["rows"])  # [count + 2, 2]
                scale = tf.range(tf.cast(count, tf.float32) + 2.0)[:, tf.newaxis]
                loss = tf.reduce_sum(dense * scale) * tf.cast(replica + 1, tf.float32)
            got = tape.gradient(loss, values)
            padded = tf.pad(got, [[0, count + 1 - number], [0, 0]])
            results[name] = {
                "dense": dense,
                "twice": tf.convert_to_tensor(reduced["twice"]),
                "gradient": tf.ensure_shape(padded, [count + 1, 2]),
            }
        return results

    return step_fn


def check_slices(results, count):
    dense = np.zeros([count + 2, 2])
    gradients = np.zeros([count, count + 1, 2])
    for replica in range(count):
        for row in range(replica + 2):
            index = row % 2 + replica
            dense[index] += np.array([index + 1, 10 * index + 1])
            gradients[replica, row] = index * sum(range(1, count + 1))
    for name, factor in (("sum", 1), ("mean", 1 / count)):
        got = results[name]
        np.testing.assert_allclose(got["dense"], np.stack([dense * factor] * count), 1e-6)
        np.testing.assert_allclose(got["twice"], np.stack([2 * dense * factor] * count), 1e-6)
        np.testing.assert_allclose(got["gradient"], gradients * factor, 1e-6)
