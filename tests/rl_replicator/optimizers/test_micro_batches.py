"""M micro-batches of B / M examples give the same result as one batch of B."""

import functools

import numpy as np
import pytest
import sonnet as snt
import tensorflow as tf

import rl_replicator as rr
from rl_replicator import collectives
from rl_replicator.optimizers import micro_batches

BATCH = 12
RNG = np.random.default_rng(0)
X = RNG.normal(size=(BATCH, 4)).astype(np.float32)
WORDS = RNG.integers(0, 5, size=BATCH)


def test_halves_add_up_in_float32():
    # 1 + 8 * 2**-8 in bfloat16 would stay 1.
    x = tf.constant([1.0] + [2**-8] * 8, tf.bfloat16)
    mean = micro_batches.accumulate(tf.reduce_sum, x, 9)
    assert mean.dtype == tf.bfloat16
    np.testing.assert_allclose(tf.cast(mean, tf.float32), (1 + 8 * 2**-8) / 9, 4e-3)


def test_rows_may_differ_in_number():
    """Rows of the positive entries; in the mean of three parts, each part counts a third."""

    def positive(x):
        def function(part):
            where = tf.where(part > 0)[:, 0]
            return tf.IndexedSlices(tf.gather(part, where), where, tf.constant([2], tf.int64))

        return micro_batches.accumulate(function, x, 3)

    for find in (positive, tf.function(positive)):
        rows = find(tf.constant([3.0, 6.0, -1.0, -1.0, -1.0, 9.0]))
        np.testing.assert_array_equal(rows.values, [1.0, 2.0, 3.0])
        np.testing.assert_array_equal(rows.indices, [0, 1, 1])
        np.testing.assert_array_equal(rows.dense_shape, [2])


@pytest.mark.parametrize("count", [1, 4])
def test_bools_and_python_numbers_have_means(count):
    means = micro_batches.accumulate(
        lambda x: [x[0] > 1.5, 3, 0.5], tf.constant([1.0, 2.0, 3.0, 4.0]), count
    )
    assert [mean.dtype for mean in means] == [tf.float32] * 3
    np.testing.assert_allclose(means, [0.0 if count == 1 else 0.75, 3.0, 0.5])


def test_a_nest_that_changes_is_refused():
    nests = iter([[1.0], [1.0, 2.0]])
    with pytest.raises(rr.ConfigError, match="same nest .* got 1 tensors and then 2"):
        micro_batches.accumulate(lambda x: next(nests), tf.ones([2]), 2)


def test_collectives_are_refused_in_a_loop():
    """One micro-batch needs none, so it may call them, as the rest of the step may."""
    replicator = rr.make("multi_device:2")
    inputs = replicator.make_inputs(lambda context: lambda: tf.ones([4]))

    def step_fn(count, x):
        return micro_batches.accumulate(lambda y: collectives.all_sum(y), x, count)

    with pytest.raises(rr.ConfigError, match="at the top level of step_fn"):
        replicator.replicate(functools.partial(step_fn, 2), inputs)
    step = replicator.replicate(functools.partial(step_fn, 1), inputs)
    np.testing.assert_array_equal(replicator.gather(step()), np.full([2, 4], 2.0))


def test_a_batch_that_does_not_divide():
    x = tf.ones([10])
    for batch, count, message in (
        (x, 4, r"multiple of 4 micro-batches, got shapes \(10,\); change"),
        (x, 0, "num_micro_batches to be a whole number of at least 1, got 0"),
        ([x, tf.ones([5])], 5, r"of one B, .* got shapes \(10,\), \(5,\)"),
        ([x, 1.0], 5, r"got shapes \(10,\), \(\)"),
        ([], 5, "got shapes of no tensor"),
        ({"x": tf.ragged.constant([[1.0], []])}, 2, r"got a RaggedTensor at \['x'\]; .* to_tensor"),
        ({"x": tf.sparse.eye(2)}, 2, r"got a SparseTensor at \['x'\]; .* tf.sparse.to_dense"),
    ):
        with pytest.raises(rr.ConfigError, match=message):
            micro_batches.accumulate(tf.nest.flatten, batch, count)


def test_elements_may_be_none_and_arrays():
    batch = {"mask": None, "x": np.array([1.0, 2.0, 3.0, 6.0], np.float32)}

    def function(part):
        assert part["mask"] is None and part["x"].shape == [2]
        return part["x"]

    assert micro_batches.accumulate(function, batch, 2).numpy().tolist() == [2.0, 4.0]


