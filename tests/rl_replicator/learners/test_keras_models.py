"""A learner from a compiled Keras model takes the same steps as the model's own `fit`."""

import copy
import dataclasses
import functools
import runpy
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

import rl_replicator as rr
from rl_replicator import learners
from rl_replicator.cli import main
from rl_replicator.exports import formats, standalone
from rl_replicator.exports.model import Card, ExportedModel
from rl_replicator.learners.loop import Training
from rl_replicator.learners.run_options import RunOptions
from rl_replicator.runs.metrics import read_metrics
from rl_replicator.runs.run_directory import RunDirectory

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("plain_graphs")]
ROOT = Path(__file__).parents[3]
STEPS, BATCH = 6, 12
rng = np.random.default_rng(0)
X = rng.normal(size=(40, 3)).astype(np.float32)
Y = (X @ rng.normal(size=(3, 2))).astype(np.float32)
WEIGHTS = rng.uniform(0.5, 2, size=40).astype(np.float32)


@dataclasses.dataclass(frozen=True)
class Config(learners.KerasConfig):
    """A small network."""

    steps: int = STEPS
    global_batch_size: int = BATCH
    reduction: str = "sum_over_batch_size"
    is_weighted: bool = False
    evaluation_examples: int = 40


def model_fn(config: Config) -> tf.keras.Model:
    tf.keras.utils.set_random_seed(1)
    model = tf.keras.Sequential(
        [
            tf.keras.layers.Dense(8, "tanh", kernel_regularizer="l2", activity_regularizer="l1"),
            tf.keras.layers.BatchNormalization(synchronized=True),
            tf.keras.layers.Dense(2),
        ]
    )
    loss = tf.keras.losses.MeanSquaredError(config.reduction)
    optimizer = tf.keras.optimizers.Adam(1e-2, clipnorm=1.0)
    metrics = ["mae", tf.keras.metrics.RootMeanSquaredError(name="rmse")]
    # These create their variables in the first update.
    late = [tf.keras.metrics.R2Score(name="r2"), tf.keras.metrics.F1Score("macro", 0.5, name="f1")]
    model.compile(optimizer, loss, metrics=[*metrics, *late], weighted_metrics=["mse"])
    return model


def data_fn(config):
    columns = (X, Y, WEIGHTS) if config.is_weighted else (X, Y)
    return tf.data.Dataset.from_tensor_slices(columns)


def evaluation_data_fn(config):
    return data_fn(config).take(config.evaluation_examples)


make_learner = learners.from_keras(model_fn, data_fn, evaluation_data_fn)


class Losses(tf.keras.callbacks.Callback):
    """Records the loss of every step of `fit`, which itself reports running means."""

    def __init__(self):
        super().__init__()
        self.values = []

    def on_train_batch_begin(self, batch, logs=None):
        self.model.reset_metrics()

    def on_train_batch_end(self, batch, logs=None):
        self.values.append(logs["loss"])


@functools.cache
def fit(config, model_fn=model_fn, data_fn=data_fn, evaluation_data_fn=evaluation_data_fn):
    model, losses = model_fn(config), Losses()
    data = data_fn(config).repeat().batch(BATCH)
    model.fit(data, steps_per_epoch=STEPS, epochs=1, verbose=0, callbacks=[losses])
    figures = model.evaluate(evaluation_data_fn(config).batch(BATCH), verbose=0, return_dict=True)
    return model, losses.values, figures


def train(replicas, config, make_learner=make_learner):
    rr.split_cpu(2)
    replicator = rr.make(replicas)
    learner = make_learner(replicator, config)
    step = replicator.replicate(learner.step_fn, replicator.make_inputs(learner.input_fn))
    losses = [float(replicator.reduce("mean", step()["loss"])) for _ in range(STEPS)]
    evaluation = learner.evaluation()
    sums = replicator.make_evaluation(evaluation.sums_fn, evaluation.input_fn, BATCH)()
    return learner, losses, evaluation.metrics_fn(sums)


