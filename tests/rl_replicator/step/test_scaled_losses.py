"""Losses that are divided by the number of replicas need gradients that are summed."""

import numpy as np
import pytest
import sonnet as snt
import tensorflow as tf
from keras.src.utils import losses_utils

import rl_replicator as rr

X = np.array([[1.0], [2.0], [3.0], [5.0]], np.float32)
Y = np.array([[2.0], [1.0], [0.0], [4.0]], np.float32)
# The gradient of the mean of (w x - y)^2 at w = 1, by hand: 2 / 4 * sum(x * (x - y)).
GRADIENT = 0.5 * float((X * (X - Y)).sum())


def batches(context):
    data = tf.data.Dataset.from_tensor_slices((X, Y))
    return data.batch(context.per_replica_batch_size(4)).repeat()


def trained(replicator, step_fn, variables):
    inputs = replicator.make_inputs(batches, per_replica=False)
    replicator.replicate(step_fn, inputs)()
    return float(variables[0].numpy().item())


def keras_model(replicator, **options):
    with replicator.scope():
        layer = tf.keras.layers.Dense(1, use_bias=False, kernel_initializer="ones")
        model = tf.keras.Sequential([tf.keras.Input([1]), layer])
        optimizer = replicator.wrap_optimizer(tf.keras.optimizers.SGD(0.1), **options)
        model.compile(optimizer, "mse")
    return model


def take_train_step(model, batch):
    model.train_step(batch)


def take_step_of_compiled_loss(model, batch):
    """As in a custom `train_step` of Keras' guides."""
    x, y = batch
    with tf.GradientTape() as tape:
        loss = model.compiled_loss(y, model(x, training=True), regularization_losses=model.losses)
    model.optimizer.apply(tape.gradient(loss, model.variables), model.variables)


@pytest.mark.parametrize(
    ("name", "take_step"),
    [("single_device", take_train_step), ("multi_device:2", take_step_of_compiled_loss)],
)
def test_compiled_loss_of_a_keras_model(name, take_step):
    replicator = rr.make(name)
    scale = losses_utils.scale_loss_for_distribution
    model = keras_model(replicator)
    with pytest.raises(
        rr.ConfigError, match=r"found the loss of a compiled Keras model .*\"sum\""
    ) as error:
        trained(replicator, lambda batch: take_step(model, batch), model.variables)
    assert "\n" not in str(error.value)
    assert losses_utils.scale_loss_for_distribution is scale
    model = keras_model(replicator, reduction="sum")
    w = trained(replicator, lambda batch: take_step(model, batch), model.variables)
    assert w == pytest.approx(1.0 - 0.1 * GRADIENT, rel=1e-5)


@pytest.mark.parametrize("function", ["compute_average_loss", "scale_regularization_loss"])
def test_functions_of_tensorflow(function):
    replicator = rr.make("multi_device:2")
    original = getattr(tf.nn, function)

    def step_with(reduction):
        with replicator.scope():
            w = tf.Variable([1.0])
            options = {} if reduction is None else {"reduction": reduction}
            optimizer = replicator.wrap_optimizer(snt.optimizers.SGD(0.1), **options)

        def step_fn(batch):
            x, y = batch
            with tf.GradientTape() as tape:
                errors = tf.square(w * x - y)[:, 0]
                if function == "compute_average_loss":
                    loss = tf.nn.compute_average_loss(errors)
                else:
                    loss = tf.nn.scale_regularization_loss(tf.reduce_mean(errors))
            optimizer.apply(tape.gradient(loss, [w]), [w])

        return step_fn, [w]

    with pytest.raises(rr.ConfigError, match=rf"found tf\.nn\.{function} in the step"):
        trained(replicator, *step_with(None))
    assert getattr(tf.nn, function) is original
    w = trained(replicator, *step_with("sum"))
    assert w == pytest.approx(1.0 - 0.1 * GRADIENT, rel=1e-5)


