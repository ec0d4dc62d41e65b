"""What asynchronous steps cost, against a loop written by hand on TensorFlow's own coordinator.

    python bench/asynchronous.py [--workers 2] [--servers 1] [--rounds 8]

Starts the workers and parameter servers on this machine. The candidates use the same cluster and
take turns, so that a busy machine slows all alike. Each trains the same MLP (3 x 256, batches of
64) with the same Adam, keeps two calls a worker under way, and reads the loss of every step. Prints
steps per second, and the ratio to the loop by hand of the same round.
"""

import argparse
import collections
import contextlib
import json
import os
import socket
import subprocess
import sys
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import sonnet as snt
import tensorflow as tf

import rl_replicator as rr

BATCH = 64
FEATURES = 32


def dataset() -> tf.data.Dataset:
    x = np.random.default_rng(0).normal(size=(16 * BATCH, FEATURES)).astype(np.float32)
    return tf.data.Dataset.from_tensor_slices(x).batch(BATCH).cache().repeat().prefetch(2)


def make_step(model, optimizer):
    def step_fn(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(x)[:, 0] - tf.reduce_sum(x, axis=1)))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply(gradients, model.trainable_variables)
        return loss

    return step_fn


def make_learner(scope):
    with scope:
        model = snt.nets.MLP([256, 256, 256, 1])
        model(tf.zeros([1, FEATURES]))
        optimizer = rr.optimizers.Adam(1e-3)
        optimizer.apply([tf.zeros(v.shape) for v in model.trainable_variables], model.variables)
    return make_step(model, optimizer)


def by_hand(strategy, workers, count):
    """Returns a function that takes `steps` steps and reads their losses."""
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    step_fn = make_learner(strategy.scope())
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
        under_way = collections.deque()
        for _ in range(steps // (count or 1)):
            if len(under_way) == 2 * workers:
                under_way.popleft().fetch()
            under_way.append(coordinator.schedule(one if count is None else many, args=(iterator,)))
        for remote in under_way:
            remote.fetch()

    return take


def ours(replicator, count):
    step = replicator.replicate(
        make_learner(replicator.scope()), replicator.make_inputs(lambda context: dataset()), count
    )

    def take(steps):
        for _ in range(steps // (count or 1)):
            step().numpy()
        replicator.synchronize()

    return take, step


def free_address() -> str:
    with contextlib.closing(socket.socket()) as listener:
        listener.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{listener.getsockname()[1]}"


def start(cluster: dict, task_type: str, index: int) -> subprocess.Popen:
    config = {"cluster": cluster, "task": {"type": task_type, "index": index}}
    environment = {**os.environ, "TF_CONFIG": json.dumps(config)}
    return subprocess.Popen([sys.executable, __file__], env=environment)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--servers", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--steps-per-call", type=int, default=10)
    options = parser.parse_args()
    if "TF_CONFIG" in os.environ:
        rr.make("multi_worker_async")  # Serves, and ends the process.
    cluster = {
        "chief": [free_address()],
        "worker": [free_address() for _ in range(options.workers)],
        "ps": [free_address() for _ in range(options.servers)],
    }
    for kind in ("worker", "ps"):
        for index in range(len(cluster[kind])):
            start(cluster, kind, index)
    replicator = rr.MultiWorkerAsyncReplicator(rr.Cluster(cluster, "chief", 0))
    k = options.steps_per_call
    single, single_step = ours(replicator, None)
    looped, looped_step = ours(replicator, k)
    candidates = {
        "by hand": by_hand(replicator.strategy, options.workers, None),
        "multi_worker_async": single,
        f"by hand, {k} steps a call": by_hand(replicator.strategy, options.workers, k),
        f"multi_worker_async, {k} steps a call": looped,
    }
    rates: dict[str, list[float]] = {name: [] for name in candidates}
    for round_number in range(options.rounds + 1):
        for name, take in candidates.items():
            begun = time.perf_counter()
            take(options.steps)
            if round_number:  # The first is for warming up.
                rates[name].append(options.steps / (time.perf_counter() - begun))
    for name, values in rates.items():
        ratio = np.median(np.divide(values, rates["by hand"]))
        print(f"{name:40s} {np.median(values):7.1f} steps/s  {ratio:5.2f}", flush=True)
    for step in (single_step, looped_step):
        found = step.staleness()
        print(f"staleness over {found.steps} steps: mean {found.mean:.2f}, max {found.max}")


if __name__ == "__main__":
    main()
