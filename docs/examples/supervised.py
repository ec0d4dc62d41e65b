"""Supervised learning: python docs/examples/supervised.py [single_device | multi_device:2 | ...]"""

import sys

import numpy as np
import sonnet as snt
import tensorflow as tf

import rl_replicator as rr

X = np.random.default_rng(0).normal(size=(4096, 8)).astype(np.float32)
Y = np.sin(X.sum(axis=1))


def input_fn(context):
    data = tf.data.Dataset.from_tensor_slices((X, Y)).shuffle(4096, seed=1)
    return context.shard(data.batch(context.per_replica_batch_size(256)).repeat())


replicator = rr.make(sys.argv[1] if len(sys.argv) > 1 else "single_device")
with replicator.scope():
    model = snt.nets.MLP([64, 64, 1], w_init=snt.initializers.Orthogonal(seed=1))
    optimizer = replicator.wrap_optimizer(rr.optimizers.Adam(1e-3))


def step_fn(batch):
    x, y = batch
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(model(x)[:, 0] - y))
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply(gradients, model.trainable_variables)  # Averages over the replicas first.
    return loss


step = replicator.replicate(step_fn, replicator.make_inputs(input_fn), steps_per_call=100)
for call in range(1, 6):
    losses = replicator.reduce("mean", step())  # [100]
    if replicator.is_chief:
        print(f"step {100 * call}: loss {losses.mean():.5f}", flush=True)
