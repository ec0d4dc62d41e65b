"""Asynchronous steps against a handwritten loop on TensorFlow's own coordinator.

    python -m bench.asynchronous

The sides use the same cluster of processes on this machine. Each trains the same MLP (3 x 256,
batches of 64) with the same Adam, keeps two calls per worker in flight, and reads the loss of every
step.
"""

import collections
import functools
import json
import os
import subprocess
import sys
from typing import Any

import numpy as np
import sonnet as snt
import tensorflow as tf

import rl_replicator as rr
from bench import harness
from bench.processes import free_address

BATCH, FEATURES, STEPS_PER_CALL = 64, 32, 10


def dataset() -> tf.data.Dataset:
    """Returns an endless dataset of batches from memory."""
    x = np.random.default_rng(0).normal(size=(16 * BATCH, FEATURES)).astype(np.float32)
    return tf.data.Dataset.from_tensor_slices(x).batch(BATCH).cache().repeat().prefetch(2)


def make_step(model, optimizer):
    """Returns a step that trains the model."""

    def step_fn(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(x)[:, 0] - tf.reduce_sum(x, axis=1)))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply(gradients, model.trainable_variables)
        return loss

    return step_fn


def make_model():
    """Returns the built network."""
    model = snt.nets.MLP([256, 256, 256, 1])
    model(tf.zeros([1, FEATURES]))
    return model


def by_hand(strategy, workers, count):
    """Returns a function that takes some steps and reads their losses."""
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        model, optimizer = make_model(), rr.optimizers.Adam(1e-3)
        optimizer.apply([tf.zeros(v.shape) for v in model.variables], model.variables)
    step_fn = make_step(model, optimizer)
    iterator = iter(coordinator.create_per_worker_dataset(dataset))

    @tf.function
    def one(iterator):
        return strategy.run(step_fn, args=(next(iterator),))

    @tf.function
    def many(iterator):
        losses = tf.TensorArray(tf.float32, size=count)
        for i in tf.range(count):
            losses = losses.write(i, strategy.run(step_fn, args=(next(iterator),)))
        return losses.stack()

    def take(steps):
        under_way: collections.deque[Any] = collections.deque()
        for _ in range(steps // (count or 1)):
            if len(under_way) == 2 * workers:
                under_way.popleft().fetch()
            under_way.append(coordinator.schedule(one if count is None else many, args=(iterator,)))
        for remote in under_way:
            remote.fetch()

    return take


def ours(replicator, count):
    """Returns a function that takes steps and reads their losses, and the replicated step."""
    with replicator.scope():
        model = make_model()
        optimizer = replicator.wrap_optimizer(rr.optimizers.Adam(1e-3))
        replicator.build_optimizer(optimizer, model.trainable_variables)
    inputs = replicator.make_inputs(lambda context: dataset())
    step = replicator.replicate(make_step(model, optimizer), inputs, count)

    def take(steps):
        for _ in range(steps // (count or 1)):
            step().numpy()
        replicator.synchronize()

    return take, step


def start(cluster: dict, task_type: str, index: int) -> subprocess.Popen:
    """Starts a process of the cluster."""
    config = {"cluster": cluster, "task": {"type": task_type, "index": index}}
    environment = {**os.environ, "TF_CONFIG": json.dumps(config)}
    return subprocess.Popen([sys.executable, "-m", "bench.asynchronous"], env=environment)


def measure(cluster: dict, options) -> None:
    """Measures all sides on a cluster."""
    report = harness.Report("asynchronous", options)
    replicator = rr.MultiWorkerAsyncReplicator(rr.Cluster(cluster, "chief", 0))
    sides, peers, ours_by_name = {}, {}, {}
    for count, suffix in ((None, ""), (STEPS_PER_CALL, f", {STEPS_PER_CALL} steps a call")):
        peer, name = f"by hand{suffix}", f"multi_worker_async{suffix}"
        take, ours_by_name[name] = ours(replicator, count)
        for side, function in (
            (peer, by_hand(replicator.strategy, options.workers, count)),
            (name, take),
        ):
            call = functools.partial(function, options.steps)
            sides[side] = harness.clocked(call, options.steps, "steps")
        peers[name] = peer
    # Processor time is that of the coordinator only.
    report.add(harness.measure(sides, options.rounds), peers)
    for name, step in ours_by_name.items():
        found = step.staleness()
        print(f"{name}, staleness: mean {found.mean:.2f}, max {found.max}", flush=True)
    report.write()


def main() -> None:
    """Starts the cluster and measures, or runs one of its processes."""
    parser = harness.parser("asynchronous", __doc__)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--servers", type=int, default=1)
    parser.add_argument("--steps", type=int, default=100, help="of a sample")
    options = parser.parse_args()
    if "TF_CONFIG" in os.environ:
        rr.make("multi_worker_async")  # Serves, then exits the process.
    cluster = {
        "chief": [free_address()],
        "worker": [free_address() for _ in range(options.workers)],
        "ps": [free_address() for _ in range(options.servers)],
    }
    started = [
        start(cluster, kind, index)
        for kind in ("worker", "ps")
        for index in range(len(cluster[kind]))
    ]
    try:
        measure(cluster, options)
    finally:
        for process in started:
            process.kill()
            process.wait()
    harness.end()  # A regular exit would wait for the workers.


if __name__ == "__main__":
    main()
