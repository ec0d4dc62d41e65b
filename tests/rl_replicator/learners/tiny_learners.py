"""Learners that train in almost no time."""

import dataclasses
import os
import signal
import threading
import time

import numpy as np
import tensorflow as tf

import rl_replicator as rr
from rl_replicator import learners

X = np.random.default_rng(0).normal(size=(60, 3)).astype(np.float32)
Y = (X @ np.array([1.0, -2.0, 3.0], np.float32)).astype(np.float32)


@dataclasses.dataclass(frozen=True)
class Config:
    """Linear regression."""

    steps: int = 40
    learning_rate: float = 0.1
    every: int = 15
    best: str = "-error"


class Regression(learners.Learner):
    """Shuffled data, Adam, an evaluation whose last batch is short."""

    def __init__(self, replicator, config):
        self.num_steps = config.steps
        self.global_batch_size = 12
        self._config = config
        with replicator.scope():
            self.w = tf.Variable(tf.zeros([3]), name="w")
            self.optimizer = replicator.wrap_optimizer(rr.optimizers.Adam(config.learning_rate))
        self.drawn = []

    def input_fn(self, context):
        data = tf.data.Dataset.from_tensor_slices((X, Y)).shuffle(60, seed=3).repeat()
        return context.shard(data.batch(context.per_replica_batch_size(12)))

    def step_fn(self, batch):
        x, y = batch
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((tf.linalg.matvec(x, self.w) - y) ** 2)
        self.optimizer.apply(tape.gradient(loss, [self.w]), [self.w])
        return {"loss": loss, "first": y[0]}

    def trackables(self):
        return {"w": self.w, "optimizer": self.optimizer}

    def evaluation(self):
        def input_fn(context):
            data = tf.data.Dataset.from_tensor_slices((X[:37], Y[:37]))
            return context.shard(data.batch(context.per_replica_batch_size(8)))

        def sums_fn(batch, mask):
            errors = (tf.linalg.matvec(batch[0], self.w) - batch[1]) ** 2
            return {"error": tf.reduce_sum(mask * errors), "examples": tf.reduce_sum(mask)}

        def metrics_fn(sums):
            return {"error": sums["error"] / sums["examples"], "examples": sums["examples"]}

        return learners.Evaluation(
            input_fn, sums_fn, metrics_fn, 8, self._config.every, self._config.best
        )

    def images(self, step):
        self.drawn.append(step)
        return {"weights": np.full([2, 3, 1], step, np.uint8)}


class Alternating(Regression):
    """Two phases on one input, 3 + 1 batches in a step, which are logged in binary digits."""

    def __init__(self, replicator, config):
        super().__init__(replicator, config)
        with replicator.scope():
            self.log = tf.Variable(tf.zeros([], tf.int64), name="log")

    def phases(self):
        return [learners.Phase("many", self.many, times=3), learners.Phase("one", self.one)]

    def many(self, batch):
        self.log.assign(self.log * 2)
        return {"loss": self.step_fn(batch)["loss"]}

    def one(self, batch):
        self.log.assign(self.log * 2 + 1)
        return {"log": tf.cast(self.log % 16, tf.float32)}

    def trackables(self):
        return super().trackables() | {"log": self.log}

    def evaluation(self):
        return None


class Overflowing(Regression):
    """Its gradient is infinite in two steps, which the optimizer skips."""

    def __init__(self, replicator, config):
        super().__init__(replicator, config)
        with replicator.scope():
            adam = rr.optimizers.Adam(config.learning_rate)
            self.optimizer = replicator.wrap_optimizer(adam, skip_nonfinite=True)
            self.calls = tf.Variable(0, trainable=False, name="calls")

    def step_fn(self, batch):
        x, y = batch
        overflows = tf.equal(self.calls.assign_add(1) % 20, 7)
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((tf.linalg.matvec(x, self.w) - y) ** 2)
        gradient = tf.where(overflows, np.inf, tape.gradient(loss, self.w))
        self.optimizer.apply([gradient], [self.w])
        return {"loss": loss}

    def trackables(self):
        return super().trackables() | {"calls": self.calls}


class Stalling(Regression):
    """Its data interrupts the process within a call of three steps, and then stalls."""

    def __init__(self, replicator, config):
        super().__init__(replicator, config)
        self.goes_on = threading.Event()

    def input_fn(self, context):
        def wait(number):
            if number == 14:
                os.kill(os.getpid(), signal.SIGINT)
                self.goes_on.wait()
            return number

        def pass_on(number, batch):
            with tf.control_dependencies([tf.numpy_function(wait, [number], tf.int64)]):
                return tf.nest.map_structure(tf.identity, batch)

        return super().input_fn(context).enumerate().map(pass_on)


class Waiting(Regression):
    """Its evaluation data stops arriving after a while, but does not end."""

    is_stuck = True

    def evaluation(self):
        return dataclasses.replace(super().evaluation(), input_fn=self.stuck)

    def stuck(self, context):
        def examples():
            yield from zip(X[:16], Y[:16], strict=True)
            while self.is_stuck:
                time.sleep(0.01)

        spec = (tf.TensorSpec([3]), tf.TensorSpec([]))
        data = tf.data.Dataset.from_generator(examples, output_signature=spec)
        return data.batch(context.per_replica_batch_size(8))


class Compared(Regression):
    """Compares its error with that of always answering 0, found by a pass over other data."""

    def evaluation(self):
        evaluation = super().evaluation()
        self.passes = 0

        def labels():
            self.passes += 1
            yield from Y[:50]

        def input_fn(context):
            data = tf.data.Dataset.from_generator(labels, output_signature=tf.TensorSpec([]))
            return data.batch(context.per_replica_batch_size(8))

        def sums_fn(batch, mask):
            return {"squares": tf.reduce_sum(mask * batch**2), "labels": tf.reduce_sum(mask)}

        def metrics_fn(sums, reference):
            figures = evaluation.metrics_fn(sums)
            of_zero = reference["squares"] / reference["labels"]
            return {**figures, "unexplained": figures["error"] / of_zero}

        return dataclasses.replace(
            evaluation, metrics_fn=metrics_fn, reference=learners.Reference(input_fn, sums_fn)
        )


class WaitingForReference(Compared):
    """Its reference data stops arriving after a while, but does not end."""

    is_stuck = True
    stuck = Waiting.stuck

    def evaluation(self):
        evaluation = super().evaluation()
        reference = learners.Reference(self.stuck, evaluation.sums_fn)
        return dataclasses.replace(evaluation, reference=reference)
