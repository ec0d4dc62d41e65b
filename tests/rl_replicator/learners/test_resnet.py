"""The classifier: its losses, networks and options. `conformance` has it on replicas."""

import math

import numpy as np
import pytest
import sonnet as snt
import tensorflow as tf

import rl_replicator as rr
from rl_replicator.exports import formats
from rl_replicator.exports.model import Card, ExportedModel
from rl_replicator.exports.standalone import Model
from rl_replicator.learners.loop import Training
from rl_replicator.learners.normalization import BatchNorm, cross_replica_batch_norm
from rl_replicator.learners.resnet import ResNetConfig, networks
from rl_replicator.learners.resnet import learner as resnet_learner
from rl_replicator.learners.resnet.learner import ResNetLearner
from rl_replicator.learners.run_options import RunOptions
from rl_replicator.learners.sngan import SNGANConfig
from rl_replicator.optimizers.momentum import LARS, Momentum
from rl_replicator.runs.metrics import read_metrics
from rl_replicator.runs.run_directory import RunDirectory
from tests.rl_replicator.learners import tiny_images

pytestmark = pytest.mark.usefixtures("plain_graphs")
STEPS = 20
# Every kind of block, with a quarter of the layers of the smallest depth that users can choose:
# tracing the layers takes most of the time here.
DEPTH = 6


@pytest.fixture(scope="module", autouse=True)
def shallow():
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(networks.STAGES, DEPTH, ((1, 1), False))
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny_images.fashion_mnist(tmp_path_factory.mktemp("images"))


def make(folder, replicas="single_device", **settings):
    replicator = rr.make(replicas)
    defaults = {
        "data_dir": folder,
        "depth": DEPTH,
        "width": 4,
        "precision": "float32",
        "global_batch_size": 16,
        "epochs": STEPS * 16 / tiny_images.NUM_TRAIN,
        "evaluate_epochs": 100.0,
    }
    return replicator, ResNetLearner(replicator, ResNetConfig(**(defaults | settings)))


# Probabilities 1/2, 1/4, 1/4.
LOGITS = np.log(np.array([[0.5, 0.25, 0.25], [0.25, 0.5, 0.25]], np.float32))


def test_cross_entropy():
    labels = tf.constant([0, 2])
    got = resnet_learner.cross_entropy(labels, LOGITS)
    np.testing.assert_allclose(got, [math.log(2), math.log(4)], rtol=1e-6)
    # q = (0.8, 0.1, 0.1): 0.8 log 2 + 0.2 log 4 = 1.2 log 2; then 0.1 (log 4 + log 2) + 0.8 log 4.
    got = resnet_learner.cross_entropy(labels, LOGITS, smoothing=0.3)
    np.testing.assert_allclose(got, [1.2 * math.log(2), 1.9 * math.log(2)], rtol=1e-6)


def test_the_highest_logits():
    logits, labels = tf.constant([[1.0, 4.0, 3.0, 2.0]] * 4), tf.constant([0, 1, 2, 3])
    for k, want in ((1, [0, 1, 0, 0]), (2, [0, 1, 1, 0]), (3, [0, 1, 1, 1]), (5, [1, 1, 1, 1])):
        np.testing.assert_array_equal(resnet_learner.in_top(k, labels, logits), want)
    # Ties and NaN count against the classifier.
    logits = tf.constant([[1.0, 1.0, 0.0], [np.nan, 1.0, 2.0], [np.nan] * 3])
    for k, want in ((1, [0, 0, 0]), (2, [1, 1, 0])):
        np.testing.assert_array_equal(
            resnet_learner.in_top(k, tf.constant([0, 2, 1]), logits), want
        )


# Parameters of the published networks with 1000 classes.
@pytest.mark.parametrize(("depth", "count"), [(34, 21_797_672), (50, 25_557_032)])
def test_parameters(depth, count, monkeypatch):
    # Drawing the initial values would take most of the time.
    monkeypatch.setattr(
        snt.initializers.TruncatedNormal, "__call__", lambda self, shape, dtype: tf.zeros(shape)
    )
    network = networks.ResNet(depth, 1000, "imagenet", BatchNorm)
    features, logits = network(tf.zeros([1, 32, 32, 3]), is_training=False)
    assert logits.shape == [1, 1000] and logits.dtype == features.dtype == tf.float32
    variables = network.trainable_variables
    assert sum(int(np.prod(v.shape)) for v in variables) == count
    # Norms and biases do not decay.
    for variable, is_decayed in zip(variables, networks.decayed(variables), strict=True):
        assert is_decayed == (variable.name.split("/")[-1] == "w:0"), variable.name


