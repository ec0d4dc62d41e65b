"""A training step with `rr.optimizers.Adam` against the same step with Sonnet's Adam.

    python -m bench.fused_adam

The step is like an actor-critic's: LayerNorm MLPs of 256-256-256 and 512-512-256, 20
variables, batch 256; on one device and on two.
"""

import numpy as np
import sonnet as snt
import tensorflow as tf

import rl_replicator as rr
from bench import harness

BATCH = 256
ATOMS, STEPS = 51, 10


def network(sizes, outputs):
    """Returns a LayerNorm MLP."""
    return snt.Sequential(
        [
            snt.Linear(sizes[0]),
            snt.LayerNorm(-1, True, True),
            tf.tanh,
            snt.nets.MLP([*sizes[1:], outputs], activation=tf.nn.elu),
        ]
    )


def make_step(replicator, optimizer_class):
    """Returns a replicated step, with ten steps per call."""
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
    return replicator.replicate(step_fn, inputs, STEPS)


def main() -> None:
    """Measures both optimizers on one device and on two."""
    options = harness.parser("fused_adam", __doc__).parse_args()
    report = harness.Report("fused_adam", options)
    rr.split_cpu(2)
    for replicator in ("single_device", "multi_device:2"):
        ours, peer = f"{replicator}, rr.optimizers.Adam", f"{replicator}, Sonnet's Adam"
        sides = {
            name: harness.clocked(make_step(rr.make(replicator), optimizer), STEPS, "steps")
            for name, optimizer in ((ours, rr.optimizers.Adam), (peer, snt.optimizers.Adam))
        }
        report.add(harness.measure(sides, options.rounds), {ours: peer})
    report.write()


if __name__ == "__main__":
    main()
