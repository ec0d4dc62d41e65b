"""A learner of your own: rl-replicator train spirals_learner:make_learner --replicas 2"""

import dataclasses

import numpy as np
import sonnet as snt
import tensorflow as tf

import rl_replicator as rr
from rl_replicator import learners


@dataclasses.dataclass(frozen=True)
class Config:
    """Tell two spirals apart with a small network."""

    steps: int = 2000
    """Steps of the run."""
    global_batch_size: int = 128
    """Examples per step, over all replicas."""
    learning_rate: float = 3e-3
    """Learning rate of Adam."""
    layers: tuple[int, ...] = (64, 64)
    """Hidden layers of the network."""
    seed: int = 1
    """Seed of the weights and of the order of the examples."""


def make_learner(replicator: rr.Replicator, config: Config) -> learners.Learner:
    return Spirals(replicator, config)


class Spirals(learners.Learner):
    def __init__(self, replicator, config):
        self.num_steps = config.steps
        self.global_batch_size = config.global_batch_size
        self._seed = config.seed
        tf.random.set_seed(config.seed)
        with replicator.scope():  # Every variable is created in here.
            self._model = snt.nets.MLP([*config.layers, 1])
            self._optimizer = replicator.wrap_optimizer(rr.optimizers.Adam(config.learning_rate))

    def input_fn(self, context):
        x, y = spirals(4096, seed=1)
        data = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(4096, seed=self._seed).repeat()
        return context.shard(data.batch(context.per_replica_batch_size(self.global_batch_size)))

    def step_fn(self, batch):
        x, y = batch  # [B, 2] float32, [B] float32
        with tf.GradientTape() as tape:
            logits = self._model(x)[:, 0]  # [B]
            losses = tf.nn.sigmoid_cross_entropy_with_logits(labels=y, logits=logits)
            loss = tf.reduce_mean(losses)
        variables = self._model.trainable_variables
        self._optimizer.apply(tape.gradient(loss, variables), variables)
        return {"loss": loss}

    def trackables(self):
        return {"model": self._model, "optimizer": self._optimizer}

    def evaluation(self):
        def input_fn(context):
            data = tf.data.Dataset.from_tensor_slices(spirals(1000, seed=2))
            return context.shard(data.batch(context.per_replica_batch_size(128)))

        def sums_fn(batch, mask):  # mask: [B], 0 where a short batch was padded.
            x, y = batch
            right = tf.cast(tf.equal(self._model(x)[:, 0] > 0, y > 0.5), tf.float32)
            return {"right": tf.reduce_sum(mask * right), "examples": tf.reduce_sum(mask)}

        def metrics_fn(sums):
            return {"accuracy": sums["right"] / sums["examples"]}

        return learners.Evaluation(
            input_fn, sums_fn, metrics_fn, global_batch_size=128, every=500, best="accuracy"
        )

    def served(self):
        def function(x):  # [B, 2] float32
            return {"logits": self._model(x)[:, 0]}

        return learners.Served(function, {"x": tf.TensorSpec([None, 2])})


def spirals(count, seed):
    """Points on two spirals, [count, 2], and the index of each point's spiral, [count]."""
    rng = np.random.default_rng(seed)
    y = rng.integers(2, size=count)
    turn = rng.uniform(0.5, 2.0, size=count)
    angle = 2 * np.pi * turn + np.pi * y
    x = turn[:, None] * np.stack([np.cos(angle), np.sin(angle)], axis=1)
    return (x + 0.05 * rng.normal(size=x.shape)).astype(np.float32), y.astype(np.float32)
