"""Variables whose copies differ between replicas are found while steps are taken."""

import numpy as np
import pytest
import sonnet as snt
import tensorflow as tf

import rl_replicator as rr
from rl_replicator.step import replica_check

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


def test_statistics_of_batch_norm():
    for kind, equal in ((snt.BatchNorm, False), (rr.CrossReplicaBatchNorm, True)):
        replicator = rr.make("multi_device:2")
        with replicator.scope():
            layer = kind(True, True, name="norm")
            layer(tf.zeros([1, 3]), is_training=True)
        step = replicator.replicate(
            lambda x, layer=layer: layer(x, is_training=True), replicator.make_inputs(rows)
        )
        if equal:
            step()
            continue
        with pytest.raises(rr.ReplicasDiffer, match="moving_mean"):
            step()


def test_statistics_of_a_model_that_the_step_does_not_use():
    replicator = rr.make("multi_device:2")
    with replicator.scope():
        other = rr.CrossReplicaBatchNorm(True, True, name="norm")
        other(tf.zeros([1, 3]), is_training=True)
        total = tf.Variable(0.0, name="total")
    for variable in other.variables:
        for index, copy in enumerate(variable.values):
            copy.assign(tf.cast(tf.fill(copy.shape, index), copy.dtype))

    def step_fn(x):
        total.assign_add(rr.collectives.all_sum(tf.reduce_sum(x)))

    replicator.replicate(step_fn, replicator.make_inputs(rows))()


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
    [
        np.array([1.5, -2.0], np.float16),
        np.array([[1.0, 2.0]], np.float32),
        np.array([1.0], np.float64),
        np.array([True, False]),
        np.array([3, -1], np.int8),
        np.array(7, np.int64),
        np.array([2**63], np.uint64),
        np.array([1 + 2j], np.complex64),
        np.array([1 + 2j], np.complex128),
        np.array([np.nan, np.inf], np.float32),
    ],
    ids=lambda values: values.dtype.name,
)
def test_checksums_see_a_single_bit(values):
    changed = values.copy().reshape(-1)
    changed.view(np.uint8)[0] ^= 1
    changed = changed.reshape(values.shape)
    other_kind = np.arange(5)
    # Packed with others, which come before, between and after them.
    arrays = [values, other_kind, values.copy(), changed, np.zeros(2**17, values.dtype)]
    first, _, same, flipped, zeros = replica_check.checksums([*map(tf.constant, arrays)])
    assert first == same != flipped and zeros == 0
    assert replica_check.checksums([tf.constant(changed)])[0] == flipped


def test_variables_of_unknown_length_are_compared():
    replicator = rr.make("multi_device:2")
    with replicator.scope():
        variable = tf.Variable([1.0, 2.0], shape=tf.TensorShape([None]), trainable=False)

    def step_fn(x):
        variable.assign([1.0, tf.cast(x, tf.float32)])

    inputs = replicator.make_inputs(lambda context: tf.data.Dataset.range(9))
    with pytest.raises(rr.ReplicasDiffer, match="replica 1 after 1 steps"):
        replicator.replicate(step_fn, inputs)()


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (np.arange(100), np.roll(np.arange(100), 1)),
        (np.eye(1, 50, 3), np.eye(1, 50, 17)),
        (np.array([1.0, -1.0, 2.0]), np.array([-1.0, 1.0, 2.0])),
        (np.array([1, 4, 2, 3]), np.array([1, 3, 4, 2])),
        (np.array([[True, False]]), np.array([[False, True]])),
    ],
    ids=["shifted", "one-hot", "signs", "permuted", "bools"],
)
def test_checksums_see_the_order(one, other):
    for together in (True, False):  # Packed, and alone.
        tensors = [tf.constant(one), tf.constant(other)]
        if together:
            first, second = replica_check.checksums(tensors)
        else:
            first, second = (replica_check.checksums([x])[0] for x in tensors)
        assert first != second
