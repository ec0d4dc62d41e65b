"""The GAN on replicas, stopped and resumed, evaluated with a classifier of our own."""

import shutil

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
from rl_replicator.learners.resnet.learner import ResNetLearner
from rl_replicator.learners.sngan import SNGANConfig, features, samples
from rl_replicator.learners.sngan import command as sngan
from rl_replicator.learners.sngan.learner import SNGANLearner
from rl_replicator.learners.training import LoopSettings, Training
from rl_replicator.runs.metrics import read_metrics
from rl_replicator.runs.replicas import replicator_name
from rl_replicator.runs.run_directory import RunDirectory
from tests.rl_replicator.learners import image_files

pytestmark = pytest.mark.usefixtures("plain_graphs")
STEPS = 20
DISCRIMINATOR_STEPS = 2


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return image_files.fashion_mnist(tmp_path_factory.mktemp("images"))


def make(folder, replicas=1, **settings):
    defaults = {
        "data_dir": str(folder),
        "width": 4,
        "precision": "float32",
        "steps": STEPS,
        "global_batch_size": 16,
        "discriminator_steps": DISCRIMINATOR_STEPS,
        "noise_size": 8,
        "samples": 37,
    }
    replicator = rr.make(replicator_name(str(replicas)))
    return SNGANLearner(replicator, SNGANConfig(**(defaults | settings)))


def start(learner, path):
    """Compiles the training without evaluations, which take their time to compile."""
    learner.evaluation = lambda: None
    return Training(learner._replicator, learner, RunDirectory(path), LoopSettings(1, 1000.0))


def train(learner, path):
    """Trains to the end; returns all variables."""
    assert start(learner, path).run() is None
    return copies(learner)


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


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Where the reference leaves its run as it was after seven steps."""
    return tmp_path_factory.mktemp("saved") / "run"


@pytest.fixture(scope="module")
def reference(folder, saved, tmp_path_factory):
    learner = make(folder)
    before = copies(learner)
    path = tmp_path_factory.mktemp("reference")
    training = start(learner, path)
    training._train_until(7)
    training._save()
    training._checkpointer.wait()
    shutil.copytree(path, saved)
    assert training.run() is None
    end = copies(learner)
    assert int(learner._discriminator_optimizer.step) == STEPS * DISCRIMINATOR_STEPS
    assert int(learner._generator_optimizer.step) == STEPS
    weights = [name for name in before if before[name].ndim > 2 and "/w:" in name]
    assert len(weights) > 40
    assert not [name for name in weights if np.array_equal(before[name], end[name])]
    return end


def largest_difference(got, want):
    """Over all variables: the norm of the difference, relative to the variable's."""
    assert got.keys() == want.keys()
    return max(
        np.linalg.norm(got[name][0] - want[name][0]) / max(np.linalg.norm(want[name][0]), 1e-3)
        for name in want
    )


@pytest.mark.timeout(300)
def test_replicas_do_what_one_does(folder, tmp_path, reference):
    got = train(make(folder, replicas=2), tmp_path)
    assert largest_difference(got, reference) < 1e-5
    for name, (first, second) in got.items():
        np.testing.assert_array_equal(second, first, name)


@pytest.mark.timeout(300)
def test_resumed_is_uninterrupted(folder, saved, reference):
    assert Checkpointer(saved / "checkpoints").latest().step == 7
    got = train(make(folder), saved)
    for name, values in got.items():
        np.testing.assert_array_equal(values, reference[name], name)


@pytest.fixture(scope="module")
def classifier(folder, tmp_path_factory):
    """A run of ResNet that has just begun."""
    path = tmp_path_factory.mktemp("runs") / "classifier"
    replicator = rr.make("single_device")
    config = ResNetConfig(data_dir=str(folder), width=2)
    run = RunDirectory(path)
    identity = {"config": vars(config)}
    with run.opened("resnet", identity):
        run.describe("resnet", identity, {})
        part = TrackablePart(**ResNetLearner(replicator, config).trackables())
        Checkpointer(run.best).save(1, {"learner": part})
    return path


