"""An optimizer that a step applies must have been wrapped."""

import pytest
import sonnet as snt
import tensorflow as tf

import rl_replicator as rr


class MySonnetOptimizer(snt.Optimizer):
    """An optimizer that a user wrote."""

    def apply(self, updates, parameters):
        for update, parameter in zip(updates, parameters, strict=True):
            if tf.reduce_sum(update) > 1e30:  # For AutoGraph to convert.
                update = tf.zeros_like(update)
            parameter.assign_sub(0.1 * update)


class MyKerasOptimizer(tf.keras.optimizers.SGD):
    """A subclass of Keras's that a user wrote."""

    def update_step(self, gradient, variable):
        variable.assign_sub(0.1 * gradient)


OPTIMIZERS = {
    "sonnet": lambda: snt.optimizers.SGD(0.1),
    "ours": lambda: rr.optimizers.Adam(0.1),
    "of a user": MySonnetOptimizer,
    "keras": lambda: tf.keras.optimizers.SGD(0.1),
    "keras of a user": MyKerasOptimizer,
}


@pytest.mark.parametrize("name", ["single_device", "multi_device:2"])
@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_a_forgotten_wrap_is_refused(name, kind):
    replicator = rr.make(name)
    with replicator.scope():
        w = tf.Variable(1.0)
        optimizer = OPTIMIZERS[kind]()

    def step_fn(x):
        with tf.GradientTape() as tape:
            loss = w * x
        gradients = tape.gradient(loss, [w])
        if isinstance(optimizer, snt.Optimizer):
            optimizer.apply(gradients, [w])
        else:
            optimizer.apply_gradients(zip(gradients, [w], strict=True))

    inputs = replicator.make_inputs(lambda context: tf.data.Dataset.from_tensors(2.0).repeat())
    methods = [vars(type(optimizer)).get(method) for method in ("apply", "apply_gradients")]
    with pytest.raises(rr.ConfigError, match=r"unwrapped \w+ in the step.*wrap_optimizer") as error:
        replicator.replicate(step_fn, inputs)
    assert type(optimizer).__name__ in str(error.value)
    after = [vars(type(optimizer)).get(method) for method in ("apply", "apply_gradients")]
    assert methods == after  # Nothing is left behind in the library's classes.
    with replicator.scope():
        optimizer = replicator.wrap_optimizer(OPTIMIZERS[kind]())
    replicator.replicate(step_fn, inputs)()
    assert w.numpy() < 1.0


@pytest.mark.parametrize(
    "optimizer_class", [tf.compat.v1.train.AdamOptimizer, tf.keras.optimizers.legacy.Adam]
)
def test_older_optimizers_are_refused(optimizer_class):
    replicator = rr.make("multi_device:2")
    with replicator.scope():
        w = tf.Variable(1.0)
        optimizer = optimizer_class(0.1)

    def step_fn(x):
        optimizer.minimize(lambda: w * x, var_list=[w])

    inputs = replicator.make_inputs(lambda context: tf.data.Dataset.from_tensors(2.0).repeat())
    with pytest.raises(rr.ConfigError, match=r"unwrapped Adam\w* in the step; .* tf\.keras\.opt"):
        replicator.replicate(step_fn, inputs)
    with pytest.raises(rr.ConfigError, match="expected a Sonnet or Keras optimizer"):
        replicator.wrap_optimizer(optimizer)


def test_outside_of_steps_any_optimizer_may_be_applied():
    replicator = rr.make("single_device")
    w = tf.Variable(1.0)
    optimizer = snt.optimizers.SGD(0.5)

    def step_fn(x):
        with tf.init_scope():
            optimizer.apply([tf.constant(1.0)], [w])
        return x

    replicator.replicate(step_fn, replicator.make_inputs(lambda context: lambda: tf.constant(1)))
    assert w.numpy() <= 0.5


def test_a_step_may_reduce_the_gradients_itself():
    replicator = rr.make("multi_device:2")
    with replicator.scope():
        w = tf.Variable(1.0)
        optimizer = replicator.wrap_optimizer(snt.optimizers.SGD(1.0), reduction="none")

    def step_fn(x):
        gradients = rr.collectives.all_mean([x])
        tf.cond(gradients[0] > 1.0, lambda: optimizer.apply(gradients, [w]), lambda: None)

    data = tf.data.Dataset.from_tensor_slices([1.0, 1.0, 2.0, 4.0])
    step = replicator.replicate(step_fn, replicator.make_inputs(lambda context: data))
    values = []
    for _ in range(2):
        step()
        values.append([copy.numpy() for copy in w.values])
    assert values == [[1.0, 1.0], [-2.0, -2.0]]