def make_step(model_fn, data_fn, replicas="single_device"):
    """Returns a learner and its compiled step."""
    rr.split_cpu(2)
    replicator = rr.make(replicas)
    learner = learners.from_keras(model_fn, data_fn)(replicator, Config())
    return learner, replicator.replicate(learner.step_fn, replicator.make_inputs(learner.input_fn))


SUM = Config(reduction="sum", is_weighted=True, evaluation_examples=36)


def test_it_takes_the_steps_of_fit():
    """The last evaluation batch, of 4 examples, is padded and divided."""
    config = Config(is_weighted=True)
    model, losses, figures = fit(config)
    check_equal(train("multi_device:2", config), model, losses, figures)
    assert set(figures) == {"loss", "mae", "rmse", "mse", "r2", "f1"}


def check_equal(trained, model, losses, figures):
    learner, our_losses, our_figures = trained
    np.testing.assert_allclose(our_losses, losses, rtol=2e-5)
    check_weights(learner, model)
    assert our_figures == pytest.approx(figures, rel=1e-4)


def check_weights(learner, model):
    wanted = [*model.trainable_weights, *model.non_trainable_weights]
    for want, variable in zip(wanted, learner.trackables()["weights"].all, strict=True):
        np.testing.assert_allclose(variable.numpy(), want.numpy(), atol=1e-5, err_msg=want.name)


def two_outputs(config: Config) -> tf.keras.Model:
    tf.keras.utils.set_random_seed(1)
    x = tf.keras.Input([3])
    outputs = {name: tf.keras.layers.Dense(2, name=name)(x) for name in ("price", "area")}
    model = tf.keras.Model(x, [*outputs.values()])
    losses, weights = {"price": "mse", "area": "mae"}, {"price": 0.3, "area": 2.0}
    model.compile("sgd", losses, loss_weights=weights, metrics={"area": ["mse"]})
    return model


def outputs_by_name(config: Config) -> tf.keras.Model:
    model = two_outputs(config)
    model = tf.keras.Model(model.input, dict(zip(model.output_names, model.outputs, strict=True)))
    model.compile("sgd", {"area": branching_loss}, metrics={"area": ["mse"]})
    return model


def by_name(config):
    return data_fn(config).map(lambda x, y: (x, {"area": 2 * y, "price": y}))


def one_by_name(config):
    return data_fn(config).map(lambda x, y: (x, {"area": 2 * y}))


@pytest.mark.parametrize(
    ("replicas", "model_fn", "data_fn", "names"),
    [
        ("multi_device:2", two_outputs, by_name, {"price_loss", "area_loss"}),
        ("single_device", outputs_by_name, one_by_name, {"area_loss"}),
    ],
)
def test_a_model_with_several_outputs(replicas, model_fn, data_fn, names):
    """Its y is a dictionary, even if its outputs are a list. Its last batch is divided."""
    make = learners.from_keras(model_fn, data_fn, data_fn)
    model, losses, figures = fit(Config(), model_fn, data_fn, data_fn)
    check_equal(train(replicas, Config(), make), model, losses, figures)
    assert set(figures) == {"loss", "area_mse", *names}


class Penalised(tf.keras.Sequential):
    """Adds its own means to the loss of `compile`: one by hand, and one by a loss object."""

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None):
        loss = super().compute_loss(x, y, y_pred, sample_weight)
        return loss + tf.reduce_mean(y_pred**2) + tf.keras.losses.Huber()(y, y_pred)


def penalised(config: Config) -> tf.keras.Model:
    tf.keras.utils.set_random_seed(1)
    model = Penalised([tf.keras.Input([3]), tf.keras.layers.Dense(2, kernel_regularizer="l2")])
    model.compile(tf.keras.optimizers.SGD(0.01), tf.keras.losses.MeanSquaredError(config.reduction))
    return model


def test_a_model_computes_its_own_loss():
    """On several replicas, Keras divides only the loss of `compile`, and does not divide sums."""
    make = learners.from_keras(penalised, data_fn, evaluation_data_fn)
    check_equal(train("multi_device:2", SUM, make), *fit(SUM, penalised))