@pytest.mark.timeout(300)
def test_command(folder, tmp_path, classifier, capsys):
    config = SNGANConfig(
        data_dir=str(folder),
        features=str(classifier),
        width=2,
        global_batch_size=10,
        discriminator_steps=1,
        steps=2,
        samples=37,
    )
    options = sngan.options_type(())(config=config, run_dir=tmp_path / "run")
    assert sngan.train(options) == 0
    table = read_metrics(tmp_path / "run", "evaluation")
    assert list(table)[2:] == ["fid_own_classifier", "inception_score_own_classifier", "score"]
    assert 1 <= table["inception_score_own_classifier"][0] <= 10
    trained = capsys.readouterr().out.splitlines()[-1]
    assert trained.startswith(f"fid_own_classifier {table['fid_own_classifier'][0]:.4f}, ")
    assert sngan.evaluate(tmp_path / "run") == 0
    assert capsys.readouterr().out.splitlines()[-1].split(" after")[0] == trained.split(" after")[0]
    side = image_files.SIDE
    picture = tf.io.decode_png((tmp_path / "run" / "samples" / "0000002.png").read_bytes())
    assert picture.shape == [10 * (side + 2) - 2, 10 * (side + 2) - 2, 1]
    assert list((tmp_path / "run" / "tensorboard" / "samples").iterdir())


def test_a_classifier_of_other_images(classifier):
    with pytest.raises(rr.UsageError, match="a classifier of 9x8x1 images, found one of 8x8x1"):
        features.load(classifier, rr.make("single_device"), (9, 8, 1))


def test_two_replicas_evaluate_as_one(folder, tmp_path):
    figures, path = [], image_files.inception(tmp_path)
    for replicas in (1, 2):
        learner = make(folder, replicas, features=str(path))
        what = learner.evaluation()
        measure = learner._replicator.make_evaluation(
            what.sums_fn, what.input_fn, what.global_batch_size
        )
        sums = measure()
        assert sums["samples"] == sums["images"] == 37
        figures.append(what.metrics_fn(sums))
    np.testing.assert_allclose(
        list(figures[1].values()), list(figures[0].values()), rtol=1e-4, atol=1e-6
    )


def test_the_grid_has_a_row_for_each_class():
    def generate(noise, labels):
        shade = tf.cast(labels, tf.float32)[:, None] * 20 + tf.cast(noise[:, :1] > 0, tf.float32)
        return tf.cast(tf.tile(shade[:, :, None, None], [1, 4, 4, 1]), tf.uint8)

    image = samples.grid(generate, noise_size=3, num_classes=5, seed=1)
    assert image.shape == (5 * 6 - 2, 10 * 6 - 2, 1)
    assert (image[4:6] == 255).all() and (image[:, 4:6] == 255).all()
    cells = image[::6, ::6, 0]
    np.testing.assert_array_equal(cells // 20, np.arange(5)[:, None] * np.ones([1, 10]))
    np.testing.assert_array_equal(cells % 20, (cells % 20)[[0] * 5])  # The same noise in each.


def test_learning_rate_falls_at_the_end(folder, tmp_path):
    learner = make(folder, decay_steps=4, generator_learning_rate=0.1)
    rates = []
    for step in (0, 15, 16, 17, 18, 19):
        learner._set_rate(learner._generator_optimizer, 0.1, tf.constant(step, tf.int64))
        rates.append(learner._generator_optimizer.learning_rate.numpy())
    np.testing.assert_allclose(rates, [0.1, 0.1, 0.1, 0.075, 0.05, 0.025], rtol=1e-6)


def test_options():
    with pytest.raises(rr.ConfigError, match="--discriminator-steps: expected more than 0, got 0"):
        SNGANConfig(discriminator_steps=0)
    with pytest.raises(rr.ConfigError, match="--beta-2: expected a number from 0 to below 1"):
        SNGANConfig(beta_2=1.0)


def test_it_serves_the_averaged_generator(folder, tmp_path):
    learner = make(folder)
    served = learner.served()
    noise, labels = np.ones((3, *served.inputs["noise"].shape[1:]), np.float32), np.int32([0, 1, 9])
    images = served.function(noise=noise, labels=labels)["images"]
    assert images.shape == (3, 8, 8, 1) and images.dtype == tf.float32
    assert np.array_equal(images, np.rint(images))
    assert np.min(images) >= 0 and np.max(images) <= 255
    formats.write(
        ExportedModel(served.function, served.inputs, Card("A GAN", {}, "", {})),
        "numpy",
        tmp_path / "model",
    )
    exported = Model(tmp_path / "model" / "model.npz").run(noise=noise, labels=labels)["images"]
    np.testing.assert_allclose(exported, images, atol=1)  # A value near x.5 is rounded either way.
    learner._average.trainable_variables[0].assign_add(
        tf.ones_like(learner._average.trainable_variables[0])
    )
    assert not np.array_equal(images, served.function(noise=noise, labels=labels)["images"])
