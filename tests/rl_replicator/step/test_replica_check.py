"""Variables whose copies differ between replicas are found while steps are taken."""

import numpy as np
import pytest
import tensorflow as tf

import rl_replicator as rr

X = np.random.default_rng(0).normal(size=(64, 3)).astype(np.float32)


def rows(context):
    return tf.data.Dataset.from_tensor_slices(X).batch(4).repeat()


def test_a_counter_of_local_data_is_named():
    replicator = rr.make("multi_device:2")
    with replicator.scope():
        equal = tf.Variable(0.0, name="equal")
        seen = tf.Variable([0.0, 0.0], name="seen")

    def step_fn(x):
        equal.assign_add(rr.collectives.all_sum(x[0, 0]))
        seen.assign_add([0.0, tf.reduce_sum(x)])

    step = replicator.replicate(step_fn, replicator.make_inputs(rows))
    with pytest.raises(
        rr.ReplicasDiffer,
        match=r"'seen:0' \(2,\) differs between replica 0 and replica 1 after 1 steps",
    ) as error:
        step()
    assert isinstance(error.value, rr.UsageError) and "\n" not in str(error.value)


def test_what_is_declared_as_a_mean_is_averaged_or_compared():
    """Only variables that are not trainable are treated as moving statistics."""
    replicator = rr.make("multi_device:2")
    mean = tf.VariableAggregation.MEAN
    with replicator.scope():
        statistic = tf.Variable(0.0, trainable=False, aggregation=mean, name="statistic")
        trained = tf.Variable(0.0, aggregation=mean, name="trained")

    def step_fn(x):
        statistic.assign(tf.reduce_mean(x))
        trained.assign(tf.reduce_mean(x))

    step = replicator.replicate(step_fn, replicator.make_inputs(rows))
    with pytest.raises(rr.ReplicasDiffer, match=r"'trained:0' .* with trainable=False and aggr"):
        step()
    for copy in statistic.values:
        np.testing.assert_allclose(copy, X[:8].mean(), rtol=1e-5)


def test_declared_statistics_and_random_generators_may_differ():
    replicator = rr.make("multi_device:2")
    with replicator.scope():
        total = tf.Variable(
            0.0,
            trainable=False,
            synchronization=tf.VariableSynchronization.ON_READ,
            aggregation=tf.VariableAggregation.SUM,
        )
        generator = tf.random.Generator.from_seed(1)

    def step_fn(x):
        total.assign_add(tf.reduce_sum(x))
        return generator.normal([2])

    step = replicator.replicate(step_fn, replicator.make_inputs(rows))
    first = replicator.gather(step())
    assert (first[0] != first[1]).all()


@pytest.mark.parametrize("steps_per_call", [None, 4])
def test_a_later_difference_is_found_at_the_next_check(steps_per_call):
    replicator = rr.make("multi_device:2")
    with replicator.scope():
        count = tf.Variable(0, trainable=False, name="count")
    inputs = replicator.make_inputs(lambda context: lambda: tf.constant(1))
    taken = replicator.replicate(
        lambda x: count.assign_add(x), inputs, steps_per_call, check_every=20
    )
    never = replicator.replicate(lambda x: count.assign_add(x), inputs, check_every=None)
    size = steps_per_call or 1
    for _ in range(12 // size):
        taken()
    count.values[1].assign(50)  # TensorFlow lets any code do this.
    never()
    with pytest.raises(rr.ReplicasDiffer, match="'count:0' .* after 20 steps"):
        for _ in range(8 // size):
            taken()


@pytest.mark.parametrize(
    "values",
    [np.array([0.5, -0.5], np.float16), [True, False]],
    ids=["float16", "bool"],
)
def test_a_difference_of_any_type_is_found(values):
    """Also one of order alone, and if the length of the variable is not known."""
    replicator = rr.make("multi_device:2")
    with replicator.scope():
        variable = tf.Variable(values, shape=tf.TensorShape([None]), trainable=False)
        unused = tf.Variable(0.0, name="unused")
    unused.values[1].assign(1.0)  # Only what the step uses is compared.

    def step_fn(x):
        variable.assign(tf.where(x > 0, tf.reverse(variable, [0]), variable))

    inputs = replicator.make_inputs(lambda context: tf.data.Dataset.range(9))
    with pytest.raises(rr.ReplicasDiffer, match="replica 1 after 1 steps"):
        replicator.replicate(step_fn, inputs)()
