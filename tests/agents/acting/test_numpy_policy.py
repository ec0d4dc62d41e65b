"""Policies compiled to NumPy match TensorFlow, or are left to TensorFlow."""

import functools

import numpy as np
import pytest
import sonnet as snt
import tensorflow as tf
import tree

from agents.acting.acting_policy import (
    ActingPolicy,
    LatestObservation,
    NumpyPolicy,
    TensorFlowPolicy,
    compile_policy,
)
from agents.learning.weights import copy_variables
from tests.conformance.test_agents import COMMANDS, small_agent

SIZE = 6


class Weights:
    """Serves no variables: the tests load them."""

    def get_variables(self, names):
        return {}


def compiled(act, size=SIZE, batch=1, **networks):
    spec = tf.TensorSpec([size], tf.float32)
    return compile_policy(ActingPolicy(networks, act, spec, LatestObservation), batch)


def randomize(networks, seed):
    """Assigns and returns weights as after training, also biases, scales and running statistics."""
    random = np.random.default_rng(seed)
    for network in networks.values():
        for variable in network.variables:
            scale = 1.5 / np.sqrt(variable.shape[0]) if variable.shape.rank > 1 else 0.3
            noise = scale * random.standard_normal(variable.shape)
            is_positive = any(word in variable.name for word in ("scale", "variance", "count"))
            variable.assign(tf.cast(1 + abs(noise) if is_positive else noise, variable.dtype))
    return copy_variables(networks, [name for name, n in networks.items() if n.variables])


@pytest.mark.parametrize("name", COMMANDS)
def test_the_policy_of_every_agent_is_the_same_in_numpy(name):
    """Compares exploring and evaluation policies, in batches of one and of 64."""
    agent = small_agent(name, "state")
    random = np.random.default_rng(0)
    for make_policy in (agent.make_exploring_policy, agent.make_evaluation_policy):
        policy = make_policy(Weights())
        # From 64 rows on, a narrow first layer is computed differently.
        functions = [compile_policy(policy, size) for size in (1, 64)]
        assert all(isinstance(function, NumpyPolicy) for function in functions)
        arrays = randomize(policy.networks, seed=0)
        observations = random.normal(0, 3, (64, *policy.observation_spec.shape)).astype("f")
        expected = policy.act(tf.constant(observations))
        for function in functions:
            function.load(arrays)
        singles = [functions[0](row[None]) for row in observations]
        joined = tree.map_structure(lambda *rows: np.concatenate(rows), *singles)
        for found in (joined, functions[1](observations)):
            tree.map_structure(
                lambda a, b: np.testing.assert_allclose(b, a, rtol=1e-6, atol=5e-6), expected, found
            )


def test_convolutions_are_left_to_tensorflow():
    agent = small_agent("d4pg", "pixels")
    policy = agent.make_evaluation_policy(Weights())
    function = compile_policy(policy, 2)
    assert isinstance(function, TensorFlowPolicy)
    function.load(randomize(policy.networks, 1))
    frames = np.random.default_rng(0).integers(0, 256, (2, *policy.observation_spec.shape))
    expected = policy.act(tf.constant(frames, tf.uint8))
    np.testing.assert_allclose(function(frames.astype(np.uint8)), expected, rtol=1e-4, atol=1e-5)


def composed(x):
    """What networks are made of, beside the single operations below."""
    return {
        "normalized": tf.math.l2_normalize(x, axis=-1),
        "gelu": tf.nn.gelu(x, approximate=True),
        "swish": tf.nn.swish(x),
        "waves": tf.sin(9 * x) + tf.cos(9 * x),
        "symlog": tf.sign(x) * tf.math.log1p(tf.abs(x)),
        "relu clipped": tf.clip_by_value(tf.nn.relu(x), 0.1, 0.9),
        "deviation": x / tf.math.reduce_std(x, -1, keepdims=True),
        "halves": tf.split(x, 2, axis=-1),
        "slices": (x[:, 1:-1:2], x[..., -1:], x[:, 2], x[:, None, ::-1]),
        "shapes": tf.reshape(x[:, 2:][..., None], [-1, 2, 2]),
    }