def convolutional(config: learners.KerasConfig) -> tf.keras.Model:
    tf.keras.utils.set_random_seed(1)
    layers = tf.keras.layers
    model = tf.keras.Sequential(
        [layers.Conv2D(3, 3), layers.GlobalAveragePooling2D(), layers.Dense(1, "sigmoid")]
    )
    scalar = [lambda y, predicted: tf.reduce_mean(tf.abs(y - predicted))]
    model.compile("sgd", "binary_crossentropy", metrics=["accuracy"], weighted_metrics=scalar)
    return model


def images(config):
    random = np.random.default_rng(0)
    x = random.normal(size=(40, 8, 8, 2)).astype(np.float32)
    return tf.data.Dataset.from_tensor_slices((x, random.integers(2, size=(40, 1))))


def test_a_replica_evaluates_without_examples():
    """Two replicas have batches of 6: six whole ones, and one of 4."""
    rr.split_cpu(2)
    found = []
    for replicas in ("single_device", "multi_device:2"):
        replicator = rr.make(replicas)
        learner = learners.from_keras(convolutional, images, images)(
            replicator, learners.KerasConfig(global_batch_size=12)
        )
        evaluation = learner.evaluation()
        sums = replicator.make_evaluation(evaluation.sums_fn, evaluation.input_fn, 12)()
        found.append(evaluation.metrics_fn(sums))
    one, two = found
    # A scalar metric is the mean over batches, whose sizes differ here.
    assert np.isfinite(two.pop("<lambda>")) and np.isfinite(one.pop("<lambda>"))
    assert two == pytest.approx(one, rel=1e-5) and set(one) == {"loss", "accuracy"}


def linear(config: Config, optimizer="sgd", **settings) -> tf.keras.Model:
    tf.keras.utils.set_random_seed(1)
    model = tf.keras.Sequential([tf.keras.layers.Dense(2)])
    model.compile(optimizer, "mse", **settings)
    return model


def test_the_loss_scale_of_compile_is_applied():
    """Keras's own optimizer would apply the scaled gradients of our step."""

    def scaled(config: Config, **settings) -> tf.keras.Model:
        scale, sgd = tf.keras.mixed_precision.LossScaleOptimizer, tf.keras.optimizers.SGD(1e-2)
        return linear(config, scale(sgd, **settings) if settings else sgd)

    def static(config: Config) -> tf.keras.Model:
        return scaled(config, dynamic=False, initial_scale=1024)

    def dynamic(config: Config) -> tf.keras.Model:
        return scaled(config, dynamic=True)

    found = []
    for function in (scaled, static, dynamic):
        learner, step = make_step(function, data_fn)
        step()
        found.append([v.numpy() for v in learner.trackables()["weights"].all])
        assert float(learner.trackables()["optimizer"].iterations) == 1
    want = tf.keras.mixed_precision.LossScaleOptimizer(tf.keras.optimizers.SGD()).loss_scale
    assert float(learner.trackables()["optimizer"].loss_scale) == float(want)
    assert learner.evaluation() is None
    for others in found[1:]:
        for one, other in zip(found[0], others, strict=True):
            np.testing.assert_allclose(one, other, atol=1e-6)


def test_an_average_of_the_weights_must_enter_them():
    """`fit` ends with `finalize_variable_values`, which no step calls."""

    def at_the_end(config: Config) -> tf.keras.Model:
        return linear(config, tf.keras.optimizers.SGD(0.1, use_ema=True))

    with pytest.raises(rr.ConfigError, match=r"\(use_ema\) .* set ema_overwrite_frequency"):
        learners.from_keras(at_the_end, data_fn)(rr.make("single_device"), Config())


class Noise(tf.keras.layers.Layer):
    """A layer with its own generator."""

    def __init__(self):
        super().__init__()
        self.generator = tf.random.Generator.from_seed(3)

    def call(self, x, training=False):
        return x + self.generator.normal(tf.shape(x)) if training else x


