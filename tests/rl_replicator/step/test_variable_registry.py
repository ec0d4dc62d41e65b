"""Which variables a step may touch."""

import copy
import gc

import pytest
import sonnet as snt
import tensorflow as tf

import rl_replicator as rr
from rl_replicator.layers import statistics
from rl_replicator.step import host


def test_a_model_that_nobody_uses_may_be_freed_while_a_step_is_traced(monkeypatch):
    replicator = rr.SingleDeviceReplicator()
    with replicator.scope():
        statistic = tf.Variable(1.0, trainable=False, aggregation=tf.VariableAggregation.MEAN)
    garbage = [statistic]
    garbage.append(garbage)
    # After the trace has read the statistics, before the variables in it are checked.
    monkeypatch.setattr(host.Host, "check_trace", lambda *_: gc.collect())
    inputs = replicator.make_inputs(lambda context: tf.data.Dataset.range(1))
    gc.disable()
    try:
        del statistic, garbage
        step = replicator.replicate(lambda x: x + 1, inputs)
    finally:
        gc.enable()
    assert int(replicator.reduce("sum", step())) == 1


@pytest.mark.parametrize("name", ["multi_device:2", "mesh:data=2"])
def test_a_deep_copy_in_the_scope_belongs_to_the_replicator(name):
    """Target networks are made this way."""
    replicator = rr.make(name)
    with replicator.scope():
        model = snt.nets.MLP([2])
        model.norm = rr.CrossReplicaBatchNorm(True, True)
        model.norm(model(tf.ones([4, 3])), is_training=False)
        total = tf.Variable(
            0,
            synchronization=tf.VariableSynchronization.ON_READ,
            aggregation=tf.VariableAggregation.SUM,
        )
        for i, own in enumerate(getattr(total, "values", (total,))):
            own.assign(i + 1)
        target, total = copy.deepcopy((model, total))
    copies = getattr(total, "values", (total,))
    assert [int(own) for own in copies] == [*range(1, len(copies) + 1)]
    assert len(statistics.among(target.variables)) == len(statistics.among(model.variables)) > 0
    for one, other in zip(model.variables, target.variables, strict=True):
        assert (one.name, one.trainable) == (other.name, other.trainable)

    own, copied = (
        next(v for v in made.trainable_variables if v.name.endswith("b:0") and v.shape == [2])
        for made in (model, target)
    )

    def step_fn(x):
        own.assign_add(x * tf.ones([2]))
        return tf.reduce_sum(copied)

    inputs = replicator.make_inputs(lambda context: lambda: tf.constant(1.0))
    replicator.replicate(step_fn, inputs)()
    assert (own - copied).numpy().tolist() == [1, 1]
