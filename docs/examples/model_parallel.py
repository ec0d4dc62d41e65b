"""A layer that is too large for one device, under data and model parallelism together.

    python docs/examples/model_parallel.py mesh     # Splits the layer over the devices of a mesh.
    python docs/examples/model_parallel.py logical  # Places the layer on a device of its own.

Both use four devices, two for each half of the batch; without GPUs these are parts of the CPU. Say
that the share of each is 10 MB: the two wide layers take 12.6 MB with their optimizer's slots, so
none of the devices could hold them both.
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

if sys.argv[1:] == ["mesh"]:
    # The first wide layer by columns, the second by rows: each device computes with its half of the
    # hidden units, and one sum over "model" makes the output. The slots are split alike.
    replicator = rr.MeshReplicator(
        {"data": 2, "model": 2},
        layouts={
            "up/w": ("none", "model"),
            "up/b": ("model",),
            "down/w": ("model", "none"),
        },
    )
    up_device = down_device = 0
else:
    # Each replica spans two devices: one layer on each.
    replicator = rr.make("multi_device:2x2")
    up_device, down_device = 0, 1

with replicator.scope():
    with replicator.logical_device(up_device):
        up = snt.Linear(WIDTH, w_init=snt.initializers.Orthogonal(seed=1), name="up")
        up(tf.zeros([1, 256]))
    with replicator.logical_device(down_device):
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
        with replicator.logical_device(up_device):  # Its gradients are computed there, too.
            hidden = tf.nn.relu(up(x))
        with replicator.logical_device(down_device):
            output = last(tf.nn.relu(down(hidden)))[:, 0]
        loss = tf.reduce_mean(tf.square(output - y))
    optimizer.apply(tape.gradient(loss, parameters), parameters)
    return loss


step = replicator.replicate(step_fn, replicator.make_inputs(input_fn), steps_per_call=10)
for call in range(1, 4):
    print(f"step {10 * call}: loss {replicator.reduce('mean', step())[-1]:.5f}", flush=True)

held = collections.Counter()
for variable in (*parameters, *optimizer.m, *optimizer.v):
    if isinstance(replicator, rr.MeshReplicator):
        pieces = variable.shards().items()
    else:
        pieces = [(component.device, component) for component in variable.values]
    for device, piece in pieces:
        held[device[-5:]] += 4 * int(np.prod(piece.shape))
for device, size in sorted(held.items()):
    print(f"{device} holds {size / 1e6:.1f} MB of parameters and slots")
