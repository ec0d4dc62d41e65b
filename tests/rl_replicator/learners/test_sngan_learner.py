"""The GAN on replicas, stopped and resumed, evaluated with a classifier of our own."""

import shutil

import numpy as np
import pytest
import tensorflow as tf

import rl_replicator as rr
from rl_replicator.checkpoints import Checkpointer
from rl_replicator.checkpoints.parts import TrackablePart
from rl_replicator.learners.loop import Training
from rl_replicator.learners.resnet import ResNetConfig
from rl_replicator.learners.resnet import networks as resnet_networks
from rl_replicator.learners.resnet.learner import ResNetLearner
from rl_replicator.learners.run_options import RunOptions
from rl_replicator.learners.sngan import SNGANConfig, features, networks
from rl_replicator.learners.sngan import command as sngan
from rl_replicator.runs.metrics import read_metrics
from rl_replicator.runs.plain_data import to_plain
from rl_replicator.runs.run_directory import RunDirectory
from tests.rl_replicator.learners import image_files
from tests.rl_replicator.learners.tiny_gans import DISCRIMINATOR_STEPS, STEPS, copies, make

pytestmark = pytest.mark.usefixtures("plain_graphs")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return image_files.fashion_mnist(tmp_path_factory.mktemp("images"))


def start(learner, path):
    """Compiles the training without evaluations, which take long to compile."""
    learner.evaluation = lambda: None
    return Training(
        learner.replicator,
        learner,
        RunDirectory(path),
        RunOptions(steps_per_call=1, checkpoint_seconds=1000.0, deterministic=True),
    )


def train(learner, path):
    """Trains to the end; returns all variables."""
    assert start(learner, path).run() is None
    return copies(learner)


@pytest.mark.parametrize("size", [-3, -8, 1, 2, 4, 6, 7, 33])
def test_sizes_that_the_networks_cannot_have(size):
    match = f"^--image-size: expected an even number of at least 8, got {size}$"
    with pytest.raises(rr.ConfigError, match=match):
        SNGANConfig(data="imagenet", image_size=size)


def test_sizes_that_the_networks_have():
    """The discriminator accepts the generator's images."""
    for size in (8, 10, 66):
        config = SNGANConfig(data="imagenet", image_size=size).resolved()
        layout = networks.layout(config.image_size)
        noise, classes = tf.zeros([1, 4]), tf.zeros([1, 10])
        image = networks.Generator(layout, 2, 3)(noise, classes, is_training=False)
        assert image.shape == [1, size, size, 3]
        assert networks.Discriminator(layout, 2)(image, classes, is_training=False).shape == [1]
    with pytest.raises(rr.ConfigError, match="--image-size: expected .*, got 0"):
        SNGANConfig(data="imagenet", image_size=0)
    assert SNGANConfig(data="cifar10").resolved().image_size == 0


def test_options():
    with pytest.raises(rr.ConfigError, match="--discriminator-steps: expected more than 0, got 0"):
        SNGANConfig(discriminator_steps=0)
    with pytest.raises(rr.ConfigError, match="--beta-2: expected a number from 0 to below 1"):
        SNGANConfig(beta_2=1.0)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Where the reference stores a copy of its run after seven steps."""
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
    # cuDNN sums the gradients of convolutions in no fixed order.
    bound = 1e-5 if tf.config.list_logical_devices("GPU") else 0
    for name, values in got.items():
        np.testing.assert_allclose(values, reference[name], 0, bound, err_msg=name)


@pytest.fixture(scope="module")
def classifier(folder, tmp_path_factory):
    """A ResNet run that has just begun; it has only two stages, because tracing takes long."""
    patch = pytest.MonkeyPatch()
    patch.setitem(resnet_networks._STAGES, 18, ((1, 1), False))
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


def test_a_classifier_of_other_images(classifier):
    with pytest.raises(rr.UsageError, match="a classifier of 9x8x1 images, found one of 8x8x1"):
        features.load(classifier, rr.make("single_device"), (9, 8, 1))


def test_two_replicas_evaluate_as_one(folder, tmp_path):
    figures, path = [], image_files.inception(tmp_path)
    for replicas in (1, 2):
        learner = make(folder, replicas, features=path)
        what = learner.evaluation()
        sums, real = (
            learner.replicator.make_evaluation(one.sums_fn, one.input_fn, what.global_batch_size)()
            for one in (what, what.reference)
        )
        assert sums["samples"] == sums["images"] == 37
        assert real["images"] == image_files.NUM_TEST
        figures.append(what.metrics_fn(sums, real))
        assert what.best == "-fid" + learner._suffix and what.best[1:] in figures[-1]
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
    assert sngan.evaluate(tmp_path / "run") == 0
    assert capsys.readouterr().out.splitlines()[-1].split(" after")[0] == trained.split(" after")[0]
    side = image_files.SIDE
    picture = tf.io.decode_png((tmp_path / "run" / "samples" / "0000002.png").read_bytes())
    assert picture.shape == [10 * (side + 2) - 2, 10 * (side + 2) - 2, 1]
    assert list((tmp_path / "run" / "tensorboard" / "samples").iterdir())