def test_a_continued_run_draws_the_numbers_of_an_uninterrupted_one(tmp_path):
    def random(config: Config) -> tf.keras.Model:
        tf.keras.utils.set_random_seed(1)
        dropout = tf.keras.layers.Dropout(0.5, rng_type="stateful")
        layers = [tf.keras.Sequential([dropout]), Noise(), tf.keras.layers.Dense(2)]
        model = tf.keras.Sequential(layers)
        model.compile("sgd", "mse")
        return model

    rr.split_cpu(2)
    found = []
    for name, parts in (("whole", [4]), ("parts", [2, 4])):
        for steps in parts:
            replicator = rr.make("multi_device:2")
            learner = learners.from_keras(random, data_fn)(replicator, Config(steps=steps))
            settings = RunOptions(steps_per_call=1, deterministic=True)
            Training(replicator, learner, RunDirectory(tmp_path / name), settings).run()
        found.append([v.numpy() for v in learner.trackables()["weights"].all])
    for one, other in zip(*found, strict=True):
        np.testing.assert_array_equal(one, other)


def test_what_is_no_compiled_model_or_no_data_is_refused():
    def bare(config: Config) -> tf.keras.Model:
        return tf.keras.Sequential([tf.keras.layers.Dense(2)])

    def batched(config):
        return data_fn(config).batch(4).prefetch(1)

    def arrays(config):
        return X, Y

    bare.__annotations__["return"] = "keras.Model"  # Imported for type checkers only.
    replicator = rr.make("single_device")
    for model, data, message in (
        (bare, data_fn, "expected model_fn to return a compiled model"),
        (model_fn, arrays, "expected data_fn to return .*, got tuple; return"),
        (model_fn, batched, r"data_fn to return single .* got batches; leave out"),
    ):
        with pytest.raises(rr.ConfigError, match=message):
            learners.from_keras(model, data)(replicator, Config())
    with pytest.raises(rr.ConfigError, match="to annotate its parameter with a dataclass"):
        learners.from_keras(lambda config: bare(config), data_fn)
    evaluation = learners.from_keras(model_fn, data_fn, batched)(replicator, Config()).evaluation()
    with pytest.raises(rr.ConfigError, match="expected evaluation_data_fn to return single examp"):
        replicator.make_evaluation(evaluation.sums_fn, evaluation.input_fn, BATCH)


class Endpoint(tf.keras.layers.Layer):
    """Adds the loss."""

    def call(self, y, predicted):
        self.add_loss(tf.reduce_mean((y - predicted) ** 2))
        return predicted


def test_layers_add_all_losses():
    """The data has no y."""

    def model_fn(config: Config) -> tf.keras.Model:
        tf.keras.utils.set_random_seed(1)
        x, y = tf.keras.Input([3], name="x"), tf.keras.Input([2], name="y")
        model = tf.keras.Model([x, y], Endpoint()(y, tf.keras.layers.Dense(2)(x)))
        model.compile("sgd")
        return model

    def inputs(config):
        return tf.data.Dataset.from_tensor_slices({"x": X, "y": Y})

    make = learners.from_keras(model_fn, inputs, lambda config: inputs(config).take(36))
    learner, losses, _ = train("multi_device:2", Config(), make)
    model, want, _ = fit(Config(), model_fn, inputs, inputs)
    check_weights(learner, model)
    np.testing.assert_allclose(losses, want, rtol=2e-5)


class Branching(tf.keras.layers.Layer):
    """Python's control flow depends on tensors."""

    def call(self, x):
        if tf.reduce_mean(tf.abs(x)) > 0.1:
            x = x / 2.0
        for _ in tf.range(2):
            x = x + tf.reduce_sum(x, axis=1, keepdims=True)
        return x


def branching_loss(y, predicted):
    if tf.reduce_any(tf.math.is_nan(predicted)):
        return tf.zeros_like(y[:, 0])
    return tf.reduce_mean(tf.square(y - predicted), axis=1)


