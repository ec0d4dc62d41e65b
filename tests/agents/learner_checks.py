"""Checks that the learner's module of every actor-critic agent must pass, besides its maths."""

import numpy as np
import sonnet as snt
import tensorflow as tf

import rl_replicator as rr
from tests.agents.fixed_samples import make_samples

_BATCH, _STEPS = 8, 3


def check_start(module):
    """Asserts that targets are copies, and that all slots exist, so checkpoints can be restored.

    Args:
      module: the learner's module, before its first step.
    """
    not_trained = {module.num_steps.ref()}
    for name, network in module.target._asdict().items():
        copied = getattr(module.online, name).trainable_variables
        for target, online in zip(network.trainable_variables, copied, strict=True):
            np.testing.assert_array_equal(target, online, err_msg=target.name)
            not_trained.add(target.ref())
    assert any(np.any(variable) for variable in module.target.trainable_variables)
    trained = {v.ref() for v in module.trainable_variables}
    assert len(not_trained) > 1 and len(trained) > 1
    wrapped = [getattr(value, "optimizer", None) for value in vars(module).values()]
    optimizers = [x for x in wrapped if isinstance(x, snt.optimizers.Adam)]
    assert sum(len(optimizer.m) for optimizer in optimizers) == len(trained - not_trained)
    assert module.num_steps.ref() not in trained


def check_augmentation(make_module):
    """Asserts that every augmentation has its own seed.

    No two runs, no two steps and not even the two observations of a step share a seed; all replicas
    of a step do.

    Args:
      make_module: (replicator, augment) -> the learner's module.
    """
    seeds = []

    def augment(observations, seed):
        tf.numpy_function(lambda seed: seeds.append(tuple(seed)), [seed], [])
        return observations

    def input_fn(context):
        size = context.per_replica_batch_size(_BATCH)
        samples = make_samples(_STEPS * _BATCH, min_reward=-3.0)
        return tf.data.Dataset.from_tensor_slices(samples).batch(size, drop_remainder=True)

    drawn = []
    for run in (1, 2):
        tf.random.set_seed(run)
        replicator = rr.make("multi_device:2")
        module = make_module(replicator, augment)
        pairs = [(step, stream) for step in range(_STEPS) for stream in (0, 1)]
        drawn.append([tuple(module.step_seed(*pair).numpy()) for pair in pairs])
        if run == 1:  # Tracing takes seconds: the seeds suffice for the second run.
            replicator.replicate(module.step_fn, replicator.make_inputs(input_fn), _STEPS)()
    assert sorted(seeds) == sorted(2 * drawn[0])
    assert len({*drawn[0], *drawn[1]}) == 2 * 2 * _STEPS


def check_metrics(output):
    """Asserts that a replica's metrics describe its own priorities.

    Args:
      output: the output of the step on one replica.
    """
    priorities = output.priorities.numpy()
    np.testing.assert_allclose(
        output.metrics["priority_variation"], priorities.std() / priorities.mean(), rtol=1e-4
    )
