"""Replicated steps against plain `tf.function`s and against raw code on tf.distribute.

    python -m bench.replication

Every side trains the same MLP (3 x 256) on the same data, with the same global batch of 256 and
TensorFlow's fused Adam (raw code calls it through Keras). In one process: 1, 2 and 4 CPU devices
and a mesh of 2, against a plain `tf.function`, and against `MirroredStrategy` with
`ReductionToOneDevice`, its fastest form on these CPUs. Two workers: `MultiWorkerReplicator` against
raw `MultiWorkerMirroredStrategy`, each a pair of processes.
"""

import json

import numpy as np
import sonnet as snt
import tensorflow as tf

import rl_replicator as rr
from bench import harness, processes

BATCH, FEATURES, LEARNING_RATE = 256, 32, 1e-3
STEPS, LOOPED = 40, 10  # Steps per sample; steps per call in the sides that loop.
PLAIN, OURS, RAW = "plain tf.function", "multi_worker, 2 processes", "raw, 2 processes"


def dataset(batch_size: int) -> tf.data.Dataset:
    """Returns an endless dataset of batches from memory."""
    x = np.random.default_rng(0).normal(size=(4 * BATCH, FEATURES)).astype(np.float32)
    return tf.data.Dataset.from_tensor_slices(x).batch(batch_size).cache().repeat().prefetch(4)


def make_step(optimizer, replicas: int = 1):
    """Returns a training step with an optimizer of this project or of Keras.

    Args:
      optimizer: for the model's variables.
      replicas: divides the loss, for strategies that sum gradients over the replicas.
    """
    model = snt.nets.MLP([256, 256, 256, 1])
    model(tf.zeros([1, FEATURES]))
    variables = model.trainable_variables

    def step_fn(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(x)[:, 0] - tf.reduce_sum(x, axis=1))) / replicas
        gradients = tape.gradient(loss, variables)
        if isinstance(optimizer, tf.keras.optimizers.legacy.Optimizer):
            optimizer.apply_gradients(zip(gradients, variables, strict=True))
        else:
            optimizer.apply(gradients, variables)
        return loss

    return step_fn


def looped(one, count: int | None):
    """Returns a `tf.function` that calls `one` once, or `count` times."""
    if count is None:
        return tf.function(one, autograph=False)

    @tf.function
    def many():
        losses = tf.TensorArray(tf.float32, size=count)
        for i in tf.range(count):
            losses = losses.write(i, one())
        return losses.stack()

    return many


def plain(count: int | None):
    """Returns a `tf.function` with the iterator inside."""
    step_fn = make_step(tf.keras.optimizers.legacy.Adam(LEARNING_RATE))
    iterator = iter(dataset(BATCH))
    return looped(lambda: step_fn(next(iterator)), count)


def raw(strategy: tf.distribute.Strategy, count: int | None):
    """Returns a `tf.function` of `strategy.run` on a distributed dataset."""
    replicas = strategy.num_replicas_in_sync
    with strategy.scope():
        step_fn = make_step(tf.keras.optimizers.legacy.Adam(LEARNING_RATE), replicas)
    source = dataset(BATCH // replicas)
    source = source.apply(tf.data.experimental.assert_cardinality(tf.data.INFINITE_CARDINALITY))
    iterator = iter(strategy.distribute_datasets_from_function(lambda _: source))
    return looped(
        lambda: strategy.reduce("sum", strategy.run(step_fn, args=(next(iterator),)), axis=None),
        count,
    )


def mirrored(replicas: int, count: int | None):
    """Returns raw code on `replicas` CPU devices."""
    devices = [f"/cpu:{i}" for i in range(replicas)]
    return raw(tf.distribute.MirroredStrategy(devices, tf.distribute.ReductionToOneDevice()), count)


def ours(replicator: rr.Replicator, count: int | None):
    """Returns this project's step."""
    with replicator.scope():
        step_fn = make_step(replicator.wrap_optimizer(rr.optimizers.Adam(LEARNING_RATE)))
    inputs = replicator.make_inputs(lambda context: dataset(context.per_replica_batch_size(BATCH)))
    return replicator.replicate(step_fn, inputs, count)


def one_process() -> tuple[dict[str, harness.Side], dict[str, str]]:
    """Returns the sides of this process, and what each is compared with."""
    calls, peers = {}, {}
    for count, suffix in ((None, ""), (LOOPED, f", {LOOPED} steps a call")):
        calls[PLAIN + suffix] = (plain(count), count)
        for name in ("single_device", "single_device:xla", "mesh:data=2"):
            calls[name + suffix] = (ours(rr.make(name), count), count)
            peers[name + suffix] = PLAIN + suffix
        for n in (2, 4):
            peer = f"MirroredStrategy, {n} devices{suffix}"
            calls[f"multi_device:{n}{suffix}"] = (ours(rr.make(f"multi_device:{n}"), count), count)
            calls[peer] = (mirrored(n, count), count)
            peers |= {f"multi_device:{n}{suffix}": peer, peer: PLAIN + suffix}
    sides = {
        name: harness.clocked(harness.repeated(step, STEPS // (count or 1)), STEPS, "steps")
        for name, (step, count) in calls.items()
    }
    return sides, peers


def work(kind: str) -> None:
    """Runs one of two workers."""
    if kind == OURS:
        step = ours(rr.make("multi_worker"), None)
    else:
        step = raw(tf.distribute.MultiWorkerMirroredStrategy(), None)
    processes.serve(harness.clocked(harness.repeated(step, STEPS), STEPS, "steps"))


def clusters(kinds: tuple[str, ...]) -> dict[str, list[dict[str, str]]]:
    """Returns the TF_CONFIG of both workers of each kind."""
    found = {}
    for kind in kinds:
        workers = [processes.free_address() for _ in range(2)]
        tasks = [{"type": "worker", "index": index} for index in range(2)]
        configs = [{"cluster": {"worker": workers}, "task": task} for task in tasks]
        found[kind] = [{"TF_CONFIG": json.dumps(config)} for config in configs]
    return found


def main() -> None:
    """Measures all sides."""
    parser = harness.parser("replication", __doc__)
    parser.add_argument("--worker", choices=(OURS, RAW), help="be a worker of this kind")
    options = parser.parse_args()
    if options.worker is not None:
        work(options.worker)
        return
    report = harness.Report("replication", options)
    rr.split_cpu(4)
    sides, peers = one_process()
    report.add(harness.measure(sides, options.rounds), peers)
    kinds = (RAW, OURS)
    commands = {kind: [["bench.replication", "--worker", kind]] * 2 for kind in kinds}
    with processes.groups(commands, clusters(kinds)) as pairs:
        report.add(harness.measure(pairs, options.rounds), {OURS: RAW})
    report.write()
    harness.end()


if __name__ == "__main__":
    main()