def half_by_half(op, x):
    first, second = tf.split(x, 2, axis=1)
    return op(first, second)


def moved(x):
    """The operations that every dtype supports."""
    return {
        "casts": [tf.cast(x, d) for d in (tf.bool, tf.float32, tf.float64, tf.int32, tf.int64)],
        "shapes": tf.reshape(tf.squeeze(tf.expand_dims(x, 1), [1]), [-1]),
        "parts": tf.concat(tf.split(x, [1, SIZE - 1], axis=1)[::-1], axis=1),
        "slices": [x[:, 1], x[1:, ::-2], x[..., None, -2:]],
        "selected": tf.where(tf.cast(x, tf.bool), x, x[:, :1]),
        "same": [tf.stop_gradient(tf.identity(x)), *tf.identity_n([x, x])],
    }


def computed(x):
    """The operations that every numeric dtype supports."""
    pairs = (tf.add, tf.subtract, tf.multiply, tf.maximum, tf.minimum)
    orders = (tf.less, tf.less_equal, tf.greater, tf.greater_equal)
    reductions = (tf.reduce_sum, tf.reduce_max, tf.reduce_min)
    if x.dtype.is_floating:
        reductions += (tf.reduce_mean,)
    return {
        **moved(x),
        "positive": tf.nn.relu(x),
        "of two": [half_by_half(op, x) for op in pairs + orders],
        "clipped": tf.clip_by_value(x, tf.cast(1, x.dtype), tf.cast(3, x.dtype)),
        "reduced": [
            op(x, axis, keepdims)
            for op in reductions
            for axis in (0, 1, -1, [0, 1], [])
            for keepdims in (False, True)
        ],
    }


def computed_with_a_sign(x):
    return {
        **computed(x),
        "with a sign": [op(x) for op in (tf.abs, tf.negative, tf.sign, tf.square)],
        "power": tf.pow(x, tf.clip_by_value(x, tf.cast(0, x.dtype), tf.cast(3, x.dtype))),
        "squared difference": half_by_half(tf.math.squared_difference, x),
        "with a bias": tf.nn.bias_add(x, x[0]),
    }


def computed_with_fractions(x):
    of_one = (
        *(tf.exp, tf.math.expm1, tf.math.log, tf.math.log1p, tf.math.rsqrt, tf.sqrt, tf.tanh),
        *(tf.sigmoid, tf.nn.elu, tf.nn.leaky_relu, tf.nn.softplus, tf.math.round),
    )
    # Where the result is not finite, oneDNN and Eigen differ.
    finite = tf.where(tf.abs(x) < 1e9, x, tf.zeros_like(x))
    return {
        **computed_with_a_sign(x),
        "with fractions": [op(x) for op in of_one],
        "finite": [tf.nn.softmax(finite), tf.matmul(finite, finite, transpose_b=True)],
        "divided": half_by_half(tf.divide, x),
        "out of range": [
            tf.cast(factor * x, d) for factor in (1e3, 1e18) for d in ("int32", "int64")
        ],
    }


def values_of(dtype, random):
    """Ordinary or extreme numbers, whose sums are exact in any order."""
    kind = np.dtype(dtype).kind
    if kind == "b":
        return [False, True]
    if kind == "f":
        if random:
            return [0.25 * i for i in range(-12, 13)]
        return [np.nan, np.inf, -np.inf, -0.0, 0.0, 0.5, 2.0, -1.5]
    limits = np.iinfo(dtype)
    return range(max(-5, limits.min), 7) if random else [limits.min, limits.max, 0, 1, 3]


