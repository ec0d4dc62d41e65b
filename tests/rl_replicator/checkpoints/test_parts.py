"""Checkpoints for TensorFlow's own tools, and parts of a checkpoint restored alone."""

import numpy as np
import pytest
import sonnet as snt
import tensorflow as tf

import rl_replicator as rr
from rl_replicator import checkpoints
from rl_replicator.checkpoints import parts


def make(name):
    replicator = rr.make(name)
    with replicator.scope():
        model = snt.nets.MLP([4, 2])
        model(tf.zeros([1, 3]))
        optimizer = replicator.wrap_optimizer(rr.optimizers.Adam(0.1))
    replicator.build_optimizer(optimizer, model.trainable_variables)
    return replicator, model, optimizer


def filled(name):
    """A model and an optimizer whose variables all have other values."""
    replicator, model, optimizer = make(name)
    with replicator.scope():
        for i, variable in enumerate([*model.variables, *optimizer.variables]):
            shape, dtype = variable.shape, variable.dtype
            variable.assign(tf.cast(tf.fill(shape, i + 1), dtype))
    return model, optimizer


def values(model, optimizer):
    return [v.numpy() for v in (*model.variables, *optimizer.variables)]


@pytest.mark.parametrize("name", ["single_device", "multi_device:2", "mesh:data=2"])
def test_tensorflow_restores_an_export(name, tmp_path):
    model, optimizer = filled(name)
    part = parts.TrackablePart(model=model, optimizer=optimizer)
    path = part.export_tf(tmp_path / "exported")
    # Plain Sonnet objects, without a replicator.
    other, other_optimizer = snt.nets.MLP([4, 2]), snt.optimizers.Adam(0.1)
    other(tf.zeros([1, 3]))
    other_optimizer._initialize(other.trainable_variables)
    status = tf.train.Checkpoint(model=other, optimizer=other_optimizer).read(path)
    status.assert_consumed()
    want = {v.name: v.numpy() for v in (*model.variables, *optimizer.variables)}
    got = {v.name: v.numpy() for v in (*other.variables, *other_optimizer.variables)}
    assert got.keys() == want.keys() and len(got) > 12
    for key, value in want.items():
        np.testing.assert_array_equal(got[key], value, key)


def test_a_subset_is_restored_alone(tmp_path):
    model, optimizer = filled("multi_device:2")
    checkpointer = checkpoints.Checkpointer(tmp_path)
    checkpointer.save(1, {"learner": parts.TrackablePart(model=model, optimizer=optimizer)})
    _, other, other_optimizer = make("single_device")
    before = values(other, other_optimizer)
    checkpointer.restore({"learner": parts.TrackableSubset(model=other)})
    count = len(other.variables)
    for got, want in zip(other.variables, model.variables, strict=True):
        np.testing.assert_array_equal(got.numpy(), want.numpy())
    for got, want in zip(values(other, other_optimizer)[count:], before[count:], strict=True):
        np.testing.assert_array_equal(got, want)


def test_a_subset_that_does_not_fit(tmp_path):
    model, _ = filled("single_device")
    checkpointer = checkpoints.Checkpointer(tmp_path)
    checkpointer.save(1, {"learner": parts.TrackablePart(model=model)})
    with pytest.raises(rr.CheckpointError, match="found no such variable"):
        checkpointer.restore({"learner": parts.TrackableSubset(network=model)})
    with pytest.raises(rr.CheckpointError, match="use it for restoring only"):
        checkpointer.save(2, {"learner": parts.TrackableSubset(model=model)})
