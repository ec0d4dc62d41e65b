"""The GAN: its networks by hand, its learner and its figures."""

import numpy as np
import pytest
import tensorflow as tf

import rl_replicator as rr
from rl_replicator.checkpoints import Checkpointer
from rl_replicator.checkpoints.parts import TrackablePart
from rl_replicator.exports import formats
from rl_replicator.exports.model import Card, ExportedModel
from rl_replicator.exports.standalone import Model
from rl_replicator.learners.resnet import ResNetConfig
from rl_replicator.learners.resnet import networks as resnet_networks
from rl_replicator.learners.resnet.learner import ResNetLearner
from rl_replicator.learners.run_options import RunOptions
from rl_replicator.learners.sngan import SNGANConfig, networks
from rl_replicator.learners.sngan import command as sngan
from rl_replicator.learners.sngan import learner as sngan_learner
from rl_replicator.learners.sngan.learner import SNGANLearner
from rl_replicator.runs.metrics import read_metrics
from rl_replicator.runs.plain_data import to_plain
from rl_replicator.runs.run_directory import RunDirectory
from tests.rl_replicator.learners import tiny_images

pytestmark = pytest.mark.usefixtures("plain_graphs")
STEPS, DISCRIMINATOR_STEPS = 20, 2


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny_images.fashion_mnist(tmp_path_factory.mktemp("images"))


def make(folder, replicas=1, **settings):
    defaults = {
        "data_dir": folder,
        "width": 4,
        "precision": "float32",
        "steps": STEPS,
        "global_batch_size": 16,
        "discriminator_steps": DISCRIMINATOR_STEPS,
        "noise_size": 8,
        "samples": 37,
    }
    replicator = rr.make(str(replicas))
    learner = SNGANLearner(replicator, SNGANConfig(**(defaults | settings)))
    learner.replicator = replicator
    return learner


def copies(learner):
    """The values of all variables on all replicas, [replicas, ...] each."""
    modules = [value for value in learner.trackables().values() if isinstance(value, tf.Module)]
    variables = [variable for module in modules for variable in module.variables]
    return {
        f"{i} {variable.name}": np.stack(
            [copy.numpy() for copy in getattr(variable, "values", None) or (variable,)]
        )
        for i, variable in enumerate(variables)
    }


@pytest.mark.parametrize(
    ("size", "side", "generator", "discriminator", "halvings"),
    [
        (8, 4, (2, 1), (1, 2), 1),
        (10, 5, (2, 1), (1, 2), 1),
        (28, 7, (4, 2, 1), (1, 2, 4), 2),
        (32, 4, (4, 4, 4, 4), (2, 2, 2, 2), 2),  # Miyato et al. 2018, table 4.
        (64, 4, (16, 8, 4, 2, 1), (1, 2, 4, 8, 16), 4),
        (128, 4, (16, 16, 8, 4, 2, 1), (1, 2, 4, 8, 16, 16), 5),  # Miyato & Koyama 2018.
    ],
)
def test_layouts(size, side, generator, discriminator, halvings):
    """The discriminator accepts the generator's images."""
    layout = networks.layout(size)
    assert layout == networks.Shape(side, generator, discriminator, halvings)
    if size <= 28:
        noise, classes = tf.zeros([1, 4]), tf.zeros([1, 10])
        image = networks.Generator(layout, 2, 3)(noise, classes, is_training=False)
        assert image.shape == [1, size, size, 3]
        assert networks.Discriminator(layout, 2)(image, classes, is_training=False).shape == [1]


def test_the_hinge_loss():
    real, fake = tf.constant([0.5, 1.5, -2.0]), tf.constant([-0.5, -1.5, 2.0])
    with tf.GradientTape(persistent=True) as tape:
        tape.watch([real, fake])
        loss = sngan_learner.discriminator_hinge(real, fake)
    np.testing.assert_allclose(loss, [1.0, 0.0, 6.0])
    np.testing.assert_array_equal(tape.gradient(loss, real), [-1, 0, -1])
    np.testing.assert_array_equal(tape.gradient(loss, fake), [1, 0, 1])


@pytest.fixture(scope="module")
def fresh(folder):
    """A learner in float64 that is never trained."""
    return make(folder, precision="float64", samples=23)