@pytest.mark.parametrize(
    ("dtype", "act"),
    [
        (np.float32, composed),
        (np.float32, computed_with_fractions),
        (np.float64, computed_with_fractions),
        (np.int32, computed_with_a_sign),
        (np.int64, computed_with_a_sign),
        (np.uint8, computed),
        (np.bool_, moved),
    ],
)
def test_all_operations_give_the_numbers_and_dtypes_of_tensorflow(dtype, act):
    spec = tf.TensorSpec([SIZE], dtype)
    function = compile_policy(ActingPolicy({}, act, spec, LatestObservation), 4)
    assert isinstance(function, NumpyPolicy)
    function.load({})
    traced = tf.function(act, autograph=False).get_concrete_function(
        tf.TensorSpec([4, SIZE], dtype)
    )
    random = np.random.default_rng(0)
    for is_random in (True,) if act is composed else (True, False):
        x = random.choice(np.array(values_of(dtype, is_random), dtype), (4, SIZE))
        expected, found = traced(tf.constant(x)), function(x)
        for path, want in tree.flatten_with_path(expected):
            got, want = functools.reduce(lambda nest, key: nest[key], path, found), want.numpy()
            assert (got.dtype, got.shape) == (want.dtype, want.shape), path
            tolerance = 2e-6 if want.dtype == np.float32 else 1e-12
            np.testing.assert_allclose(got, want, tolerance, tolerance, err_msg=str(path))


class Normalizer(snt.Module):
    """Its scale depends on variables alone."""

    def __init__(self):
        super().__init__("normalizer")
        self.mean = tf.Variable(tf.zeros([SIZE]), trainable=False, name="mean")
        self.variance = tf.Variable(tf.ones([SIZE]), trainable=False, name="variance")

    def __call__(self, x):
        return tf.clip_by_value((x - self.mean) * tf.math.rsqrt(self.variance + 1e-3), -5, 5)


def test_new_weights_reach_what_is_computed_from_weights_alone():
    encoder = Normalizer()
    function = compiled(encoder, encoder=encoder)
    with pytest.raises(ValueError, match="expected an array for encoder/mean"):
        function.load({})
    with pytest.raises(ValueError, match=r"expected shape \(6,\) for encoder/mean, got \(2,\)"):
        function.load(dict.fromkeys(["encoder/mean", "encoder/variance"], np.zeros(2)))
    x = np.arange(SIZE, dtype=np.float32)[None]
    for variance in (1.0, 4.0):
        arrays = {"encoder/mean": np.ones(SIZE), "encoder/variance": np.full(SIZE, variance)}
        function.load({path: array.astype("f") for path, array in arrays.items()})
        expected = np.clip((x - 1) / np.sqrt(variance + 1e-3), -5, 5)
        np.testing.assert_allclose(function(x), expected, rtol=1e-6)


def test_results_are_not_overwritten_and_observations_of_another_shape_are_refused():
    function = compiled(lambda x: x)
    function.load({})
    zeros = function(np.zeros((1, SIZE)))
    function(np.ones((1, SIZE)))
    assert not zeros.any()
    for shape in ((1, 1), (1,), (2, SIZE)):  # NumPy would broadcast the first two.
        with pytest.raises(ValueError, match=rf"expected observations of shape \(1, {SIZE}\), got"):
            function(np.zeros(shape, np.float32))


@functools.cache
def strange():
    """A variable that belongs to no network."""
    return tf.Variable(1.0, name="strange")


@pytest.mark.parametrize(
    "act",
    [
        lambda x: x + tf.random.normal([SIZE]),
        lambda x: x * strange(),
        lambda x: tf.cast(tf.cast(x, tf.bfloat16), tf.float32),
        lambda x: x + tf.cast(tf.reduce_mean(tf.cast(x, tf.int32)), tf.float32),
    ],
    ids=["random", "no weight", "bfloat16", "mean of integers"],
)
def test_what_numpy_cannot_do_is_left_to_tensorflow(act):
    strange()
    function = compiled(act)
    assert isinstance(function, TensorFlowPolicy)
    function.load({})
    assert function(np.zeros((1, SIZE), np.float32)).shape == (1, SIZE)


class CountingEncoder(snt.Module):
    """Changes a variable of its own on which its output does not depend."""

    def __init__(self):
        super().__init__("counting")
        self.count = tf.Variable(0.0, trainable=False, name="count")

    def __call__(self, x):
        self.count.assign_add(1.0)
        return x * 2


def test_a_network_that_changes_variables_is_left_to_tensorflow():
    encoder = CountingEncoder()
    function = compiled(encoder, encoder=encoder)
    function.load({"encoder/count": np.zeros([], np.float32)})
    np.testing.assert_array_equal(function(np.ones((1, SIZE), np.float32)), [[2.0] * SIZE])
    assert encoder.count.numpy() == 1.0