def test_the_gradient_of_a_loss_per_example_is_that_of_its_sum():
    def step_with(replicator, reduce=tf.identity, **options):
        with replicator.scope():
            w = tf.Variable([1.0])
            optimizer = replicator.wrap_optimizer(snt.optimizers.SGD(0.1), **options)

        def step_fn(batch):
            x, y = batch
            with tf.GradientTape() as tape:
                with tf.GradientTape() as inner:  # Not only of variables: a gradient penalty.
                    inner.watch(x)
                    predicted = w * x
                slope, _ = inner.gradient(predicted, (x, w))
                loss = reduce(tf.square(predicted - y) + 0.0 * slope)
            optimizer.apply(tape.gradient(loss, [w]), [w])

        return step_fn, [w]

    original = tf.GradientTape.gradient
    for name, options in (("single_device", {}), ("multi_device:2", {"reduction": "sum"})):
        replicator = rr.make(name)
        w = trained(replicator, *step_with(replicator, **options))
        assert w == pytest.approx(1.0 - 0.4 * GRADIENT, rel=1e-5)
    replicator = rr.make("multi_device:2")
    w = trained(replicator, *step_with(replicator, lambda x: tf.reduce_mean(x, keepdims=True)))
    assert w == pytest.approx(1.0 - 0.1 * GRADIENT, rel=1e-5)
    with pytest.raises(
        rr.ConfigError, match=r"got one of shape \(None, 1\), .*; use tf.reduce_mean"
    ):
        trained(replicator, *step_with(replicator))
    assert tf.GradientTape.gradient is original


@pytest.mark.parametrize("reduction", ["auto", "sum_over_batch_size", "sum", "none"])
def test_loss_objects_of_keras(reduction):
    """They compute the mean over the replica's batch, or another reduction if asked to."""
    replicator = rr.make("multi_device:2")
    loss_fn = tf.keras.losses.MeanSquaredError(reduction)
    get_reduction = vars(tf.keras.losses.Loss)["_get_reduction"]
    with replicator.scope():
        w = tf.Variable([[1.0]])
        optimizer = replicator.wrap_optimizer(snt.optimizers.SGD(0.1))

    def step_fn(batch):
        x, y = batch
        with tf.GradientTape() as tape:
            loss = loss_fn(y, x @ w)
            mean = loss / float(len(x)) if reduction == "sum" else tf.reduce_mean(loss)
        optimizer.apply(tape.gradient(mean, [w]), [w])
        return loss

    step = replicator.replicate(step_fn, replicator.make_inputs(batches))
    losses = replicator.gather(step())
    errors = np.square(X - Y).reshape(replicator.num_replicas, -1)
    expected = {"none": errors, "sum": errors.sum(axis=1)}.get(reduction, errors.mean(axis=1))
    np.testing.assert_allclose(losses, expected, rtol=1e-6)
    assert float(w.numpy().item()) == pytest.approx(1.0 - 0.1 * GRADIENT, rel=1e-5)
    assert vars(tf.keras.losses.Loss)["_get_reduction"] is get_reduction


def test_other_optimizers_may_sum_or_average():
    """It is not known which gradients are those of the divided loss."""
    replicator = rr.make("single_device")
    with replicator.scope():
        a, b = tf.Variable([1.0]), tf.Variable([1.0])
        summing = replicator.wrap_optimizer(snt.optimizers.SGD(0.1), reduction="sum")
        averaging = replicator.wrap_optimizer(snt.optimizers.SGD(0.1))

    def step_fn(batch):
        x, y = batch
        with tf.GradientTape(persistent=True) as tape:
            summed = tf.nn.compute_average_loss(tf.square(a * x - y)[:, 0])
            mean = tf.reduce_mean(tf.square(b * x - y))
        summing.apply(tape.gradient(summed, [a]), [a])
        averaging.apply(tape.gradient(mean, [b]), [b])

    for w in (a, b):
        assert trained(replicator, step_fn, [w]) < 1.0


def test_a_loss_with_an_if_on_tensors_in_a_compiled_model():
    def loss_fn(y, predicted):
        if tf.reduce_sum(y) > 0.0:
            return tf.square(y - predicted)
        return tf.zeros_like(y)

    replicator = rr.make("multi_device:2")
    model = keras_model(replicator, reduction="sum")
    with replicator.scope():
        model.compile(model.optimizer, loss_fn)
    w = trained(replicator, lambda batch: model.train_step(batch), model.variables)
    assert w == pytest.approx(1.0 - 0.1 * GRADIENT, rel=1e-5)
