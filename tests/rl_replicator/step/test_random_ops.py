"""Which operations draw numbers that a resumed run cannot draw again."""

import numpy as np
import pytest
import tensorflow as tf

from rl_replicator.step import random_ops

CLASSES = np.array([[0], [1]])
IMAGE = np.arange(400.0, dtype=np.float32).reshape(1, 20, 20, 1)
BOXES = np.array([[[0.1, 0.1, 0.9, 0.9]]], np.float32)
CANDIDATES = {"true_classes": CLASSES, "num_true": 1, "num_sampled": 5, "unique": True}


def image():
    """Not a constant, because TensorFlow would pool a constant only once."""
    return IMAGE * tf.cast(tf.timestamp() > 0, tf.float32)


def sampled(name, **options):
    return lambda: getattr(tf.random, name)(**CANDIDATES, range_max=1000, **options)[0]


DRAWN = {
    "RandomStandardNormal": lambda: tf.random.normal([4]),
    "RandomUniformInt": lambda: tf.random.uniform([4], maxval=1000, dtype=tf.int32),
    "RandomUniform": lambda: tf.nn.dropout(tf.ones([64]), 0.5),
    "TruncatedNormal": lambda: tf.random.truncated_normal([4]),
    "ParameterizedTruncatedNormal": lambda: tf.raw_ops.ParameterizedTruncatedNormal(
        shape=[4], means=0.0, stdevs=1.0, minvals=-1.0, maxvals=1.0
    ),
    "RandomGamma": lambda: tf.random.gamma([4], 1.0),
    "RandomPoissonV2": lambda: tf.random.poisson([16], 100.0),
    "RandomShuffle": lambda: tf.random.shuffle(tf.range(100)),
    "Multinomial": lambda: tf.random.categorical(tf.zeros([1, 1000]), 8),
    "UniformCandidateSampler": sampled("uniform_candidate_sampler"),
    "LogUniformCandidateSampler": sampled("log_uniform_candidate_sampler"),
    "LearnedUnigramCandidateSampler": sampled("learned_unigram_candidate_sampler"),
    "ThreadUnsafeUnigramCandidateSampler": lambda: tf.raw_ops.ThreadUnsafeUnigramCandidateSampler(
        **CANDIDATES, range_max=1000
    )[0],
    "FixedUnigramCandidateSampler": sampled(
        "fixed_unigram_candidate_sampler", unigrams=[1.0] * 1000
    ),
    "SampleDistortedBoundingBoxV2": lambda: tf.image.sample_distorted_bounding_box(
        [1000, 1000, 3], BOXES
    )[2],
    "FractionalMaxPool": lambda: tf.nn.fractional_max_pool(image(), 1.4, True)[0],
    "FractionalAvgPool": lambda: tf.nn.fractional_avg_pool(image(), [1.0, 1.4, 1.4, 1.0], True)[0],
}
REPEATED = {
    "stateless": lambda: tf.random.stateless_normal([4], [1, 2]),
    "of fixed regions": lambda: tf.nn.fractional_max_pool(image(), 1.4, True, seed=3)[0],
}


def traced(function):
    return tf.function(function, autograph=False).get_concrete_function()


@pytest.mark.parametrize("name", DRAWN)
@pytest.mark.parametrize("is_nested", [False, True])
def test_an_operation_that_draws_is_found(name, is_nested):
    function = traced(tf.function(DRAWN[name]) if is_nested else DRAWN[name])
    assert random_ops.find(function).startswith(f"{name} (")
    draws = {bytes(function().numpy()) for _ in range(3)}
    assert len(draws) > 1  # Otherwise there would be nothing to refuse.


@pytest.mark.parametrize("name", REPEATED)
def test_an_operation_that_repeats_is_not(name):
    function = traced(REPEATED[name])
    assert random_ops.find(function) is None
    assert len({bytes(function().numpy()) for _ in range(3)}) == 1


def test_a_generator_is_not():
    generator = tf.random.Generator.from_seed(1)
    assert random_ops.find(traced(lambda: generator.normal([4]))) is None


def test_recurrent_layers_draw_if_they_drop_units():
    """On GPUs only; Keras uses these operations for an LSTM without its own dropout."""

    def recurrent(dropout):
        return tf.raw_ops.CudnnRNNV3(
            input=tf.zeros([3, 2, 4]),
            input_h=tf.zeros([1, 2, 5]),
            input_c=tf.zeros([1, 2, 5]),
            params=tf.zeros([220]),
            sequence_lengths=[3, 3],
            dropout=dropout,
        )[0]

    assert random_ops.find(traced(lambda: recurrent(0.0))) is None
    assert random_ops.find(traced(lambda: recurrent(0.5))).startswith("CudnnRNNV3 (")
    layer = tf.keras.layers.LSTM(5)
    layer(tf.zeros([2, 3, 4]))  # Creates the weights.
    assert random_ops.find(traced(lambda: layer(tf.zeros([2, 3, 4]), training=True))) is None
