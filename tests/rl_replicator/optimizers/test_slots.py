"""Which parameter a new slot belongs to, and the layout of updates on a mesh."""

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.experimental import dtensor

import rl_replicator as rr
from rl_replicator.optimizers import slots

MATRIX, VECTOR = tf.TensorShape([2, 3]), tf.TensorShape([3])


def test_a_slot_belongs_to_the_current_parameter_of_a_loop():
    parameters = [tf.Variable(tf.zeros(MATRIX)), tf.Variable(tf.zeros(VECTOR))]
    watched = slots.Parameters(parameters)
    assert slots.owner(MATRIX) is None and slots.owner(None) is None
    assert len(watched) == 2 and watched[1] is parameters[1]
    for parameter, own, other in zip(watched, (MATRIX, VECTOR), (VECTOR, MATRIX), strict=True):
        assert slots.owner(own) is parameter
        assert slots.owner(None) is parameter  # As good as any guess.
        assert slots.owner(other) is None  # A factor of Adafactor, or a counter.
    assert slots.owner(VECTOR) is None
    for _ in watched:
        break  # As after an error. Otherwise a later variable would get this one's layout.
    watched.stop()
    assert slots.owner(MATRIX) is None


def test_an_update_gets_the_layout_of_its_parameter():
    replicator = rr.MeshReplicator({"data": 1, "model": 2}, layouts={"w": ("model", "none")})
    with replicator.scope():
        w = tf.Variable(tf.zeros([2, 3]), name="w")
    replicated = dtensor.Layout.replicated(w.layout.mesh, 2)
    value = tf.reshape(tf.range(6.0), [2, 3])
    update = slots.in_layout_of(w, dtensor.copy_to_mesh(value, replicated))
    assert dtensor.fetch_layout(update) == w.layout != replicated
    assert [part.numpy().tolist() for part in dtensor.unpack(update)] == [[[0, 1, 2]], [[3, 4, 5]]]


def test_weights_that_are_split_can_be_multiplied_by_zero():
    """As in Keras' Ftrl, whose defaults have such a term."""
    ends = []
    for replicator in (
        rr.MeshReplicator({"model": 2}, layouts={"w": ("model", "none")}),
        rr.SingleDeviceReplicator(),
    ):
        with replicator.scope():
            w = tf.Variable(tf.reshape(tf.range(6.0), [2, 3]), name="w")
            optimizer = replicator.wrap_optimizer(tf.keras.optimizers.Ftrl(0.1))
        inputs = replicator.make_inputs(lambda context: lambda: tf.ones([2, 3]))
        replicator.replicate(lambda g, w=w, o=optimizer: o.apply([g], [w]), inputs)()
        ends.append(w.numpy())
    np.testing.assert_allclose(*ends, rtol=1e-6)


def test_updates_that_do_not_belong_to_the_parameters_are_refused():
    variable = tf.Variable(1.0, name="weight")
    slots.check([None, tf.constant(1.0)], [tf.Variable(1.0), variable])
    for updates, parameters, message in (
        ([], [variable], "same length, got 0 and 1"),
        ([], [], "at least one parameter, got none"),
        ([None], [variable], "for at least one parameter, got None for all"),
        ([tf.constant(1.0, tf.float64)], [variable], "'weight:0' with dtype float32, got float64"),
    ):
        with pytest.raises(ValueError, match=message):
            slots.check(updates, parameters)