@pytest.mark.parametrize(("stem", "side"), [("small", 32), ("imagenet", 8)])
def test_sides_of_the_feature_maps(stem, side, monkeypatch):
    """Later stages halve them, a bottleneck in its 3x3 layer."""
    monkeypatch.setitem(networks.STAGES, 7, ((1, 1, 1), True))
    network = networks.ResNet(7, 10, stem, BatchNorm, width=4)
    traced = tf.function(lambda x: network(x, is_training=False)).get_concrete_function(
        tf.TensorSpec([1, 32, 32, 3])
    )
    convolutions = [op for op in traced.graph.get_operations() if op.type == "Conv2D"]
    sizes = [op.inputs[1].shape[0] for op in convolutions if op.get_attr("strides")[1] == 2]
    assert sizes[-4:] == [1, 3] * 2  # The shortcut, and the layer.
    sides = [op.outputs[0].shape[1] for op in convolutions]
    assert (sides[1], sides[-1]) == (side, side // 4)


def test_a_new_block_is_the_identity():
    block = networks.Block(4, 1, False, False, BatchNorm)
    x = tf.abs(tf.random.normal([2, 4, 4, 4]))
    np.testing.assert_array_equal(block(x, is_training=True), x)


@pytest.mark.parametrize(
    ("kind", "dtype"), [(BatchNorm, tf.bfloat16), (cross_replica_batch_norm, tf.float16)]
)
def test_mixed_precision(kind, dtype):
    network = networks.ResNet(DEPTH, 10, "small", kind, width=4)
    _, logits = network(tf.zeros([2, 8, 8, 1], dtype), is_training=True)
    assert logits.dtype == tf.float32
    assert {v.dtype for v in network.variables} == {tf.float32}


def recipe(**settings):
    """A resolved config with batches of 128 images."""
    return ResNetConfig(**({"learning_rate": 0.2, "warm_up_epochs": 0.0} | settings)).resolved()


def rates(config, steps_per_epoch, num_steps, *steps):
    schedule = resnet_learner.make_schedule(config, steps_per_epoch, num_steps)
    return [float(schedule(tf.constant(step, tf.int64))) for step in steps]


def test_the_learning_rate_rises_and_falls():
    # Half of the rate for 256 images; two epochs of 2.5 steps.
    config = recipe(warm_up_epochs=2.0)
    np.testing.assert_allclose(
        rates(config, 2.5, 105, 0, 2, 5, 55, 105), [0.0, 0.04, 0.1, 0.05, 0.0], atol=1e-7
    )
    # A run that ends before its warm-up has its peak at its end.
    np.testing.assert_allclose(rates(config, 2.5, 4, 0, 1, 3), [0.0, 0.025, 0.075], atol=1e-7)
    # In 90 steps, it falls at 30, 60 and 80.
    np.testing.assert_allclose(
        rates(recipe(schedule="step"), 9.0, 90, 0, 29, 30, 59, 60, 79, 80, 89),
        [0.1, 0.1, 0.01, 0.01, 1e-3, 1e-3, 1e-4, 1e-4],
        rtol=1e-6,
    )


def test_the_optimizer_has_the_momentum_and_decay_of_its_config():
    for kind in ("momentum", "lars"):
        settings = {"momentum": 0.5, "weight_decay": 0.1}
        optimizer = resnet_learner.make_optimizer(
            recipe(optimizer=kind, **settings), lambda step: tf.constant(0.1)
        )
        own = {"momentum": Momentum, "lars": LARS}[kind]
        expected = own(lambda step: tf.constant(0.1), networks.decayed, **settings)
        assert type(optimizer) is own
        moved = []
        for one in (optimizer, expected):
            w, b = tf.Variable([[2.0]]), tf.Variable([2.0])
            for _ in range(2):
                one.apply([tf.constant([[1.0]]), tf.constant([1.0])], [w, b])
            moved.append([*w.numpy()[0], *b.numpy()])
        np.testing.assert_array_equal(*moved)


def test_epochs_become_steps(folder):
    # 50 images in batches of 16: 3.125 steps.
    _, learner = make(folder, epochs=4.0, evaluate_epochs=2.0)
    assert (learner.num_steps, learner.evaluation().every) == (12, 6)
    assert learner.evaluation().best == "top_1"
    assert learner.global_batch_size == learner.evaluation().global_batch_size == 16
    sums = {"top_1": np.float32(3), "loss": np.float32(10), "examples": np.float32(4)}
    figures = learner.evaluation().metrics_fn(sums)
    assert figures == {"top_1": 0.75, "loss": 2.5, "examples": 4.0}
    # Its slots exist before the first step, so a checkpoint can be restored into them.
    parts = learner.trackables()
    shapes = [v.shape for v in parts["optimizer"].velocities]
    assert shapes == [v.shape for v in parts["network"].trainable_variables] != []
    # Its seed chooses the weights, and its input begins with the first batch.
    _, same = make(folder, epochs=0.01, evaluate_epochs=0.01)
    assert (same.num_steps, same.evaluation().every) == (1, 1)
    _, other = make(folder, seed=2)
    equal = [
        all(np.array_equal(x, values(learner)[name]) for name, x in values(one).items())
        for one in (same, other)
    ]
    assert equal == [True, False]
    context = rr.InputContext(1)
    data = (learner.input_fn(context), *(learner.input_fn_from(context, i) for i in (0, 1)))
    firsts = [next(iter(one))[1].numpy().tolist() for one in data]
    assert firsts[0] == firsts[1] != firsts[2] and len(firsts[0]) == 16


IMAGES = np.random.default_rng(0).integers(256, size=(16, 8, 8, 1)).astype(np.uint8)
LABELS = np.random.default_rng(1).integers(10, size=16).astype(np.int32)


def test_a_step_descends_the_smoothed_cross_entropy(folder):
    settings = {"label_smoothing": 0.3, "warm_up_epochs": 0.0, "schedule": "step"}
    _, learner = make(folder, weight_decay=0.0, momentum=0.0, learning_rate=1.6, **settings)
    weights = learner.trackables()["network"].trainable_variables
    # At the start, the classifier gives all classes the same logit.
    for variable in weights:
        variable.assign_add(np.random.default_rng(2).normal(size=variable.shape) * 0.1)
    # Labels whose logits rank first, second and third.
    order = np.argsort(-learner.classifier(IMAGES, is_training=True)[1].numpy(), axis=1)
    labels = order[np.arange(16), np.arange(16) % 3].astype(np.int32)
    with tf.GradientTape() as tape:
        _, logits = learner.classifier(IMAGES, is_training=True)
        targets = 0.7 * np.eye(10)[labels] + 0.3 / 10
        loss = -tf.reduce_mean(tf.reduce_sum(targets * tf.nn.log_softmax(logits), axis=1))
    gradients = tape.gradient(loss, weights)
    before = [variable.numpy() for variable in weights]
    metrics = learner.step_fn((tf.constant(IMAGES), tf.constant(labels)))
    assert float(metrics["loss"]) == pytest.approx(float(loss), rel=1e-5)
    assert float(metrics["accuracy"]) == 6 / 16
    assert float(metrics["learning_rate"]) == pytest.approx(0.1)
    for variable, old, gradient in zip(weights, before, gradients, strict=True):
        np.testing.assert_allclose(variable, old - 0.1 * gradient, 1e-4, 1e-5)


def test_an_evaluation_sums_over_all_but_the_padding(folder):
    _, learner = make(folder, label_smoothing=0.3)
    for variable in learner.trackables()["network"].variables:
        variable.assign_add(np.random.default_rng(2).uniform(0, 0.1, size=variable.shape))
    logits = learner.classifier(IMAGES)[1].numpy()
    data = learner.classifier.images
    scaled = ((IMAGES.astype(np.float32) - data.mean) / data.deviation).astype(np.float32)
    np.testing.assert_allclose(logits, learner.classifier.network(scaled, False)[1], 1e-4, 1e-5)
    ranks = np.argsort(np.argsort(-logits, axis=1), axis=1)[np.arange(16), LABELS]
    mask = (np.arange(16) < 13).astype(np.float32)
    sums_fn = learner.evaluation().sums_fn
    sums = sums_fn((tf.constant(IMAGES), tf.constant(LABELS)), tf.constant(mask))
    log_p = logits - np.log(np.sum(np.exp(logits), axis=1, keepdims=True))
    expected = {
        "top_1": np.sum(ranks[:13] < 1),
        "top_5": np.sum(ranks[:13] < 5),
        "loss": -np.sum(log_p[np.arange(16), LABELS][:13]),  # Without smoothing.
        "examples": 13,
    }
    assert sums.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(sums[name], value, 1e-5, err_msg=name)


def values(learner):
    return {v.name: np.asarray(v.read_value()) for v in learner.trackables()["network"].variables}


@pytest.mark.parametrize(
    ("kind", "settings", "message"),
    [
        (ResNetConfig, {"data": "imagenet", "image_size": 0}, "--image-size: expected more than 0"),
        (SNGANConfig, {"data": "imagenet", "image_size": 6}, "--image-size: expected an even numb"),
        (ResNetConfig, {"data": "cifar10", "image_size": 64}, "none with --data cifar10, whose im"),
        (ResNetConfig, {"micro_batches": 2, "cross_replica_norm": True}, "expected 1 with --cross"),
        (ResNetConfig, {"momentum": 1.0}, "--momentum: expected a number from 0 to below 1"),
        (SNGANConfig, {"discriminator_steps": 0}, "--discriminator-steps: expected more than 0"),
        (SNGANConfig, {"beta_2": 1.0}, "--beta-2: expected a number from 0 to below 1, got 1.0"),
        (SNGANConfig, {"samples": 1}, "--samples: expected at least 2, got 1"),
    ],
)
def test_settings_that_are_refused(kind, settings, message):
    with pytest.raises(rr.ConfigError, match=message):
        kind(**settings)


def test_defaults_depend_on_the_data():
    assert ResNetConfig(data="imagenet", image_size=1).resolved().image_size == 1
    assert ResNetConfig(data="imagenet").resolved().image_size == 224
    assert ResNetConfig(data="cifar10").resolved().image_size == 0
    assert ResNetConfig(data="cifar10", image_size=32).resolved().image_size == 32
    assert SNGANConfig(data="cifar10").resolved().decay_steps == 100_000
    assert ResNetConfig(optimizer="lars").resolved().learning_rate == 1.0


def test_a_batch_that_cannot_be_shared(folder):
    with pytest.raises(rr.ConfigError, match="multiple of 2 replicas x 3 micro-batches, got 16"):
        make(folder, "multi_device:2", micro_batches=3)


def test_options(folder, tmp_path):
    """Those of which no other test takes a step."""
    options = {"optimizer": "lars", "schedule": "step", "micro_batches": 2, "precision": "float16"}
    replicator, learner = make(folder, **options)
    learner.evaluation = lambda: None  # Saves its compilation.
    learner.num_steps = 5
    settings = RunOptions(steps_per_call=5, deterministic=True)
    assert Training(replicator, learner, RunDirectory(tmp_path), settings).run() is None
    table = read_metrics(tmp_path, "train")
    assert np.isfinite(table["loss"]).all() and table["learning_rate"][-1] > 0


def test_it_serves_the_classifier(folder, tmp_path):
    _, learner = make(folder, precision="bfloat16")  # Which NumPy does not have.
    served = learner.served()
    (spec,) = served.inputs.values()
    images = np.arange(2 * np.prod(spec.shape[1:])).reshape(2, *spec.shape[1:]).astype(np.uint8)
    outputs = served.function(images=images)
    features, logits = learner.classifier(images, dtype=tf.float32)
    np.testing.assert_array_equal(outputs["logits"], logits)
    np.testing.assert_array_equal(outputs["features"], features)
    model = ExportedModel(served.function, served.inputs, Card("A classifier", {}, "", {}))
    formats.write(model, "numpy", tmp_path / "model")
    exported = Model(tmp_path / "model" / "model.npz").run(images=images)
    np.testing.assert_allclose(exported["logits"], logits, rtol=1e-4, atol=1e-4)
