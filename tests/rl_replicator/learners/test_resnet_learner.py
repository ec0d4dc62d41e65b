"""The classifier on replicas, in every type, with every option, stopped and resumed."""

import shutil

import numpy as np
import pytest
import tensorflow as tf

import rl_replicator as rr
from rl_replicator.checkpoints import Checkpointer
from rl_replicator.exports import formats
from rl_replicator.exports.model import Card, ExportedModel
from rl_replicator.exports.standalone import Model
from rl_replicator.learners.loop import Training
from rl_replicator.learners.resnet import learner as resnet_learner
from rl_replicator.learners.resnet import networks
from rl_replicator.learners.resnet.config import ResNetConfig
from rl_replicator.learners.resnet.learner import ResNetLearner
from rl_replicator.learners.run_options import RunOptions
from rl_replicator.learners.sngan import SNGANConfig
from rl_replicator.optimizers.momentum import LARS, Momentum
from rl_replicator.runs.metrics import read_metrics
from rl_replicator.runs.run_directory import RunDirectory
from rl_replicator.step.inputs import InputContext
from tests.rl_replicator.learners import image_files

pytestmark = pytest.mark.usefixtures("plain_graphs")
STEPS = 20
# Every kind of block, with a quarter of the layers of the smallest depth that users can choose:
# tracing the layers takes most of the time here.
DEPTH = 6


@pytest.fixture(scope="module", autouse=True)
def shallow():
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(networks._STAGES, DEPTH, ((1, 1), False))
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return image_files.fashion_mnist(tmp_path_factory.mktemp("images"))


def make(folder, replicas="single_device", **settings):
    replicator = rr.make(replicas)
    defaults = {
        "data_dir": folder,
        "depth": DEPTH,
        "width": 4,
        "precision": "float32",
        "global_batch_size": 16,
        "epochs": STEPS * 16 / image_files.NUM_TRAIN,
        "evaluate_epochs": 100.0,
    }
    return replicator, ResNetLearner(replicator, ResNetConfig(**(defaults | settings)))


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


def test_figures_are_means_over_the_examples():
    sums = {"top_1": np.float32(3), "loss": np.float32(10), "examples": np.float32(4)}
    assert resnet_learner._figures(sums) == {"top_1": 0.75, "loss": 2.5, "examples": 4.0}


def test_epochs_become_steps(folder):
    # 50 images in batches of 16: 3.125 steps.
    _, learner = make(folder, epochs=4.0, evaluate_epochs=2.0)
    assert (learner.num_steps, learner.evaluation().every) == (12, 6)
    # After one epoch, or 3 steps, the rate falls for 9: here for 3 of them.
    assert float(learner._rate(6)) == pytest.approx(0.75 * 0.1 * 16 / 256)
    assert learner.evaluation().best == "top_1"
    assert learner.global_batch_size == learner.evaluation().global_batch_size == 16
    _, learner = make(folder, epochs=0.01, evaluate_epochs=0.01)
    assert (learner.num_steps, learner.evaluation().every) == (1, 1)


def test_a_seed_chooses_the_weights(folder):
    def first(seed):
        return values(make(folder, seed=seed)[1])

    one, other = first(1), first(2)
    for name, weights in first(1).items():
        np.testing.assert_array_equal(weights, one[name])
    assert any((weights != other[name]).any() for name, weights in one.items())


def test_a_checkpoint_finds_all_velocities(folder):
    """They exist before the first step."""
    _, learner = make(folder)
    parts = learner.trackables()
    shapes = [v.shape for v in parts["optimizer"].velocities]
    assert shapes == [v.shape for v in parts["network"].trainable_variables] != []


def test_the_input_begins_with_the_first_batch(folder):
    _, learner = make(folder)
    context = InputContext(1)
    firsts = [
        next(iter(data))[1].numpy().tolist()
        for data in (
            learner.input_fn(context),
            learner.input_fn_from(context, 0),
            learner.input_fn_from(context, 1),
        )
    ]
    assert firsts[0] == firsts[1] != firsts[2] and len(firsts[0]) == 16


def log_softmax(logits):
    return logits - np.log(np.sum(np.exp(logits), axis=1, keepdims=True))


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
    order = np.argsort(-learner._classifier(IMAGES, is_training=True).numpy(), axis=1)
    labels = order[np.arange(16), np.arange(16) % 3].astype(np.int32)
    with tf.GradientTape() as tape:
        logits = learner._classifier(IMAGES, is_training=True)
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
    logits = learner._classifier(IMAGES, is_training=False).numpy()
    ranks = np.argsort(np.argsort(-logits, axis=1), axis=1)[np.arange(16), LABELS]
    mask = (np.arange(16) < 13).astype(np.float32)
    sums = learner._sums((tf.constant(IMAGES), tf.constant(LABELS)), tf.constant(mask))
    log_p = log_softmax(logits)[np.arange(16), LABELS]
    expected = {
        "top_1": np.sum(ranks[:13] < 1),
        "top_5": np.sum(ranks[:13] < 5),
        "loss": -np.sum(log_p[:13]),  # Without smoothing.
        "examples": 13,
    }
    assert sums.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(sums[name], value, 1e-5, err_msg=name)


