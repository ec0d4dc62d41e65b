"""Layers that are too large for one device, with data and model parallelism combined.

    python docs/examples/model_parallel.py mesh           # Splits the layers over four devices.
    python docs/examples/model_parallel.py single_device  # The same training on one device.

The mesh splits each batch in two, and each wide layer in two; without GPUs its devices are parts of
the CPU. Suppose that a device has room for 10 MB: with their optimizer's slots, the two wide layers
take 12.6 MB, so none of the devices could hold both.
"""

import collections
import sys

import numpy as np
import sonnet as snt
import tensorflow as tf

import rl_replicator as rr

WIDTH = 2048
X = np.random.default_rng(0).normal(size=(1024, 256)).astype(np.float32)
Y = np.sin(X[:, :4].sum(axis=1))

if sys.argv[1:] == ["single_device"]:
    replicator = rr.make("single_device")
else:
    # The first wide layer by columns, the second by rows: each device computes with its half of the
    # hidden units, and one sum over "model" makes the output. The slots are split likewise.
    replicator = rr.MeshReplicator(
        {"data": 2, "model": 2},
        layouts={
            "up/w": ("none", "model"),
            "up/b": ("model",),
            "down/w": ("model", "none"),
        },
    )

with replicator.scope():
    up = snt.Linear(WIDTH, w_init=snt.initializers.Orthogonal(seed=1), name="up")
    up(tf.zeros([1, 256]))
    down = snt.Linear(256, w_init=snt.initializers.Orthogonal(seed=2), name="down")
    down(tf.zeros([1, WIDTH]))
    last = snt.Linear(1, w_init=snt.initializers.Orthogonal(seed=3), name="last")
    last(tf.zeros([1, 256]))
    optimizer = replicator.wrap_optimizer(rr.optimizers.Adam(1e-4))
parameters = [*up.variables, *down.variables, *last.variables]
replicator.build_optimizer(optimizer, parameters)


def input_fn(context):
    batch_size = context.per_replica_batch_size(256)
    return tf.data.Dataset.from_tensor_slices((X, Y)).batch(batch_size).repeat()


def step_fn(batch):
    x, y = batch
    with tf.GradientTape() as tape:
        output = last(tf.nn.relu(down(tf.nn.relu(up(x)))))[:, 0]
        loss = tf.reduce_mean(tf.square(output - y))
    optimizer.apply(tape.gradient(loss, parameters), parameters)
    return loss


step = replicator.replicate(step_fn, replicator.make_inputs(input_fn), steps_per_call=10)
for call in range(1, 4):
    print(f"step {10 * call}: loss {replicator.reduce('mean', step())[-1]:.5f}", flush=True)

held = collections.Counter()
for variable in (*parameters, *optimizer.m, *optimizer.v):
    pieces = {variable.device: variable}
    if isinstance(replicator, rr.MeshReplicator):
        pieces = variable.shards()
    for device, piece in pieces.items():
        held[device[-5:]] += 4 * int(np.prod(piece.shape))
for device, size in sorted(held.items()):
    print(f"{device} holds {size / 1e6:.1f} MB of parameters and slots")
