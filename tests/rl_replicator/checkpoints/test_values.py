"""The values of variables, read and written under every kind of replicator."""

import numpy as np
import pytest
import tensorflow as tf

import rl_replicator as rr
from rl_replicator import checkpoints
from rl_replicator.checkpoints import parts, values


def test_every_type_of_value(tmp_path):
    dtypes = (tf.float32, tf.bfloat16, tf.float16, tf.float64, tf.int32, tf.uint8, tf.bool)
    saved = [tf.Variable(tf.cast([[0, 1], [1, 3]], dtype)) for dtype in dtypes]
    saved += [tf.Variable(tf.cast(1, dtype)) for dtype in dtypes]
    checkpointer = checkpoints.Checkpointer(tmp_path)
    checkpointer.save(1, {"all": parts.TrackablePart(variables=saved)})
    restored = [tf.Variable(tf.zeros_like(v)) for v in saved]
    checkpointer.restore({"all": parts.TrackablePart(variables=restored)})
    for got, want in zip(restored, saved, strict=True):
        assert np.all(got.numpy() == want.numpy())
        read = values.read("x", got)
        assert (read.shape, tf.as_dtype(read.dtype)) == (got.shape, got.dtype)


def test_strings_are_refused(tmp_path):
    with pytest.raises(rr.CheckpointError, match="got strings in 'x'; save them in a JsonPart"):
        parts.TrackablePart(x=tf.Variable("text")).save(tmp_path)


def copied(replicas, aggregation, copies):
    """A variable whose copies have these values; "NONE" is TensorFlow's default aggregation."""
    with rr.make(f"multi_device:{replicas}").scope():
        variable = tf.Variable(
            tf.zeros_like(copies[0]),
            trainable=False,
            synchronization=tf.VariableSynchronization.ON_READ,
            aggregation=getattr(tf.VariableAggregation, aggregation),
        )
    for copy, value in zip(variable.values, copies, strict=True):
        copy.assign(value)
    return variable


def test_copies_that_are_parts_of_a_sum_are_refused(tmp_path):
    checkpointer = checkpoints.Checkpointer(tmp_path)
    part = parts.TrackablePart(count=copied(2, "SUM", [1.0, 2.0]))
    with pytest.raises(rr.CheckpointError, match="'count' with SUM aggregation"):
        checkpointer.save(1, {"a": part})
    # A single copy is the sum.
    assert values.read("count", copied(1, "SUM", [3.0])) == 3.0


def test_copies_that_are_to_be_averaged(tmp_path):
    """Keras' moving averages differ between replicas after `fit`."""
    mean = copied(3, "MEAN", [[1.0, 2.0], [1.0, 2.0], [7.0, 2.0]])
    part = parts.TrackablePart(mean=mean)
    part.save(tmp_path)
    part.restore(tmp_path)
    assert [copy.numpy().tolist() for copy in mean.values] == [[3.0, 2.0]] * 3
    assert values.read("mean", copied(2, "MEAN", [1.0, 4.0])) == 2.5
    large = values.read("mean", copied(2, "MEAN", [np.float16(60000), np.float16(50016)]))
    assert large.dtype == np.float16 and large == 55008  # Their sum overflows.


def test_equal_copies_are_not_averaged():
    """In float32, the mean of three equal numbers may differ from them."""
    value = np.float32(0.9)
    assert values.read("mean", copied(3, "MEAN", [value] * 3)) == value


def test_of_other_copies_the_first_counts():
    assert values.read("x", copied(2, "ONLY_FIRST_REPLICA", [1.0, 2.0])) == 1.0


def test_a_mesh_saves_whole_values_and_gets_them_back_in_its_layout(tmp_path):
    replicator = rr.MeshReplicator({"data": 2}, layouts={"split": ("none", "data")})
    matrix = np.arange(8, dtype=np.float32).reshape(4, 2)
    with replicator.scope():
        whole = tf.Variable(matrix, name="whole")
        split = tf.Variable(10 * matrix, name="split")
    layout = split.layout
    part = parts.TrackablePart(whole=whole, split=split)
    part.save(tmp_path)
    plain = {name: tf.Variable(tf.zeros([4, 2])) for name in ("whole", "split")}
    parts.TrackablePart(**plain).restore(tmp_path)
    np.testing.assert_array_equal(plain["whole"].numpy(), matrix)
    np.testing.assert_array_equal(plain["split"].numpy(), 10 * matrix)
    split.assign(tf.zeros([4, 2]))
    part.restore(tmp_path)
    assert split.layout == layout
    halves = [half.numpy() for half in split.shards().values()]
    np.testing.assert_array_equal(np.concatenate(halves, axis=1), 10 * matrix)
