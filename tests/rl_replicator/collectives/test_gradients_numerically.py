"""The gradient of every collective against finite differences of its value in NumPy."""

import numpy as np
import pytest
import tensorflow as tf

import rl_replicator as rr
from rl_replicator import collectives

COUNT = 2
RNG = np.random.default_rng(0)
X = RNG.normal(size=(COUNT, 3))  # A row for each replica.
# Name -> the collective, and what each replica gets of x [COUNT, 3], written in NumPy.
CASES = {
    "all_sum": (collectives.all_sum, lambda x: x.sum(0)),
    "all_mean": (collectives.all_mean, lambda x: x.mean(0)),
    "all_min": (collectives.all_min, lambda x: x.min(0)),
    "all_max": (collectives.all_max, lambda x: x.max(0)),
    "all_gather": (collectives.all_gather, lambda x: x),
    "broadcast": (lambda y: collectives.broadcast(y, 1), lambda x: x[1]),
    "rows": (
        lambda y: tf.convert_to_tensor(
            collectives.all_sum(
                tf.IndexedSlices(y[:, tf.newaxis], tf.constant([0, 2, 0]), tf.constant([3, 1]))
            )
        ),
        lambda x: np.array([[x[:, 0].sum() + x[:, 2].sum()], [0.0], [x[:, 1].sum()]]),
    ),
    "composition": (
        lambda y: collectives.all_mean(tf.sin(y - collectives.all_sum(y * y))),
        lambda x: np.sin(x - (x * x).sum(0)).mean(0),
    ),
}


def weights(name):
    """The weights of each replica's loss, [COUNT, *shape of the value]."""
    shape = CASES[name][1](X).shape
    return np.random.default_rng(len(name)).normal(size=(COUNT, *shape))


def loss(name, x):
    """The sum of all replicas' losses."""
    return np.sum(weights(name) * np.cos(CASES[name][1](x)))


@pytest.fixture(scope="module")
def gradients():
    """Name -> the gradients of all replicas, [COUNT, 3]; all in one compiled step."""
    replicator = rr.MultiDeviceReplicator(COUNT)

    def step_fn(replica):
        found = {}
        for name, (collective, _) in CASES.items():
            with tf.GradientTape() as tape:
                x = tf.constant(X)[replica]
                tape.watch(x)
                own = tf.reduce_sum(tf.constant(weights(name))[replica] * tf.cos(collective(x)))
            found[name] = tape.gradient(own, x)
        return found

    inputs = replicator.make_inputs(lambda context: collectives.replica_id)
    step = replicator.replicate(tf.autograph.experimental.do_not_convert(step_fn), inputs)
    return replicator.gather(step())


@pytest.mark.parametrize("name", CASES)
def test_gradient(name, gradients):
    numeric = np.zeros_like(X)
    for index in np.ndindex(X.shape):
        step = np.zeros_like(X)
        step[index] = 1e-6
        numeric[index] = (loss(name, X + step) - loss(name, X - step)) / 2e-6
    assert np.abs(numeric).max() > 0.01
    np.testing.assert_allclose(gradients[name], numeric, 1e-6, 1e-8)
