"""Steps that XLA compiles; tests/conformance/test_equality.py checks that they compute the same."""

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.eager import context as eager_context

import rl_replicator as rr

keras = tf.keras.optimizers


def make_step(step_fn, **options):
    replicator = rr.make("single_device:xla")
    data = tf.data.Dataset.range(8, output_type=tf.float32).batch(4)
    inputs = replicator.make_inputs(lambda context: data)
    return replicator.replicate(step_fn, inputs, **options)


@pytest.mark.parametrize(
    ("options", "after"), [({}, None), ({"steps_per_call": 2}, None), ({}, "mesh:data=2")]
)
def test_an_operation_that_xla_lacks_is_named(options, after):
    if after:  # A variable on a mesh changes how TensorFlow compiles from then on.
        with rr.make(after).scope():
            tf.Variable(tf.zeros([2]))
    step = make_step(lambda x: tf.strings.to_number(tf.strings.as_string(x)), **options)
    with pytest.raises(
        rr.ConfigError, match="that XLA compiles, got AsString; move it to a tf.data.Dataset"
    ) as error:
        step()
    assert "\n" not in str(error.value)


def number(x):
    return x[0]


def text(x):
    return x[1]


@pytest.mark.parametrize("step_fn", [number, text])
def test_strings_are_named(step_fn):
    replicator = rr.make("single_device:xla")
    data = tf.data.Dataset.range(8).map(lambda x: (x, tf.strings.as_string(x)))
    step = replicator.replicate(step_fn, replicator.make_inputs(lambda context: data))
    with pytest.raises(rr.ConfigError, match="XLA compiles, got strings or other types"):
        step()


def test_a_callable_input_is_compiled_too():
    replicator = rr.make("single_device:xla")

    def sample():
        return tf.ensure_shape(tf.numpy_function(np.ones, [2], tf.float64), [2])

    inputs = replicator.make_inputs(lambda context: sample)
    match = "got PyFunc; move it to a tf.data.Dataset that input_fn returns"
    with pytest.raises(rr.ConfigError, match=match):
        replicator.replicate(lambda x: x + 1, inputs)()


def test_other_errors_and_the_end_of_the_data_are_those_of_any_step():
    step = make_step(lambda x: x + 1, steps_per_call=3)
    np.testing.assert_array_equal(step(), [[1, 2, 3, 4], [5, 6, 7, 8]])
    with pytest.raises(rr.EndOfData):
        step()


def test_an_evaluation_may_have_dynamic_shapes():
    replicator = rr.make("single_device:xla")

    def sums_fn(x, mask):
        return tf.reduce_sum(tf.boolean_mask(x, mask > 0)), tf.size(tf.strings.as_string(x))

    data = tf.data.Dataset.range(10, output_type=tf.float32).batch(4)
    assert replicator.make_evaluation(sums_fn, lambda context: data, 4)() == (45.0, 12)


@pytest.fixture
def usual_compiler():
    """The compiler of a process without a mesh; the other one cannot compile `tf.unique`."""
    is_other = eager_context.context().enable_mlir_bridge == 1
    tf.config.experimental.disable_mlir_bridge()
    yield
    if is_other:
        tf.config.experimental.enable_mlir_bridge()


def after_sparse_steps(name, make_optimizer, options):
    """Returns a table, and the optimizer's slots of its shape, after two steps."""
    replicator = rr.make(name)
    with replicator.scope():
        table = tf.Variable(np.linspace(0.1, 1, 10, dtype=np.float32).reshape(5, 2))
        optimizer = replicator.wrap_optimizer(make_optimizer(), **options)
    replicator.build_optimizer(optimizer, [table])

    def step_fn(words):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.gather(table, words) ** 2)
        optimizer.apply(tape.gradient(loss, [table]), [table])

    batches = tf.constant([[3, 1, 1, 1], [2, 1, 0, 0]])
    inputs = replicator.make_inputs(lambda context: tf.data.Dataset.from_tensor_slices(batches))
    replicator.replicate(step_fn, inputs, steps_per_call=2)()
    variables = optimizer.variables
    slots = variables() if callable(variables) else variables
    return [table.numpy(), *(x.numpy() for x in slots if x is not table and x.shape == [5, 2])]


CLIPPED = {"max_global_norm": 0.5}


@pytest.mark.slow
@pytest.mark.usefixtures("usual_compiler")
@pytest.mark.parametrize(
    ("make_optimizer", "options"),
    [
        (lambda: rr.optimizers.Adam(0.1), CLIPPED),
        (lambda: keras.Adam(0.1, clipnorm=0.5), CLIPPED),
    ],
    ids=["own", "keras"],
)
def test_rows_are_merged_as_without_xla(make_optimizer, options):
    """Rows are merged once for clipping, and again in optimizers that write rows."""
    got, expected = (
        after_sparse_steps(name, make_optimizer, options)
        for name in ("single_device:xla", "single_device")
    )
    assert len(expected) > 1
    for one, other in zip(got, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
