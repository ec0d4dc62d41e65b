"""Which variables a step may touch."""

import gc

import tensorflow as tf

import rl_replicator as rr
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