class OwnStep(tf.keras.Sequential):
    """Has another objective than the loss of `compile`, and a metric of its own."""

    def __init__(self, layers):
        super().__init__(layers)
        self.tracker = tf.keras.metrics.Mean(name="loss")
        self.unused = tf.keras.metrics.Mean(name="unused")

    @property
    def metrics(self):
        return [self.tracker, self.unused]

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.abs(self(x, training=True) - y) ** 3)
        weights = self.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        self.tracker.update_state(loss)
        return {"loss": self.tracker.result()}

    def test_step(self, data):
        x, y = data
        self.tracker.update_state(tf.reduce_mean(tf.abs(self(x) - y)), sample_weight=tf.shape(x)[0])
        return {"loss": self.tracker.result(), "regularisation": 0.5 + tf.reduce_mean(y)}


class Task(tf.keras.layers.Layer):
    """Takes a copy of a loss that sums over the batch, as TF Recommenders' tasks have."""

    def __init__(self):
        super().__init__()
        self._loss = tf.keras.losses.MeanSquaredError(tf.keras.losses.Reduction.SUM)

    def call(self, inputs):
        return copy.copy(self._loss)(*inputs)


class SummingStep(OwnStep):
    """Trains on the sum over the batch."""

    def __init__(self, layers):
        super().__init__(layers)
        self.task = Task()

    def train_step(self, data):
        with tf.GradientTape() as tape:
            loss = self.task((data[1], self(data[0], training=True)))
        weights = self.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        self.tracker.update_state(loss)
        return {"loss": self.tracker.result()}


def summing_step(config: Config) -> tf.keras.Model:
    tf.keras.utils.set_random_seed(1)
    model = SummingStep([tf.keras.layers.Dense(2)])
    model.compile(tf.keras.optimizers.SGD(1e-2))  # Unlike Adam, it notices a factor.
    return model


def own_step(config: Config) -> tf.keras.Model:
    tf.keras.utils.set_random_seed(1)
    model = OwnStep([Branching(), tf.keras.layers.Dense(2)])
    model.compile("adam")
    return model


@pytest.mark.parametrize("model_fn", [own_step, summing_step])
def test_a_model_has_its_own_step(model_fn):
    """The figure is a mean that batches of one size weigh equally."""
    config = Config(evaluation_examples=36)
    make = learners.from_keras(model_fn, data_fn, evaluation_data_fn)
    model, losses, figures = fit(config, model_fn)
    figures["regularisation"] = 0.5 + float(Y[:36].mean())  # Keras returns that of the last batch.
    check_equal(train("multi_device:2", config, make), model, losses, figures)


def test_what_a_test_step_computes_itself_may_have_the_name_of_a_metric():
    class ByHand(tf.keras.Sequential):
        def test_step(self, data):
            x, y = data
            error = tf.abs(self(x) - y)
            self.compiled_metrics.update_state(y, self(x))
            by_metric = {metric.name: metric.result() for metric in self.metrics}
            return {**by_metric, "loss": tf.reduce_mean(error), "twice": 2 * by_metric["mae"]}

    def by_hand(config: Config) -> tf.keras.Model:
        model = ByHand([tf.keras.layers.Dense(2)])
        model.compile("sgd", "mse", metrics=["mae", tf.keras.metrics.RootMeanSquaredError("rmse")])
        return model

    make = learners.from_keras(by_hand, data_fn, evaluation_data_fn)
    learner, _, figures = train("single_device", Config(), make)
    kernel, bias = (variable.numpy() for variable in learner.trackables()["weights"].all)
    error = np.abs(X @ kernel + bias - Y)
    expected = {"loss": error.mean(), "mae": error.mean(), "twice": 2 * error.mean()}
    expected["rmse"] = np.sqrt((error**2).mean())  # Not the mean over batches.
    assert figures == pytest.approx(expected, rel=1e-4)