@pytest.mark.parametrize(("length", "jit_compile"), [(4, True), (None, None)])
def test_lengths_that_are_known_only_when_it_runs(length, jit_compile):
    """A batch that does not divide, or a tensor of another length, changes nothing."""
    seen = tf.Variable(0.0)
    specs = [tf.TensorSpec([length]), tf.TensorSpec([None])]

    @tf.function(input_signature=specs, jit_compile=jit_compile)
    def step(x, y):
        def function(part):
            return seen.assign_add(tf.reduce_sum(part[0])), tf.reduce_mean(part[1])

        return micro_batches.accumulate(function, (x, y), 2)

    assert float(step(tf.ones([4]), tf.range(4.0))[1]) == 1.5
    assert seen.numpy() == 4.0  # State goes on from part to part.
    wrong = [(tf.ones([4]), tf.range(8.0)), (tf.ones([4]), tf.range(3.0))]
    wrong += [(tf.ones([5]), tf.ones([5]))] if length is None else []
    for batch in wrong:
        with pytest.raises(tf.errors.InvalidArgumentError):
            step(*batch)
    assert seen.numpy() == 4.0


def make_model():
    model = snt.nets.MLP([8, 1], activation=tf.tanh)
    model(tf.zeros([1, 4]))
    table = tf.Variable(np.linspace(-1, 1, 20, dtype=np.float32).reshape(5, 4))
    rng = np.random.default_rng(1)
    for variable in model.trainable_variables:
        variable.assign(rng.normal(size=variable.shape).astype(np.float32))
    return model, [table, *model.trainable_variables]


def gradients_of(model, variables, batch):
    with tf.GradientTape() as tape:
        rows = tf.gather(variables[0], batch["words"])
        outputs = model(batch["x"] * rows)
        if tf.reduce_sum(batch["x"]) > 1e9:  # A branch for autograph.
            outputs *= 0.0
        loss = tf.reduce_mean(tf.square(outputs - 1.0))
    updates = tape.gradient(loss, variables)
    return {"loss": loss, "updates": updates, "none": None, "seen": tf.shape(rows)[0]}


@pytest.mark.parametrize(("count", "length"), [(4, None), (12, BATCH)])
def test_equals_the_whole_batch(count, length):
    model, variables = make_model()
    batch = {"x": tf.constant(X), "words": tf.constant(WORDS)}
    specs = {name: tf.TensorSpec([length, *x.shape[1:]], x.dtype) for name, x in batch.items()}

    @tf.function(input_signature=[specs])
    def accumulated(batch):
        def function(part):
            assert part["x"].shape == [length and length // count, 4]
            return gradients_of(model, variables, part)

        return micro_batches.accumulate(function, batch, count)

    got, expected = accumulated(batch), gradients_of(model, variables, batch)
    assert got["none"] is None
    assert got["seen"].dtype == tf.float32 and float(got["seen"]) == BATCH / count
    np.testing.assert_allclose(got["loss"], expected["loss"], 1e-6)
    assert isinstance(got["updates"][0], tf.IndexedSlices)
    for one, other in zip(got["updates"], expected["updates"], strict=True):
        one, other = tf.convert_to_tensor(one).numpy(), tf.convert_to_tensor(other).numpy()
        np.testing.assert_allclose(one, other, atol=1e-6 * np.abs(other).max())


def test_in_a_step():
    """One exchange per step, and the same weights as on one device with the whole batch."""
    replicator = rr.make("multi_device:2")
    with replicator.scope():
        model, variables = make_model()
        optimizer = replicator.wrap_optimizer(snt.optimizers.SGD(0.5))

    def input_fn(context):
        size = context.per_replica_batch_size(BATCH)
        return tf.data.Dataset.from_tensor_slices({"x": X, "words": WORDS}).batch(size, True)

    def step_fn(batch):
        result = micro_batches.accumulate(
            lambda part: gradients_of(model, variables, part), batch, 3
        )
        optimizer.apply(result["updates"], variables)
        return result["loss"]

    step = replicator.replicate(step_fn, replicator.make_inputs(input_fn))
    before = [variable.numpy() for variable in variables]
    loss = replicator.reduce("mean", step())
    with replicator.scope():
        after = [variable.numpy() for variable in variables]
    other = make_model()
    whole = gradients_of(*other, {"x": tf.constant(X), "words": tf.constant(WORDS)})
    np.testing.assert_allclose(loss, whole["loss"], 1e-6)
    for start, end, update in zip(before, after, whole["updates"], strict=True):
        expected = start - 0.5 * tf.convert_to_tensor(update).numpy()
        np.testing.assert_allclose(end, expected, 1e-6, 1e-6)
