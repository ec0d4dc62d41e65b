"""Contrastive learning with the negatives of all replicas: python docs/examples/contrastive.py"""

import sys

import numpy as np
import sonnet as snt
import tensorflow as tf

import rl_replicator as rr
from rl_replicator import collectives

RNG = np.random.default_rng(0)
X = RNG.normal(size=(4096, 16)).astype(np.float32)
SEEN_AGAIN = X + 0.5 * RNG.normal(size=X.shape).astype(np.float32)


def input_fn(context):
    data = tf.data.Dataset.from_tensor_slices((X, SEEN_AGAIN))
    return context.shard(data.batch(context.per_replica_batch_size(128)).repeat())


replicator = rr.make(sys.argv[1] if len(sys.argv) > 1 else "single_device")
with replicator.scope():
    encoder = snt.nets.MLP([64, 32], w_init=snt.initializers.Orthogonal(seed=1))
    optimizer = replicator.wrap_optimizer(rr.optimizers.Adam(1e-3))


def step_fn(batch):
    with tf.GradientTape() as tape:
        a, b = [tf.math.l2_normalize(encoder(x), axis=1) for x in batch]  # [B, D] each
        everyone = tf.reshape(collectives.all_gather(b), [-1, b.shape[1]])  # [N * B, D]
        logits = 10 * tf.matmul(a, everyone, transpose_b=True)  # [B, N * B]
        labels = collectives.replica_id() * tf.shape(a)[0] + tf.range(tf.shape(a)[0])  # [B]
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
        loss = tf.reduce_mean(losses)
    gradients = tape.gradient(loss, encoder.trainable_variables)
    optimizer.apply(gradients, encoder.trainable_variables)
    return loss


step = replicator.replicate(step_fn, replicator.make_inputs(input_fn), steps_per_call=50)
for call in range(1, 5):
    losses = replicator.reduce("mean", step())  # [50]
    if replicator.is_chief:
        print(f"step {50 * call}: loss {losses.mean():.5f}", flush=True)