def test_how_it_starts(fresh):
    pairs = list(zip(fresh.average.variables, fresh.generator.variables, strict=True))
    assert len(pairs) > 20
    for average, x in pairs:
        np.testing.assert_array_equal(average.numpy(), x.numpy(), x.name)
    statistics = [x for x in fresh.generator.variables if "/moving_" in x.name]
    assert len(statistics) == 6
    for x in statistics:
        assert (x.numpy() == ("variance" in x.name)).all()
    # Slots are there: otherwise no checkpoint could be restored into them.
    parts = fresh.trackables()
    for name in ("generator", "discriminator"):
        slots = parts[f"{name}_optimizer"].m
        assert len(slots) == len(parts[name].trainable_variables) > 5
    # Glorot & Bengio 2010, with twice the variance before a ReLU.
    kernel = next(v for v in fresh.discriminator.variables if "block_1/conv_0/w" in v.name)
    limit = np.sqrt(2) * np.sqrt(6 / (9 * sum(kernel.shape[-2:])))
    assert 0.9 * limit < abs(kernel.numpy()).max() <= limit
    context = rr.InputContext(num_replicas=1)
    inputs = (fresh.input_fn(context), fresh.input_fn_from(context, 0))
    for got, want in zip(*(next(iter(data.as_numpy_iterator())) for data in inputs), strict=True):
        np.testing.assert_array_equal(got, want)