def test_a_model_without_a_loss_is_evaluated_by_its_only_figure():
    class OtherName(OwnStep):
        def __init__(self, layers):
            super().__init__(layers)
            self.tracker = tf.keras.metrics.Mean(name="n_loss")

        @property
        def metrics(self):
            return [self.tracker]

    def renamed(config: Config) -> tf.keras.Model:
        model = OtherName([tf.keras.layers.Dense(2)])
        model.compile("adam")
        return model

    make = learners.from_keras(renamed, data_fn, evaluation_data_fn)
    assert make(rr.make("single_device"), Config()).evaluation().best == "-n_loss"


class Gan(tf.keras.Model):
    """Has two optimizers, and is no function."""

    def __init__(self):
        super().__init__()
        dense = tf.keras.layers.Dense
        self.generator = tf.keras.Sequential([tf.keras.Input([3]), dense(2)])
        self.critic = tf.keras.Sequential([tf.keras.Input([2]), dense(1)])
        self.tracker = tf.keras.metrics.Mean()

    def compile(self, generator_optimizer, critic_optimizer):
        super().compile()
        self.generator_optimizer, self.critic_optimizer = generator_optimizer, critic_optimizer

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(self.critic(y) ** 2 + (self.critic(self.generator(x)) - 1) ** 2)
        self.critic_optimizer.minimize(loss, self.critic.trainable_variables, tape=tape)
        with tf.GradientTape() as tape:
            fooled = self.critic(self.generator(x)) ** 2  # Of each example.
            loss = tf.reduce_mean(fooled)
        self.generator_optimizer.minimize(loss, self.generator.trainable_variables, tape=tape)
        self.tracker.update_state(loss)
        return {"critic": self.tracker.result(), "generator": fooled}


def test_a_model_with_two_optimizers(tmp_path):
    """It exports the part that `served_fn` names."""

    def gan(config: Config) -> tf.keras.Model:
        tf.keras.utils.set_random_seed(1)
        model = Gan()
        model.compile(tf.keras.optimizers.Adam(1e-2), tf.keras.optimizers.SGD(1e-2))
        return model

    rr.split_cpu(2)
    for steps in (4, STEPS):  # The second run continues the first.
        replicator = rr.make("multi_device:2")
        make_learner = learners.from_keras(gan, data_fn, served_fn=lambda model: model.generator)
        learner = make_learner(replicator, Config(steps=steps))
        Training(replicator, learner, RunDirectory(tmp_path), RunOptions(steps_per_call=2)).run()
    model = gan(Config())
    model.fit(data_fn(Config()).repeat().batch(BATCH), steps_per_epoch=STEPS, verbose=0)
    del model.tracker  # Its state is no weight, and in no checkpoint.
    check_weights(learner, model)
    served, x = learner.served(), rng.normal(size=[5, 3]).astype(np.float32)
    assert served.inputs == {"inputs": tf.TensorSpec([None, 3])}
    np.testing.assert_allclose(
        served.function(inputs=x)["outputs"], model.generator(x), rtol=1e-4, atol=1e-5
    )
    evaluated = learners.from_keras(gan, data_fn, evaluation_data_fn)
    with pytest.raises(
        rr.ConfigError, match="expected Gan to have a test_step or a call, for eval"
    ):
        evaluated(rr.make("single_device"), Config()).evaluation()
    for served_fn in (None, lambda model: model):
        make_learner = learners.from_keras(gan, data_fn, served_fn=served_fn)
        with pytest.raises(rr.ConfigError, match="served_fn"):
            make_learner(replicator, Config()).served()
    assert set(read_metrics(tmp_path, "train")) == {"steps", "wall_time", "critic", "generator"}


def test_a_model_with_the_batch_size_in_its_shapes():
    def fixed(config: Config) -> tf.keras.Model:
        lstm = tf.keras.layers.LSTM(2, batch_input_shape=[BATCH, 3, 1])
        sized = tf.keras.layers.Lambda(lambda x: tf.reshape(x, x.shape))  # It must be known.
        last = tf.keras.layers.Lambda(lambda x: tf.reshape(x, [BATCH, 2]))
        model = tf.keras.Sequential([sized, lstm, last])
        model.compile("sgd", "mse")
        return model

    def rows(config):
        return data_fn(config).map(lambda x, y: (x[:, None], y))

    _, step = make_step(fixed, rows)
    assert np.isfinite(step()["loss"])


