"""What replication costs, against loops written by hand on plain TensorFlow.

    python bench/replicator_overhead.py [--replicas 2] [--rounds 20]

One process; the candidates take turns, so that a busy machine slows all alike. Every candidate
trains the same MLP (3 x 256) on the same data with the same global batch of 256 and Sonnet's Adam.
Prints the median time of a step and its ratio to the plain `tf.function`.
"""

import argparse
import os
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import sonnet as snt
import tensorflow as tf

import rl_replicator as rr

BATCH = 256
FEATURES = 32


def dataset(batch_size: int) -> tf.data.Dataset:
    x = np.random.default_rng(0).normal(size=(4 * BATCH, FEATURES)).astype(np.float32)
    return tf.data.Dataset.from_tensor_slices(x).batch(batch_size).cache().repeat()


def make_step(optimizer):
    model = snt.nets.MLP([256, 256, 256, 1])
    model(tf.zeros([1, FEATURES]))

    def step_fn(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(x)[:, 0] - tf.reduce_sum(x, axis=1)))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply(gradients, model.trainable_variables)
        return loss

    return step_fn


def plain(count):
    """A `tf.function` with the iterator inside; `count` steps per call."""
    step_fn = make_step(snt.optimizers.Adam(1e-3))
    iterator = iter(dataset(BATCH).prefetch(2))

    @tf.function(autograph=False)
    def one():
        return step_fn(next(iterator))

    @tf.function
    def many():
        losses = tf.TensorArray(tf.float32, size=count)
        for i in tf.range(count):
            losses = losses.write(i, step_fn(next(iterator)))
        return losses.stack()

    return one if count is None else many


def by_hand(replicas, count):
    """Sonnet's strategy, a distributed dataset, and a loop around `strategy.run`."""
    devices = [f"/cpu:{i}" for i in range(replicas)]
    strategy = snt.distribute.Replicator(devices, tf.distribute.ReductionToOneDevice())
    with strategy.scope():
        optimizer = snt.optimizers.Adam(1e-3)
        inner = optimizer.apply

        def apply(updates, parameters):
            inner(tf.distribute.get_replica_context().all_reduce("mean", updates), parameters)

        optimizer.apply = apply
        step_fn = make_step(optimizer)
    source = dataset(BATCH // replicas).prefetch(2 * replicas)
    source = source.apply(tf.data.experimental.assert_cardinality(tf.data.INFINITE_CARDINALITY))
    iterator = iter(strategy.distribute_datasets_from_function(lambda _: source))

    def one():
        return strategy.run(step_fn, args=(next(iterator),))

    if count is None:
        return tf.function(lambda: strategy.experimental_local_results(one()), autograph=False)

    @tf.function
    def many():
        losses = tf.TensorArray(tf.float32, size=count)
        for i in tf.range(count):
            losses = losses.write(i, strategy.reduce("mean", one(), axis=None))
        return losses.stack()

    return many


def ours(name, count):
    replicator = rr.make(name)
    with replicator.scope():
        step_fn = make_step(replicator.wrap_optimizer(snt.optimizers.Adam(1e-3)))
    inputs = replicator.make_inputs(
        lambda context: dataset(context.per_replica_batch_size(BATCH)).prefetch(2)
    )
    return replicator.replicate(step_fn, inputs, count)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--replicas", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--steps-per-call", type=int, default=10)
    options = parser.parse_args()
    rr.split_cpu(options.replicas)
    k = options.steps_per_call
    n = options.replicas
    candidates = {
        "plain tf.function": (plain(None), 1),
        "single_device": (ours("single_device", None), 1),
        f"plain tf.function, {k} steps a call": (plain(k), k),
        f"single_device, {k} steps a call": (ours("single_device", k), k),
        f"by hand x{n}": (by_hand(n, None), 1),
        f"multi_device:{n}": (ours(f"multi_device:{n}", None), 1),
        f"by hand x{n}, {k} steps a call": (by_hand(n, k), k),
        f"multi_device:{n}, {k} steps a call": (ours(f"multi_device:{n}", k), k),
    }
    times: dict[str, list[float]] = {name: [] for name in candidates}
    for round_number in range(options.rounds + 1):
        for name, (step, steps) in candidates.items():
            calls = max(1, 20 // steps)
            start = time.perf_counter()
            for _ in range(calls):
                step()
            if round_number:  # The first is for warming up.
                times[name].append((time.perf_counter() - start) / (calls * steps))
    # Ratios within a round, because the load of the machine changes between rounds.
    base = times["plain tf.function"]
    for name, values in times.items():
        ratio = np.median(np.divide(values, base))
        print(f"{name:40s} {1e3 * np.median(values):7.3f} ms  {ratio:5.2f}", flush=True)


if __name__ == "__main__":
    main()
