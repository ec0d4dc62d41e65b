"""The codebook on two replicas is Sonnet's on one device with the joint batch."""

import numpy as np
import pytest
import sonnet as snt
import tensorflow as tf

import rl_replicator as rr

STEPS, BATCH, SIZE, CODES = 5, 16, 4, 6
RNG = np.random.default_rng(0)
X = RNG.normal(size=(STEPS, BATCH, SIZE)).astype(np.float32)
CODEBOOK = RNG.normal(size=(SIZE, CODES)).astype(np.float32)


def make(kind):
    quantizer = kind(SIZE, CODES, commitment_cost=0.25, decay=0.9)
    quantizer.embeddings.assign(CODEBOOK)
    return quantizer


def halves(context):
    rows = X.reshape(-1, SIZE)
    return tf.data.Dataset.from_tensor_slices(rows).batch(context.per_replica_batch_size(BATCH))


def test_two_replicas_equal_one_device_with_the_joint_batch():
    replicator = rr.make("multi_device:2")
    with replicator.scope():
        ours = make(rr.VectorQuantizerEMA)
    step = replicator.replicate(lambda x: ours(x, True)["loss"], replicator.make_inputs(halves))
    theirs = make(snt.nets.VectorQuantizerEMA)
    for x in X:
        loss = replicator.reduce("mean", step())
        np.testing.assert_allclose(loss, theirs(x, is_training=True)["loss"], rtol=1e-5)
        for copy in ours.embeddings.values:
            np.testing.assert_allclose(copy, theirs.embeddings, rtol=1e-4, atol=1e-5)
    assert np.abs(theirs.embeddings.numpy() - CODEBOOK).max() > 0.1


def test_sonnets_own_is_refused_with_the_name_of_ours():
    replicator = rr.make("multi_device:2")
    with replicator.scope():
        theirs = make(snt.nets.VectorQuantizerEMA)
    step = replicator.replicate(lambda x: theirs(x, True)["loss"], replicator.make_inputs(halves))
    with pytest.raises(rr.ReplicasDiffer, match="embeddings.*; use rr.VectorQuantizerEMA in place"):
        step()


def test_a_skipped_step_keeps_the_codebook():
    replicator = rr.make("multi_device:2")
    with replicator.scope():
        quantizer, scale = make(rr.VectorQuantizerEMA), tf.Variable(np.nan)
        sgd = snt.optimizers.SGD(0.1)
        optimizer = replicator.wrap_optimizer(sgd, skip_nonfinite=True)

    def step_fn(x):
        with tf.GradientTape() as tape:
            loss = quantizer(scale * x, is_training=True)["loss"]
        optimizer.apply(tape.gradient(loss, [scale]), [scale])

    replicator.replicate(step_fn, replicator.make_inputs(halves))()
    np.testing.assert_array_equal(quantizer.embeddings.numpy(), CODEBOOK)
