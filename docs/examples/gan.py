"""A GAN, two steps that share one input: python docs/examples/gan.py [multi_device:2 | ...]"""

import sys

import numpy as np
import sonnet as snt
import tensorflow as tf

import rl_replicator as rr

RNG = np.random.default_rng(0)
ANGLES = RNG.integers(8, size=8192) * np.pi / 4  # Eight points on a circle, to be imitated.
REAL = np.stack([np.cos(ANGLES), np.sin(ANGLES)], axis=1).astype(np.float32)
NOISE = RNG.normal(size=(8192, 4)).astype(np.float32)


def input_fn(context):
    data = tf.data.Dataset.from_tensor_slices((REAL, NOISE))
    return context.shard(data.batch(context.per_replica_batch_size(256)).repeat())


replicator = rr.make(sys.argv[1] if len(sys.argv) > 1 else "single_device")
with replicator.scope():
    generator = snt.nets.MLP([64, 64, 2], w_init=snt.initializers.Orthogonal(seed=1))
    discriminator = snt.nets.MLP([64, 64, 1], w_init=snt.initializers.Orthogonal(seed=2))
    optimizer_g = replicator.wrap_optimizer(rr.optimizers.Adam(3e-4, beta1=0.0))
    optimizer_d = replicator.wrap_optimizer(rr.optimizers.Adam(1e-3, beta1=0.0))


def discriminator_step(batch):
    real, noise = batch
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.nn.relu(1 - discriminator(real)))
        loss += tf.reduce_mean(tf.nn.relu(1 + discriminator(generator(noise))))
    variables = discriminator.trainable_variables
    optimizer_d.apply(tape.gradient(loss, variables), variables)
    return loss


def generator_step(batch):
    with tf.GradientTape() as tape:
        loss = -tf.reduce_mean(discriminator(generator(batch[1])))
    variables = generator.trainable_variables
    optimizer_g.apply(tape.gradient(loss, variables), variables)
    return loss


inputs = replicator.make_inputs(input_fn)
train_d = replicator.replicate(discriminator_step, inputs, steps_per_call=5)
train_g = replicator.replicate(generator_step, inputs)
for step in range(1, 101):
    losses_d, loss_g = replicator.reduce("mean", (train_d(), train_g()))  # [5], []
    if step % 10 == 0 and replicator.is_chief:
        print(f"step {step}: discriminator {losses_d[-1]:.4f}, generator {loss_g:.4f}", flush=True)
