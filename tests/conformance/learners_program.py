"""Trains learners for a few steps, under any replicator.

    python -m tests.conformance.learners_program --replicas multi_worker --data DIR --out DIR

Writes each learner's initial checkpoint to OUT/<learner>/start, its final one to OUT/<learner>/end,
and the figures of its evaluation, if it has one, to OUT/<learner>/figures.json.
"""

import argparse
import json
import pathlib

import tensorflow as tf

import rl_replicator as rr
from agents.d4pg.agent import D4PG
from agents.d4pg.config import D4PGConfig
from docs.examples import spirals_learner
from rl_replicator.checkpoints import Checkpointer
from rl_replicator.checkpoints.parts import TrackablePart
from rl_replicator.learners.loop import Training
from rl_replicator.learners.resnet import ResNetConfig, networks
from rl_replicator.learners.resnet.learner import ResNetLearner
from rl_replicator.learners.run_options import RunOptions
from rl_replicator.runs.run_directory import RunDirectory
from tests.agents import fixed_samples
from tests.rl_replicator.learners import tiny_images

# A depth with only two stages, because tracing takes most of the time here.
_DEPTH = 6
_BATCH = 16
_STEPS = 4


def resnet(replicator, data):
    networks.STAGES[_DEPTH] = ((1, 1), False)
    config = ResNetConfig(
        data_dir=data,
        depth=_DEPTH,
        width=4,
        precision="float32",
        cross_replica_norm=True,
        global_batch_size=_BATCH,
        epochs=_STEPS * _BATCH / tiny_images.NUM_TRAIN,
        warm_up_epochs=0.0,
        evaluate_epochs=100.0,
    )
    return ResNetLearner(replicator, config)


def spirals(replicator, data):
    del data
    config = spirals_learner.Config(steps=5 * _STEPS, global_batch_size=_BATCH, layers=(8,))
    return spirals_learner.make_learner(replicator, config)


LEARNERS = {"spirals": spirals, "resnet": resnet}


def train_learner(replicator, name, data, out):
    learner = LEARNERS[name](replicator, data)
    training = Training(
        replicator,
        learner,
        RunDirectory(out / "run"),
        RunOptions(steps_per_call=1, checkpoint_seconds=1000.0),
    )
    save(replicator, out / "start", learner.trackables())
    assert training.run() is None
    save(replicator, out / "end", learner.trackables())
    if learner.evaluation() is not None:
        figures = training.measure()
        if replicator.is_chief:
            (out / "figures.json").write_text(json.dumps(figures))


def train_d4pg(replicator, out):
    config = D4PGConfig(
        policy_layers=(16, 16), critic_layers=(16, 16), target_update_period=3, num_atoms=21
    )
    tf.random.set_seed(5)
    with replicator.scope():
        module = D4PG(config, fixed_samples.make_spec()).make_module(replicator, total_steps=100)

    samples = fixed_samples.make_samples(_STEPS * _BATCH)

    def input_fn(context):
        data = tf.data.Dataset.from_tensor_slices(samples).repeat()
        batches = data.batch(context.per_replica_batch_size(_BATCH), drop_remainder=True)
        return context.shard(batches)

    step = replicator.replicate(module.step_fn, replicator.make_inputs(input_fn), _STEPS)
    save(replicator, out / "start", {"module": module})
    step()
    save(replicator, out / "end", {"module": module})


def save(replicator, folder, trackables):
    if replicator.is_chief:
        Checkpointer(folder).save(0, {"learner": TrackablePart(**trackables)})


def run(replicator, data, out):
    """Trains all learners in turn."""
    for name in ("d4pg", *LEARNERS):
        folder = out / name
        folder.mkdir(parents=True, exist_ok=True)
        if name == "d4pg":
            train_d4pg(replicator, folder)
        else:
            train_learner(replicator, name, data, folder)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--replicas", required=True)
    parser.add_argument("--data", type=pathlib.Path, required=True)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    options = parser.parse_args()
    # Same as the tests' fixture `plain_graphs`.
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
    run(rr.make(options.replicas), options.data, options.out)


if __name__ == "__main__":
    main()
