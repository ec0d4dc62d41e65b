"""Batch norm over two uneven replicas against NumPy; gradients by finite differences."""

import numpy as np
import tensorflow as tf

import rl_replicator as rr
from rl_replicator import collectives

SIZES = (3, 5)
CHANNELS = 2
DECAY, EPS = 0.8, 1e-2
RNG = np.random.default_rng(0)
X = RNG.normal(size=(2, sum(SIZES), 4, CHANNELS)) * [1.0, 3.0] + [0.5, -2.0]  # Of two steps.
WEIGHTS = RNG.normal(size=X.shape[1:])  # Of the loss, so that no gradient vanishes.
SCALE, OFFSET = np.array([1.5, -0.7]), np.array([0.3, 0.1])


def forward(x, scale, offset):
    """Ioffe & Szegedy 2015, Algorithm 1, in NumPy."""
    mean = x.sum((0, 1)) / (x.shape[0] * x.shape[1])
    variance = ((x - mean) ** 2).sum((0, 1)) / (x.shape[0] * x.shape[1])
    return scale * (x - mean) / np.sqrt(variance + EPS) + offset, mean, variance


def loss(x, scale, offset):
    return np.sum(WEIGHTS * np.sin(forward(x, scale, offset)[0]))


def numeric(function, x, step=1e-6):
    """Central differences of a scalar function of an array."""
    found = np.zeros_like(x)
    for index in np.ndindex(x.shape):
        high, low = x.copy(), x.copy()
        high[index] += step
        low[index] -= step
        found[index] = (function(high) - function(low)) / (2 * step)
    return found


def test_uneven_replicas_equal_numpy():
    replicator = rr.MultiDeviceReplicator(2)
    with replicator.scope():
        norm = rr.CrossReplicaBatchNorm(True, True, decay_rate=DECAY, eps=EPS)
        norm(tf.zeros([1, 4, CHANNELS]), is_training=False)
        number = tf.Variable(0, trainable=False)
        norm.scale.assign(SCALE)
        norm.offset.assign(OFFSET)

    def step_fn(replica):
        rows = slice(0, SIZES[0]) if not tf.get_static_value(replica) else slice(SIZES[0], None)
        x = tf.gather(tf.constant(X, tf.float32), number)[rows]
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = norm(x, is_training=True)
            own = tf.reduce_sum(WEIGHTS[rows] * tf.sin(y))
        to_x, to_scale, to_offset = tape.gradient(own, [x, norm.scale, norm.offset])
        number.assign_add(1)
        padding = [[0, max(SIZES) - x.shape[0]], [0, 0], [0, 0]]
        parameters = collectives.all_sum([to_scale, to_offset])
        return tf.pad(y, padding), tf.pad(to_x, padding), parameters

    inputs = replicator.make_inputs(lambda context: collectives.replica_id)
    step = replicator.replicate(tf.autograph.experimental.do_not_convert(step_fn), inputs)
    means, variances = [], []
    for x in X:
        y, to_x, (to_scale, to_offset) = replicator.gather(step())
        want, mean, variance = forward(x, SCALE, OFFSET)
        for got, whole in ((y, want), (to_x, numeric(lambda x: loss(x, SCALE, OFFSET), x))):
            joined = np.concatenate([got[i, :size] for i, size in enumerate(SIZES)])
            np.testing.assert_allclose(joined, whole, 1e-4, 1e-5)
        for got, numerical in (
            (to_scale, numeric(lambda s, x=x: loss(x, s, OFFSET), SCALE)),
            (to_offset, numeric(lambda o, x=x: loss(x, SCALE, o), OFFSET)),
        ):
            np.testing.assert_allclose(got[0], numerical, 1e-4, 1e-5)
        means.append(mean)
        variances.append(variance)
    # A bias-corrected average of two values has these weights.
    shares = np.array([DECAY, 1.0]) / (1 + DECAY)
    for moving, values in ((norm.moving_mean, means), (norm.moving_variance, variances)):
        for copy in moving.average.values:
            np.testing.assert_allclose(copy.numpy().ravel(), shares @ np.stack(values), 1e-5)
