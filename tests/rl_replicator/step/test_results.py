"""Results of a step, reduced over many replicas."""

import numpy as np
import pytest
import tensorflow as tf

from rl_replicator.step import results


@pytest.mark.parametrize("dtype", [tf.float16, tf.bfloat16])
def test_half_precision_is_added_up_in_single(dtype):
    x = np.array([1.0, *[2.0**-12] * 4096]).astype(dtype.as_numpy_dtype)
    assert x[1] > 0 and np.add(x[0], x[1], dtype=x.dtype) == x[0]  # Lost if added in half.
    summed, mean = results.reduce("sum", x), results.reduce("mean", x)
    assert summed.dtype == mean.dtype == x.dtype
    assert float(summed) == 2.0
    assert float(mean) == pytest.approx(2.0 / 4097, rel=2.0**-8)


def test_dtypes():
    for dtype, mean in (("float64", "float64"), ("int64", "float32"), ("complex64", "complex64")):
        x = np.array([[1, 2], [4, 6]], dtype)
        np.testing.assert_array_equal(results.reduce("mean", x), [2.5, 4.0])
        np.testing.assert_array_equal(results.reduce("sum", x), [5, 8])
        assert results.reduce("mean", x).dtype == mean and results.reduce("sum", x).dtype == dtype
