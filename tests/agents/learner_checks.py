"""Checks that the learner's module of every actor-critic agent must pass, besides its maths."""

import collections

import numpy as np
import sonnet as snt
import tensorflow as tf


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


class RecordedSeeds:
    """An augmentation that changes nothing, and records its seeds."""

    def __init__(self):
        self._seeds = []

    def __call__(self, observations, seed):
        tf.numpy_function(lambda seed: self._seeds.append(tuple(seed)), [seed], [])
        return observations

    def check(self, num_steps, num_replicas):
        """Asserts that each augmentation had its own seed: of two in a step, the same on replicas.

        tests/rl_replicator/collectives/test_randomness.py compares runs.
        """
        counts = collections.Counter(self._seeds)
        assert len(counts) == 2 * num_steps and set(counts.values()) == {num_replicas}


def check_metrics(output):
    """Asserts that a replica's metrics describe its own priorities.

    Args:
      output: the output of the step on one replica.
    """
    priorities = output.priorities.numpy()
    np.testing.assert_allclose(
        output.metrics["priority_variation"], priorities.std() / priorities.mean(), rtol=1e-4
    )
