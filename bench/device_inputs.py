"""Batches that are copied to a GPU ahead of their steps, against batches that a step copies.

    python -m bench.device_inputs

A step is a small convolutional network, forward and backward, on batches in host memory: images of
float32, whose copy takes about as long as the step, and the frames of the pixel agent in uint8.
"plain" is a `tf.function` on the dataset's own iterator. On a machine without GPUs, both ways are
the same.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import sonnet as snt
import tensorflow as tf

import rl_replicator as rr
from bench import harness

STEPS = 50
BATCHES = 4  # Distinct batches, which are repeated.


def make_step(
    shape: tuple[int, ...], wrap_optimizer: Callable[[Any], Any]
) -> Callable[[tf.Tensor], tf.Tensor]:
    """Creates a model for images of a shape; returns its training step."""
    layers = [snt.Conv2D(32, 3, stride=2), tf.nn.relu, snt.Conv2D(32, 3, stride=2), tf.nn.relu]
    model = snt.Sequential([*layers, snt.Flatten(), snt.Linear(10)])
    model(tf.zeros([1, *shape]))
    optimizer = wrap_optimizer(snt.optimizers.SGD(1e-6))

    def step_fn(images: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(model(tf.cast(images, tf.float32)) ** 2)
        variables = model.trainable_variables
        optimizer.apply(tape.gradient(loss, variables), variables)
        return loss

    return step_fn


def make_dataset(batch: int, shape: tuple[int, ...], dtype: str) -> tf.data.Dataset:
    """Returns an endless dataset of batches of noise from memory."""
    random = np.random.default_rng(0)
    images = random.integers(0, 256, (BATCHES, batch, *shape), np.uint8).astype(dtype)
    return tf.data.Dataset.from_tensor_slices(images).cache().repeat().prefetch(2)


def ours(
    batch: int, shape: tuple[int, ...], dtype: str, prefetch_to_device: bool
) -> Callable[[], object]:
    """Returns the replicated step."""
    replicator = rr.make("single_device")
    with replicator.scope():
        step_fn = make_step(shape, replicator.wrap_optimizer)
    inputs = replicator.make_inputs(
        lambda context: make_dataset(batch, shape, dtype), prefetch_to_device=prefetch_to_device
    )
    return replicator.replicate(step_fn, inputs)


def plain(batch: int, shape: tuple[int, ...], dtype: str) -> Callable[[], object]:
    """Returns the same in plain TensorFlow."""
    iterator = iter(make_dataset(batch, shape, dtype))
    step_fn = make_step(shape, lambda optimizer: optimizer)
    return tf.function(lambda: step_fn(next(iterator)), autograph=False)


def main() -> None:
    """Measures steps on two kinds of batches."""
    options = harness.parser("device_inputs", __doc__).parse_args()
    report = harness.Report("device_inputs", options)
    for batch, shape, dtype in ((128, (224, 224, 3), "float32"), (256, (84, 84, 9), "uint8")):
        name = f"{batch} x {' x '.join(map(str, shape))} {dtype}"
        ahead, late, peer = (f"{name}, {way}" for way in ("copied ahead", "copied late", "plain"))
        calls = {
            ahead: ours(batch, shape, dtype, True),
            late: ours(batch, shape, dtype, False),
            peer: plain(batch, shape, dtype),
        }
        sides = {
            side: harness.clocked(
                harness.synchronized(harness.repeated(call, STEPS)), STEPS, "steps"
            )
            for side, call in calls.items()
        }
        report.add(harness.measure(sides, options.rounds), dict.fromkeys((ahead, late), peer))
    report.write()
    harness.end()


if __name__ == "__main__":
    main()