def test_a_model_without_trainable_weights_keeps_its_loss():
    def frozen(config: Config) -> tf.keras.Model:
        model = linear(config)
        model.trainable = False
        model.compile("adam", "mse")
        return model

    _, step = make_step(frozen, lambda config: data_fn(config).take(BATCH))
    assert step()["loss"] == step()["loss"] > 0


def test_a_run_cannot_be_continued_with_other_frozen_layers(tmp_path):
    def model_fn(config: Config) -> tf.keras.Model:
        model = tf.keras.Sequential([tf.keras.layers.Dense(3), tf.keras.layers.Dense(2)])
        model.layers[1].trainable = config.steps == 1
        model.compile("sgd", "mse")
        return model

    make, replicator = learners.from_keras(model_fn, data_fn), rr.make("single_device")
    run, options = RunDirectory(tmp_path), RunOptions(steps_per_call=1)
    Training(replicator, make(replicator, Config(steps=1)), run, options).run()
    with pytest.raises(rr.CheckpointError, match="'weights/not_trainable/0': expected float32"):
        Training(replicator, make(replicator, Config(steps=2)), run, options)


def test_what_cannot_be_evaluated_is_refused():
    def vector(config: Config) -> tf.keras.Model:
        return linear(config, metrics=[tf.keras.metrics.F1Score(None, 0.5, name="each")])

    make = learners.from_keras(vector, data_fn, data_fn)
    with pytest.raises(rr.ConfigError, match="result is one number, got several of 'each'; let"):
        train("single_device", Config(), make)
    rr.split_cpu(2)
    with pytest.raises(rr.ConfigError, match="got a mesh; call from_keras without evaluation"):
        make_learner(rr.make("mesh:data=2"), Config())


def test_figures_have_the_same_names_in_every_run_of_a_process():
    def model_fn(config: Config) -> tf.keras.Model:
        model = tf.keras.Sequential([tf.keras.layers.Dense(2, "sigmoid")])
        model.compile("sgd", "mse", metrics=["AUC", tf.keras.metrics.Recall()])
        return model

    def ones(config):
        return tf.data.Dataset.from_tensor_slices((X, np.ones([len(X), 2], np.float32)))

    def compiled(best):
        replicator = rr.make("single_device")
        make = learners.from_keras(model_fn, ones, ones, best)
        evaluation = make(replicator, Config()).evaluation()
        replicator.make_evaluation(evaluation.sums_fn, evaluation.input_fn, BATCH)

    for best in ("auc", "-recall"):
        compiled(best)
    with pytest.raises(rr.ConfigError, match="best of the .* one of loss, auc, recall, got 'acc';"):
        compiled("acc")


def left_and_right():
    """Inputs whose names an exported graph adopts, in valid form."""
    return [tf.keras.Input([2], name="left side"), tf.keras.Input([3], name="right")]


def functional(config: learners.KerasConfig) -> tf.keras.Model:
    inputs = left_and_right()
    joined = tf.keras.layers.Concatenate()(inputs)
    model = tf.keras.Model(inputs, tf.keras.layers.Dense(1)(joined))
    model.compile("sgd", "mse")
    return model


class Joined(tf.keras.Model):
    """Takes inputs of any structure."""

    def __init__(self):
        super().__init__()
        self.dense = tf.keras.layers.Dense(1)

    def call(self, x):
        return self.dense(tf.concat(tf.nest.flatten(x), -1))


def subclass(config: learners.KerasConfig) -> tf.keras.Model:
    model = Joined()
    model.compile("sgd", "mse")
    return model


def tuple_data_fn(config):
    left, right = np.ones([8, 2], np.float32), np.ones([8, 3], np.float32)
    return tf.data.Dataset.from_tensor_slices(((left, right), left[:, :1]))


