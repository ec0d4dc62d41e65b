"""Trains the same networks on the same data under any replicator, as one would run it by hand.

    python training_program.py --replicas multi_device:2 --out DIR [--restore DIR ...]

Writes, for each network, a checkpoint after 20 steps and the weights after 0, 40 and 100 steps.
With `--restore` it trains from step 20 to 40 from the checkpoints of other runs instead.
"""

import argparse
import pathlib

import numpy as np
import sonnet as snt
import tensorflow as tf

import rl_replicator as rr
from rl_replicator import checkpoints
from rl_replicator.checkpoints import parts, values

GLOBAL_BATCH = 16
STEPS_PER_CALL = 10
FIRST, SAVED, LATER, LAST = 0, 20, 40, 100
_RNG = np.random.default_rng(0)
IMAGES = _RNG.normal(size=(160, 6, 6, 2)).astype(np.float32)
LABELS = np.sin(IMAGES.sum(axis=(1, 2, 3))).astype(np.float32)


class MLP(snt.Module):
    """Two layers with LayerNorm between them."""

    def __init__(self):
        super().__init__(name="mlp")
        self._net = snt.Sequential(
            [
                snt.Flatten(),
                snt.Linear(32, name="first"),
                snt.LayerNorm(-1, True, True),
                tf.tanh,
                snt.Linear(1, name="second"),
            ]
        )

    def __call__(self, images: tf.Tensor) -> tf.Tensor:
        return self._net(images)


class ConvNet(snt.Module):
    """A convolution, batch norm over all replicas, a linear layer."""

    def __init__(self):
        super().__init__(name="conv_net")
        # A bias before batch norm has no gradient but rounding, and Adam would make steps of it.
        self._conv = snt.Conv2D(8, 3, with_bias=False)
        self._norm = rr.CrossReplicaBatchNorm(create_scale=True, create_offset=True)
        self._linear = snt.Linear(1, name="second")

    def __call__(self, images: tf.Tensor) -> tf.Tensor:
        x = tf.nn.relu(self._norm(self._conv(images), is_training=True))
        return self._linear(tf.reduce_mean(x, axis=(1, 2)))


MODELS = {"mlp": MLP, "conv": ConvNet}


def input_fn(context: rr.InputContext) -> tf.data.Dataset:
    data = tf.data.Dataset.from_tensor_slices((IMAGES, LABELS))
    batches = data.batch(context.per_replica_batch_size(GLOBAL_BATCH), drop_remainder=True)
    return context.shard(batches.repeat())


def make_learner(replicator: rr.Replicator, model_class):
    """Returns a checkpoint's parts, the compiled step, and the variables to compare."""
    with replicator.scope():
        model = model_class()
        model(tf.zeros([GLOBAL_BATCH, *IMAGES.shape[1:]]))
        optimizer = replicator.wrap_optimizer(rr.optimizers.Adam(1e-3))
    replicator.build_optimizer(optimizer, model.trainable_variables)
    rng = np.random.default_rng(1)
    for variable in model.trainable_variables:
        fan_in = np.prod(variable.shape[:-1]) or 1
        start = rng.normal(size=variable.shape) / np.sqrt(fan_in)
        values.write(variable.name, variable, start.astype(np.float32))

    def step_fn(batch):
        images, labels = batch
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(images)[:, 0] - labels))
        parameters = model.trainable_variables
        optimizer.apply(tape.gradient(loss, parameters), parameters)
        return rr.collectives.all_mean(loss)

    inputs = replicator.make_inputs(input_fn)
    step = replicator.replicate(step_fn, inputs, STEPS_PER_CALL)
    learner = {
        "learner": parts.TrackablePart(model=model, optimizer=optimizer),
        "input": parts.InputPart(inputs),
    }
    return learner, step, model.variables


def train(step, steps: int) -> None:
    for _ in range(steps // STEPS_PER_CALL):
        step()


def write_weights(replicator, path: pathlib.Path, variables) -> None:
    if replicator.is_chief:
        path.parent.mkdir(parents=True, exist_ok=True)
        np.savez(path, *(values.read(v.name, v) for v in variables))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--replicas", required=True)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--restore", type=pathlib.Path, nargs="*", default=[])
    options = parser.parse_args()
    run(rr.make(options.replicas), options.out, options.restore)


def run(replicator: rr.Replicator, out: pathlib.Path, restore: list[pathlib.Path]) -> None:
    for name, model_class in MODELS.items():
        learner, step, variables = make_learner(replicator, model_class)
        for index, source in enumerate(restore):
            # One learner for all sources, because tracing takes long: what a restore leaves out has
            # the value of step 40. Inputs are restored before their first use only; the step's own
            # goes on with the same data, which repeats every ten steps.
            if index:
                inputs = replicator.make_inputs(input_fn)
                learner = {**learner, "input": parts.InputPart(inputs)}
            checkpoints.Checkpointer(source / name).restore(learner)
            assert not index or inputs.position == SAVED
            train(step, LATER - SAVED)
            write_weights(replicator, out / name / f"{LATER}-from-{source.name}.npz", variables)
        if restore:
            continue
        write_weights(replicator, out / name / f"{FIRST}.npz", variables)
        train(step, SAVED)
        if replicator.is_chief:
            checkpoints.Checkpointer(out / name).save(SAVED, learner)
        train(step, LATER - SAVED)
        write_weights(replicator, out / name / f"{LATER}.npz", variables)
        train(step, LAST - LATER)
        write_weights(replicator, out / name / f"{LAST}.npz", variables)


if __name__ == "__main__":
    main()
