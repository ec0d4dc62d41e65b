"""Sizes, masks and dtypes."""

import numpy as np
import pytest
import sonnet as snt
import tensorflow as tf

from rl_replicator.learners.resnet import networks
from rl_replicator.learners.resnet.normalization import BatchNorm, cross_replica_batch_norm


def size(variables):
    return sum(int(np.prod(v.shape)) for v in variables)


# Parameters of the published networks with 1000 classes.
@pytest.mark.parametrize(
    ("depth", "count"), [(18, 11_689_512), (34, 21_797_672), (50, 25_557_032), (101, 44_549_160)]
)
def test_parameters(depth, count, monkeypatch):
    # Drawing the initial values would take most of the time.
    monkeypatch.setattr(
        snt.initializers.TruncatedNormal, "__call__", lambda self, shape, dtype: tf.zeros(shape)
    )
    network = networks.ResNet(depth, 1000, networks.ImageNetStem, BatchNorm)
    logits = network(tf.zeros([1, 32, 32, 3]), is_training=False)
    assert logits.shape == [1, 1000] and logits.dtype == tf.float32
    assert size(network.trainable_variables) == count


def test_norms_and_biases_do_not_decay():
    network = networks.ResNet(18, 10, networks.SmallImageStem, BatchNorm, width=4)
    network(tf.zeros([1, 8, 8, 1]), is_training=False)
    variables = network.trainable_variables
    mask = networks.decayed(variables)
    assert sum(mask) == 20 + 1  # 17 layers of the blocks and the stem, 3 shortcuts; the logits.
    for variable, is_decayed in zip(variables, mask, strict=True):
        name = variable.name.split("/")[-1]
        assert is_decayed == (name == "w:0"), variable.name


@pytest.mark.parametrize(
    ("stem", "side"), [(networks.SmallImageStem, 32), (networks.ImageNetStem, 8)]
)
def test_stems(stem, side):
    assert stem(4, BatchNorm)(tf.zeros([1, 32, 32, 3]), True).shape == [1, side, side, 4]


def test_stride_is_in_the_middle_layer():
    block = networks.Block(4, 2, True, True, BatchNorm)
    block(tf.zeros([1, 8, 8, 8]), is_training=False)
    assert [conv._stride for conv in block._convs] == [1, 2, 1]


def test_a_new_block_is_the_identity():
    block = networks.Block(4, 1, False, False, BatchNorm)
    x = tf.abs(tf.random.normal([2, 4, 4, 4]))
    np.testing.assert_array_equal(block(x, is_training=True), x)


@pytest.mark.parametrize(
    ("kind", "dtype"), [(BatchNorm, tf.bfloat16), (cross_replica_batch_norm, tf.float16)]
)
def test_mixed_precision(kind, dtype):
    network = networks.ResNet(50, 10, networks.SmallImageStem, kind, width=4)
    logits = network(tf.zeros([2, 8, 8, 1], dtype), is_training=True)
    assert logits.dtype == tf.float32
    assert {v.dtype for v in network.variables} == {tf.float32}
