"""A training step with `rr.optimizers.Adam` against one with Sonnet's.

    python bench/fused_adam.py [--replicas 2] [--rounds 20]

The step is shaped as an actor-critic's: LayerNorm MLPs of 256-256-256 and 512-512-256, 20
variables, batch 256. The two take turns in one process. Prints the median time of a step.
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
ATOMS = 51


def network(sizes, outputs):
    return snt.Sequential(
        [
            snt.Linear(sizes[0]),
            snt.LayerNorm(-1, True, True),
            tf.tanh,
            snt.nets.MLP([*sizes[1:], outputs], activation=tf.nn.elu),
        ]
    )


def make_step(replicator, optimizer_class):
    with replicator.scope():
        actor, critic = network([256, 256, 256], 1), network([512, 512, 256], ATOMS)
        critic(tf.concat([tf.zeros([1, 5]), actor(tf.zeros([1, 5]))], axis=1))
        optimizers = [replicator.wrap_optimizer(optimizer_class(1e-4)) for _ in range(2)]

    def step_fn(x):
        target = tf.fill([tf.shape(x)[0], ATOMS], 1 / ATOMS)
        with tf.GradientTape(persistent=True) as tape:
            logits = critic(tf.concat([x, tf.stop_gradient(actor(x))], axis=1))
            critic_loss = tf.reduce_mean(tf.nn.softmax_cross_entropy_with_logits(target, logits))
            actor_loss = -tf.reduce_mean(critic(tf.concat([x, actor(x)], axis=1)))
        for optimizer, loss, module in zip(
            optimizers, (actor_loss, critic_loss), (actor, critic), strict=True
        ):
            parameters = module.trainable_variables
            optimizer.apply(tape.gradient(loss, parameters), parameters)
        return critic_loss

    data = np.random.default_rng(0).normal(size=(4 * BATCH, 5)).astype(np.float32)
    inputs = replicator.make_inputs(
        lambda context: (
            tf.data.Dataset.from_tensor_slices(data)
            .batch(context.per_replica_batch_size(BATCH))
            .cache()
            .repeat()
        )
    )
    return replicator.replicate(step_fn, inputs, 10)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--replicas", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=20)
    options = parser.parse_args()
    name = "single_device" if options.replicas == 1 else f"multi_device:{options.replicas}"
    replicator = rr.make(name)
    steps = {
        "snt.optimizers.Adam": make_step(replicator, snt.optimizers.Adam),
        "rr.optimizers.Adam": make_step(replicator, rr.optimizers.Adam),
    }
    times: dict[str, list[float]] = {kind: [] for kind in steps}
    for round_number in range(options.rounds + 1):
        for kind, step in steps.items():
            start = time.perf_counter()
            step()
            if round_number:  # The first is for warming up.
                times[kind].append((time.perf_counter() - start) / 10)
    base = times["snt.optimizers.Adam"]
    for kind, values in times.items():
        ratio = np.median(np.divide(values, base))
        print(f"{name} {kind:20s} {1e3 * np.median(values):7.3f} ms  {ratio:5.2f}")


if __name__ == "__main__":
    main()
