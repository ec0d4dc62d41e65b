"""The linear layer in float32 and in bfloat16, against NumPy."""

import threading

import numpy as np
import pytest
import sonnet as snt
import tensorflow as tf

from rl_replicator.layers import precision
from rl_replicator.layers.linear import Linear

bfloat16 = tf.bfloat16.as_numpy_dtype


def rounded(x):
    return np.asarray(x).astype(bfloat16).astype(np.float64)


def run(num_inputs, num_units, dtype, kind=Linear):
    """Outputs, inputs, weights and bias of a layer, and the derivatives of sum(outputs * g)."""
    random = np.random.default_rng(4)
    layer = kind(num_units)
    x = tf.constant(random.normal(size=(9, num_inputs)), tf.float32)
    g = tf.constant(random.normal(size=(9, num_units)), tf.float32)
    layer(x)
    layer.w.assign(random.normal(size=layer.w.shape))
    layer.b.assign(random.normal(size=layer.b.shape))

    @tf.function
    def compute():
        with tf.GradientTape() as tape:
            tape.watch(x)
            with precision.autocast(dtype):
                y = layer(x)
            loss = tf.reduce_sum(y * g)
        return y, tape.gradient(loss, [x, layer.w, layer.b])

    y, gradients = compute()
    return y.numpy(), [d.numpy() for d in gradients], (x, g, layer.w.numpy(), layer.b.numpy())


@pytest.mark.cpu("GPUs also round parts of the sums")
def test_products_in_bfloat16():
    y, (d_x, d_w, d_b), (x, g, w, b) = run(514, 512, tf.bfloat16)
    exact = rounded(x) @ rounded(w)
    # The sums are in float32; only the results are rounded to 8 bits, or truncated without oneDNN.
    np.testing.assert_allclose(y - b, exact, rtol=2**-7, atol=1e-4)
    np.testing.assert_allclose(d_x, rounded(g) @ rounded(w).T, rtol=2**-7, atol=1e-4)
    np.testing.assert_allclose(d_w, rounded(x).T @ rounded(g), rtol=2**-7, atol=1e-4)
    np.testing.assert_allclose(d_b, np.sum(g, axis=0), rtol=1e-5, atol=1e-6)
    for product in (d_x, d_w):
        np.testing.assert_array_equal(product, rounded(product))
    assert np.abs(y - b - x @ w).max() > 1e-3 and np.any(y != rounded(y))
    assert {a.dtype for a in (y, d_x, d_w, d_b)} == {np.dtype(np.float32)}


@pytest.mark.parametrize(("num_inputs", "num_units"), [(511, 600), (600, 511)])
def test_small_layers_compute_in_float32(num_inputs, num_units):
    narrow, narrow_gradients, _ = run(num_inputs, num_units, tf.bfloat16)
    wide, wide_gradients, _ = run(num_inputs, num_units, tf.float32)
    for one, other in zip([narrow, *narrow_gradients], [wide, *wide_gradients], strict=True):
        np.testing.assert_array_equal(one, other)


def test_float32_is_that_of_sonnet():
    ours, our_gradients, _ = run(514, 512, tf.float32)
    theirs, their_gradients, _ = run(514, 512, tf.float32, snt.Linear)
    for one, other in zip([ours, *our_gradients], [theirs, *their_gradients], strict=True):
        np.testing.assert_array_equal(one, other)


def test_autocast_ends_with_its_block_and_stays_in_its_thread():
    seen = []
    with pytest.raises(KeyError), precision.autocast(tf.bfloat16):
        other = threading.Thread(target=lambda: seen.append(precision.autocast_dtype()))
        other.start()
        other.join()
        with precision.autocast(tf.float32):
            seen.append(precision.autocast_dtype())
        seen.append(precision.autocast_dtype())
        raise KeyError
    assert seen == [tf.float32, tf.float32, tf.bfloat16]
    assert precision.autocast_dtype() == tf.float32
    refused = pytest.raises(ValueError, match="expected float32 or bfloat16, got float16")
    with refused, precision.autocast(tf.float16):
        pass
