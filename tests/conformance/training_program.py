"""Trains the same networks on the same data under any replicator, as a user would.

    python training_program.py --replicas multi_device:2 --out DIR --restore DIR ...

Writes, for each network, a checkpoint after 20 steps and the weights after 0, 40 and 100 steps.
Then waits until the runs named by `--restore` have done the same, and trains from step 20 to 40
from each one's checkpoint.
"""

import argparse
import pathlib
import time

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
        # The gradient of a bias before batch norm is only rounding error, which Adam would turn
        # into steps.
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


# Seconds to wait for other runs to reach the same point, on a busy machine.
_WAIT = 240


def make_learners(replicator: rr.Replicator):
    """Returns for each network: checkpoint parts, the compiled step, and the variables to compare.

    Tracing takes most of the time here, so a learner trains first and restores later.
    """
    return {name: _make_learner(replicator, model_class) for name, model_class in MODELS.items()}


def _make_learner(replicator: rr.Replicator, model_class):
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


def _take(step, steps: int) -> None:
    for _ in range(steps // STEPS_PER_CALL):
        step()


def _write_weights(replicator, path: pathlib.Path, variables) -> None:
    if replicator.is_chief:
        path.parent.mkdir(parents=True, exist_ok=True)
        np.savez(path, *(values.read(v.name, v) for v in variables))


def train(replicator: rr.Replicator, learners, out: pathlib.Path) -> None:
    """Trains new learners for 100 steps, with a checkpoint on the way."""
    for name, (learner, step, variables) in learners.items():
        _write_weights(replicator, out / name / f"{FIRST}.npz", variables)
        _take(step, SAVED)
        if replicator.is_chief:
            checkpoints.Checkpointer(out / name).save(SAVED, learner)
        _take(step, LATER - SAVED)
        _write_weights(replicator, out / name / f"{LATER}.npz", variables)
        _take(step, LAST - LATER)
        _write_weights(replicator, out / name / f"{LAST}.npz", variables)


def restore(replicator: rr.Replicator, learners, out: pathlib.Path, sources) -> None:
    """Continues training from the checkpoints of other runs.

    The variables are those of a later step before each restore, so whatever it leaves out is wrong.
    """
    for name, (learner, step, variables) in learners.items():
        for source in sources:
            _wait_for(source / name / f"{LAST}.npz")
            # An input can only be restored before its first use. The step's own input continues
            # with the same data, which repeats every ten steps.
            inputs = replicator.make_inputs(input_fn)
            parts_of_source = {**learner, "input": parts.InputPart(inputs)}
            checkpoints.Checkpointer(source / name).restore(parts_of_source)
            assert inputs.position == SAVED
            _take(step, LATER - SAVED)
            path = out / name / f"{LATER}-from-{source.name}.npz"
            _write_weights(replicator, path, variables)


def _wait_for(path: pathlib.Path) -> None:
    deadline = time.monotonic() + _WAIT
    while not path.exists():
        if time.monotonic() > deadline:
            raise TimeoutError(f"expected {path} within {_WAIT} s")
        time.sleep(0.1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--replicas", required=True)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--restore", type=pathlib.Path, nargs="+", required=True)
    options = parser.parse_args()
    replicator = rr.make(options.replicas)
    learners = make_learners(replicator)
    train(replicator, learners, options.out)
    restore(replicator, learners, options.out, options.restore)


if __name__ == "__main__":
    main()
