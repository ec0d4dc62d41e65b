"""Several steps of each optimizer against NumPy, see numpy_optimizers.py, in float64."""

import numpy as np
import pytest
import tensorflow as tf

import rl_replicator as rr
from tests.rl_replicator.optimizers import numpy_optimizers as reference

SHAPES = ((3, 4), (4,), (), (2, 1))
STEPS = 6
RATES = [0.1, 0.05, 0.2, 0.0, 0.3, 0.01]
DECAYED = [True, False, False, True]


def schedule(step):
    return tf.gather(tf.constant(RATES, tf.float64), step)


def decayed(parameters):
    assert len(parameters) == len(SHAPES)
    return DECAYED


def start():
    rng = np.random.default_rng(0)
    weights = [rng.normal(size=shape) for shape in SHAPES]
    weights[3] = np.zeros(SHAPES[3])  # Its norm is 0, so LARS's ratio is 1 in the first step.
    return weights


def updates():
    """Gradients of each step; the second parameter has none in every other step."""
    rng = np.random.default_rng(1)
    for step in range(STEPS):
        found = [rng.normal(size=shape) for shape in SHAPES]
        if step % 2:
            found[1] = None
        yield found


OPTIMIZERS = {
    "adam": (
        lambda: rr.optimizers.Adam(0.1, 0.8, 0.95, 1e-3),
        lambda: reference.Adam(0.1, 0.8, 0.95, 1e-3),
    ),
    "momentum": (
        lambda: rr.optimizers.Momentum(schedule, decayed, 0.7, 0.1),
        lambda: reference.Momentum(RATES.__getitem__, 0.7, 0.1, DECAYED),
    ),
    "lars": (
        lambda: rr.optimizers.LARS(schedule, decayed, 0.7, 0.1, 0.02),
        lambda: reference.Lars(RATES.__getitem__, 0.7, 0.1, 0.02, DECAYED),
    ),
}


@pytest.mark.parametrize("clip", [None, 1.5])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_step_equals_numpy(name, clip):
    make, make_reference = OPTIMIZERS[name]
    variables, expected = [tf.Variable(w) for w in start()], start()
    optimizer, other = make(), make_reference()
    optimizer = rr.SingleDeviceReplicator().wrap_optimizer(optimizer, max_global_norm=clip)
    for found in updates():
        before = [v.numpy() for v in variables]
        optimizer.apply([None if g is None else tf.constant(g) for g in found], variables)
        if clip is not None:
            dense = iter(reference.clip([g for g in found if g is not None], clip))
            found = [None if g is None else next(dense) for g in found]
        expected = [np.array(w) for w in expected]
        other.apply(found, expected)
        for got, want, old, g in zip(variables, expected, before, found, strict=True):
            # Adam's Python numbers are rounded to float32 before they are cast, as in Sonnet.
            np.testing.assert_allclose(got.numpy(), want, rtol=1e-6, atol=1e-7)
            assert g is not None or np.array_equal(got.numpy(), old)


def test_dtypes_must_agree():
    for make, _ in OPTIMIZERS.values():
        with pytest.raises(ValueError, match="with dtype float"):
            make().apply([tf.constant(1.0)] * 4, [tf.Variable(w) for w in start()])