def start(folder, path, replicas="single_device", num_steps=STEPS, **settings):
    """Returns the learner and its training."""
    replicator, learner = make(folder, replicas, **settings)
    learner.evaluation = lambda: None  # Saves its compilation.
    learner.num_steps = num_steps
    return learner, Training(
        replicator,
        learner,
        RunDirectory(path),
        RunOptions(steps_per_call=5, checkpoint_seconds=1000.0, deterministic=True),
    )


def train(*args, **settings):
    """Trains to the end; returns weights and statistics of the network, by name."""
    learner, training = start(*args, **settings)
    assert training.run() is None
    return values(learner)


def values(learner):
    """Weights and statistics of the network, by name."""
    return {v.name: np.asarray(v.read_value()) for v in learner.trackables()["network"].variables}


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Where the reference stores a copy of its run after ten steps."""
    return tmp_path_factory.mktemp("saved") / "run"


@pytest.fixture(scope="module")
def reference(folder, saved, tmp_path_factory):
    path = tmp_path_factory.mktemp("reference")
    learner, training = start(folder, path, cross_replica_norm=True)
    training._train_until(10)
    training._save()
    training._checkpointer.wait()
    shutil.copytree(path, saved)
    assert training.run() is None
    return values(learner)


def largest_difference(got, want):
    """Over all variables: the norm of the difference, relative to the variable's."""
    assert got.keys() == want.keys()
    return max(
        np.linalg.norm(got[name] - want[name]) / max(np.linalg.norm(want[name]), 1e-3)
        for name in want
    )


@pytest.mark.timeout(300)
def test_replicas_do_what_one_does(folder, tmp_path, reference):
    got = train(folder, tmp_path, "multi_device:2", cross_replica_norm=True)
    assert largest_difference(got, reference) < 1e-3


def test_resumed_is_uninterrupted(folder, saved, reference):
    assert Checkpointer(saved / "checkpoints").latest().step == 10
    got = train(folder, saved, cross_replica_norm=True)
    assert largest_difference(got, reference) < 1e-6


def test_evaluation_counts_every_example_once(folder):
    found = []
    for replicas in ("single_device", "multi_device:2"):
        replicator, learner = make(folder, replicas)
        what = learner.evaluation()
        measure = replicator.make_evaluation(what.sums_fn, what.input_fn, what.global_batch_size)
        found.append(what.metrics_fn(measure()))
    one, two = found
    assert one["examples"] == image_files.NUM_TEST == 37
    assert {**two, "loss": 0} == {**one, "loss": 0}
    np.testing.assert_allclose(two["loss"], one["loss"], rtol=1e-5)


@pytest.mark.parametrize("size", [-3, 0])
def test_image_sizes_that_are_none(size):
    with pytest.raises(rr.ConfigError, match=f"^--image-size: expected more than 0, got {size}$"):
        ResNetConfig(data="imagenet", image_size=size)


@pytest.mark.parametrize("config", [ResNetConfig, SNGANConfig])
def test_images_in_memory_have_the_size_that_they_have(config):
    for size in (-3, 64):
        match = f"^--image-size: expected none with --data cifar10, whose .* size, got {size}$"
        with pytest.raises(rr.ConfigError, match=match):
            config(data="cifar10", image_size=size)
    config(data="cifar10", image_size=32)


def test_image_sizes():
    assert ResNetConfig(data="imagenet", image_size=1).resolved().image_size == 1
    assert ResNetConfig(data="imagenet").resolved().image_size == 224
    assert ResNetConfig(data="cifar10").resolved().image_size == 0


@pytest.mark.parametrize(
    "settings",
    [
        {"precision": "bfloat16", "label_smoothing": 0.1},
        {"precision": "float16"},
        {"optimizer": "lars", "schedule": "step", "micro_batches": 2},
    ],
)
def test_options(folder, tmp_path, settings):
    train(folder, tmp_path, num_steps=5, **settings)
    table = read_metrics(tmp_path, "train")
    assert np.isfinite(table["loss"]).all() and table["learning_rate"][-1] > 0


def test_replicas_do_not_meet_between_micro_batches():
    with pytest.raises(rr.ConfigError, match="--micro-batches: expected 1 with"):
        ResNetConfig(micro_batches=2, cross_replica_norm=True)


def test_a_batch_that_cannot_be_shared(folder):
    with pytest.raises(rr.ConfigError, match="multiple of 2 replicas x 3 micro-batches, got 16"):
        make(folder, "multi_device:2", micro_batches=3)
    with pytest.raises(rr.ConfigError, match="multiple of 1 replicas x 4 micro-batches, got 18"):
        make(folder, global_batch_size=18, micro_batches=4)


def test_it_serves_the_classifier(folder, tmp_path):
    _, learner = make(folder, precision="bfloat16")  # Which NumPy does not have.
    served = learner.served()
    (spec,) = served.inputs.values()
    images = np.arange(2 * np.prod(spec.shape[1:])).reshape(2, *spec.shape[1:]).astype(np.uint8)
    outputs = served.function(images=images)
    features, logits = learner._classifier.classify(images, dtype=tf.float32)
    np.testing.assert_array_equal(outputs["logits"], logits)
    np.testing.assert_array_equal(outputs["features"], features)
    formats.write(
        ExportedModel(served.function, served.inputs, Card("A classifier", {}, "", {})),
        "numpy",
        tmp_path / "model",
    )
    exported = Model(tmp_path / "model" / "model.npz").run(images=images)
    np.testing.assert_allclose(exported["logits"], logits, rtol=1e-4, atol=1e-4)