def keyed(first, last):
    return lambda config: tuple_data_fn(config).map(lambda x, y: ({last: x[0], first: x[1]}, y))


@pytest.mark.parametrize(
    ("model_fn", "data_fn", "names"),
    [
        (subclass, keyed("X", "x"), ["inputs_0", "inputs_1"]),
        (functional, tuple_data_fn, ["left_side", "right"]),
    ],
)
def test_several_inputs_are_exported_by_name(model_fn, data_fn, names, tmp_path):
    config = learners.KerasConfig()
    learner = learners.from_keras(model_fn, data_fn)(rr.make("single_device"), config)
    served = learner.served()
    assert list(served.inputs) == names
    values = [rng.normal(size=[5, n]).astype(np.float32) for n in (2, 3)]
    (x, _), *_ = data_fn(config).batch(1)
    order = [0, 1] if isinstance(x, tuple) else [1, 0]
    given = dict(zip(names, [values[i] for i in order], strict=True))
    (want,) = served.function(**given).values()
    model = model_fn(config)
    packed = tf.nest.pack_sequence_as(x, [*given.values()])
    model(packed)
    model.set_weights([v.numpy() for v in learner.trackables()["weights"].all])
    np.testing.assert_allclose(want, model(packed), rtol=1e-5)
    model = ExportedModel(served.function, served.inputs, Card("Two inputs", {}, "", {}))
    formats.write(model, "numpy", tmp_path / "model")
    loaded = standalone.Model(tmp_path / "model" / "model.npz")
    np.testing.assert_allclose(loaded.run(**given)["outputs"], want, rtol=1e-5)


def two_headed(config: learners.KerasConfig) -> tf.keras.Model:
    x = tf.keras.Input([2])
    heads = [tf.keras.layers.Dense(size, name=name) for size, name in ((1, "value"), (2, "a-b"))]
    model = tf.keras.Model(x, [head(x) for head in heads])
    model.compile("sgd", ["mse", "mse"])
    return model


def test_several_outputs_are_exported_by_name(tmp_path):
    def data_fn(config):
        x = np.ones([8, 2], np.float32)
        return tf.data.Dataset.from_tensor_slices((x, (x[:, :1], x)))

    replicator = rr.make("single_device")
    served = learners.from_keras(two_headed, data_fn)(replicator, learners.KerasConfig()).served()
    x = rng.normal(size=[5, 2]).astype(np.float32)
    want = served.function(inputs=x)
    assert list(want) == ["value", "a_b"]
    model = ExportedModel(served.function, served.inputs, Card("Two outputs", {}, "", {}))
    formats.write(model, "savedmodel", tmp_path / "model")
    outputs = tf.saved_model.load(str(tmp_path / "model")).signatures["serving_default"](
        inputs=tf.constant(x)
    )
    for name, value in want.items():
        np.testing.assert_allclose(outputs[name], value, rtol=1e-5)


def test_on_the_command_line(tmp_path, monkeypatch, capsys):
    """On replicas, and exported."""
    rr.split_cpu(2)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(ROOT / "docs" / "examples"))
    name = "keras_learner:make_learner"
    words = [name, "--evaluate-every", "10", "--units", "8", "--replicas", "2"]
    assert main.main(["train", *words, "--steps", "20", "--run-dir", "run"]) == 0
    figures = read_metrics(tmp_path / "run", "evaluation")
    assert figures["steps"].tolist() == [10, 20]
    assert main.main(["export", "run", "--format", "savedmodel", "--out", "model"]) == 0
    example = runpy.run_path(str(ROOT / "docs" / "examples" / "keras_learner.py"))
    x, y = example["rings"](500, seed=2)
    served = tf.saved_model.load("model").signatures["serving_default"]
    (outputs,) = served(inputs=tf.constant(x)).values()
    assert np.mean((outputs.numpy() > 0) == y) == pytest.approx(figures["accuracy"][-1])