def test_the_grid_shows_the_served_generator(fresh):
    for variable in fresh.average.trainable_variables:
        variable.assign_add(0.01 * tf.ones_like(variable))
    noise = tf.tile(tf.random.stateless_normal([10, 8], [1 + (4 << 40), 0]), [10, 1])
    served = fresh.served().function(noise=noise, labels=np.arange(100) // 10)["images"]
    for _ in range(2):  # The average is unchanged.
        picture = fresh.images(0)["samples"]
        assert picture.shape == (98, 98, 1) and picture.dtype == np.uint8
        for i in range(100):
            top, left = 10 * (i // 10), 10 * (i % 10)
            cell = picture[top : top + 8, left : left + 8]
            np.testing.assert_allclose(cell, served[i], atol=1)  # Rounded in two precisions.
        assert (picture[8:10] == 255).all() and (picture[:, 8:10] == 255).all()
    assert len(np.unique(picture)) > 3  # Not only the border and a single grey.


def test_evaluations_make_as_many_images_of_each_class(fresh):
    evaluation = fresh.evaluation()
    assert evaluation.best == "score"
    batches = list(evaluation.input_fn(rr.InputContext(num_replicas=1)).as_numpy_iterator())
    assert [len(labels) for _, labels in batches] == [16, 7]
    np.testing.assert_array_equal(np.concatenate([y for _, y in batches]), np.arange(23) % 10)
    noise = tf.random.stateless_normal([23, 8], [1 + (3 << 40), 0])
    np.testing.assert_array_equal(np.concatenate([x for x, _ in batches]), noise)
    sums = {"score": np.float64(46.0), "samples": np.float64(23.0)}
    assert evaluation.metrics_fn(sums) == {"score": 2.0}


def test_an_evaluated_image_does_not_depend_on_the_others(fresh):
    """Nor does it depend on the padding of a batch; and the networks stay unchanged."""
    before = copies(fresh)
    noise = np.random.default_rng(0).normal(size=[3, 8]).astype(np.float32)
    noise[2] = np.nan
    labels, mask = np.int32([4, 7, 0]), np.float32([1, 1, 0])
    sums_fn = fresh.evaluation().sums_fn
    together = sums_fn((tf.constant(noise), tf.constant(labels)), tf.constant(mask))
    alone = [sums_fn((noise[i : i + 1], labels[i : i + 1]), mask[i : i + 1]) for i in range(2)]
    classes = tf.one_hot(labels[:2], 10, dtype=tf.float64)
    images = fresh.average(tf.cast(noise[:2], tf.float64), classes, is_training=False)
    scores = fresh.discriminator(images, classes, is_training=False)
    assert abs(scores[0] - scores[1]) > 1e-3
    np.testing.assert_allclose([float(each["score"]) for each in alone], scores, rtol=1e-6)
    np.testing.assert_allclose(float(together["score"]), tf.reduce_sum(scores), rtol=1e-6)
    assert float(together["samples"]) == 2
    for name, value in copies(fresh).items():
        np.testing.assert_array_equal(value, before[name], name)


@pytest.mark.parametrize(
    ("settings", "steps", "want"),
    [
        ({"decay_steps": 4}, (0, 16, 17, 19), (0.1, 0.1, 0.075, 0.025)),
        ({"decay_steps": 100, "steps": 10}, (0, 5, 9), (0.1, 0.05, 0.01)),  # A shorter run.
        ({"decay_steps": 0}, (0, 19), (0.1, 0.1)),
    ],
)
def test_the_learning_rate_falls_at_the_end(folder, settings, steps, want):
    learner = make(folder, generator_learning_rate=0.1, width=1, **settings)
    optimizer, rates = learner.trackables()["generator_optimizer"], []
    batch = next(iter(learner.input_fn(rr.InputContext(num_replicas=1))))
    for step in steps:
        optimizer.step.assign(step)
        learner.generator_step(batch)
        rates.append(optimizer.learning_rate.numpy())
    np.testing.assert_allclose(rates, want, rtol=1e-6)


def test_it_serves_the_averaged_generator(folder, tmp_path):
    learner = make(folder, precision="bfloat16")  # Which NumPy does not have.
    served = learner.served()
    noise, labels = np.ones((3, *served.inputs["noise"].shape[1:]), np.float32), np.int32([0, 1, 9])
    images = served.function(noise=noise, labels=labels)["images"]
    alone = served.function(noise=noise[1:2], labels=labels[1:2])["images"]
    np.testing.assert_allclose(alone[0], images[1], atol=1)  # As in the export below.
    assert images.shape == (3, 8, 8, 1) and images.dtype == tf.float32
    assert np.array_equal(images, np.rint(images))
    assert np.min(images) >= 0 and np.max(images) <= 255
    model = ExportedModel(served.function, served.inputs, Card("A GAN", {}, "", {}))
    formats.write(model, "numpy", tmp_path / "model")
    exported = Model(tmp_path / "model" / "model.npz").run(noise=noise, labels=labels)["images"]
    np.testing.assert_allclose(exported, images, atol=1)  # A value near x.5 is rounded either way.
    first = learner.average.trainable_variables[0]
    first.assign_add(tf.ones_like(first))
    assert not np.array_equal(images, served.function(noise=noise, labels=labels)["images"])


@pytest.fixture(scope="module")
def classifier(folder, tmp_path_factory):
    """A ResNet run that has just begun; it has only two stages, because tracing takes long."""
    patch = pytest.MonkeyPatch()
    patch.setitem(resnet_networks.STAGES, 18, ((1, 1), False))
    path = tmp_path_factory.mktemp("runs") / "classifier"
    replicator = rr.make("single_device")
    config = ResNetConfig(data_dir=folder, width=2)
    run = RunDirectory(path)
    identity = {"config": to_plain(config)}
    with run.opened("resnet", identity):
        run.describe("resnet", identity, {})
        part = TrackablePart(**ResNetLearner(replicator, config).trackables())
        Checkpointer(run.best).save(1, {"learner": part})
    yield path
    patch.undo()


def test_two_replicas_evaluate_as_one(folder, tmp_path):
    figures, path = [], tiny_images.inception(tmp_path)
    for replicas in (1, 2):
        learner = make(folder, replicas, features=path)
        what = learner.evaluation()
        sums, real = (
            learner.replicator.make_evaluation(one.sums_fn, one.input_fn, what.global_batch_size)()
            for one in (what, what.reference)
        )
        assert sums["samples"] == sums["images"] == 37
        assert real["images"] == tiny_images.NUM_TEST
        figures.append(what.metrics_fn(sums, real))
        assert what.best == "-fid" and "fid" in figures[-1]
        assert figures[-1]["score"] == sums["score"] / 37
    np.testing.assert_allclose(
        list(figures[1].values()), list(figures[0].values()), rtol=1e-4, atol=1e-6
    )


@pytest.mark.timeout(300)
def test_command(folder, tmp_path, classifier, capsys):
    config = SNGANConfig(
        data_dir=folder,
        features=classifier,
        width=2,
        global_batch_size=10,
        discriminator_steps=1,
        steps=2,
        samples=37,
    )
    options = RunOptions(config=config, run_dir=tmp_path / "run")
    assert sngan.train(options) == 0
    table = read_metrics(tmp_path / "run", "evaluation")
    assert list(table)[2:] == ["fid_own_classifier", "inception_score_own_classifier", "score"]
    assert 1 <= table["inception_score_own_classifier"][0] <= 10
    trained = capsys.readouterr().out.splitlines()[-1]
    assert trained.startswith(f"fid_own_classifier {table['fid_own_classifier'][0]:.4f}, ")
    side = tiny_images.SIDE
    picture = tf.io.decode_png((tmp_path / "run" / "samples" / "0000002.png").read_bytes())
    assert picture.shape == [10 * (side + 2) - 2, 10 * (side + 2) - 2, 1]
    assert list((tmp_path / "run" / "tensorboard" / "samples").iterdir())
