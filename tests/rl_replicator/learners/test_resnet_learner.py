"""The classifier on replicas, in every type, with every option, stopped and resumed."""

import shutil

import numpy as np
import pytest

import rl_replicator as rr
from rl_replicator.checkpoints import Checkpointer
from rl_replicator.exports import formats
from rl_replicator.exports.model import Card, ExportedModel
from rl_replicator.exports.standalone import Model
from rl_replicator.learners.resnet import networks
from rl_replicator.learners.resnet.config import ResNetConfig
from rl_replicator.learners.resnet.learner import ResNetLearner
from rl_replicator.learners.training import LoopSettings, Training
from rl_replicator.runs.metrics import read_metrics
from rl_replicator.runs.run_directory import RunDirectory
from tests.rl_replicator.learners import image_files

pytestmark = pytest.mark.usefixtures("plain_graphs")
STEPS = 20
# Every kind of block, in a quarter of the layers of the smallest that users choose: tracing them is
# what takes the time here.
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
        "data_dir": str(folder),
        "depth": DEPTH,
        "width": 4,
        "precision": "float32",
        "global_batch_size": 16,
        "epochs": STEPS * 16 / image_files.NUM_TRAIN,
        "evaluate_epochs": 100.0,
    }
    return replicator, ResNetLearner(replicator, ResNetConfig(**(defaults | settings)))


def start(folder, path, replicas="single_device", num_steps=STEPS, **settings):
    """Returns the learner and its training."""
    replicator, learner = make(folder, replicas, **settings)
    learner.evaluation = lambda: None  # Saves its compilation.
    learner.num_steps = num_steps
    return learner, Training(replicator, learner, RunDirectory(path), LoopSettings(5, 1000.0))


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
    """Where the reference leaves its run as it was after ten steps."""
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


def test_it_serves_the_classifier(folder, tmp_path):
    _, learner = make(folder)
    served = learner.served()
    (spec,) = served.inputs.values()
    images = np.arange(2 * np.prod(spec.shape[1:])).reshape(2, *spec.shape[1:]).astype(np.uint8)
    outputs = served.function(images=images)
    features, logits = learner._classifier.classify(images)
    np.testing.assert_array_equal(outputs["logits"], logits)
    np.testing.assert_array_equal(outputs["features"], features)
    formats.write(
        ExportedModel(served.function, served.inputs, Card("A classifier", {}, "", {})),
        "numpy",
        tmp_path / "model",
    )
    exported = Model(tmp_path / "model" / "model.npz").run(images=images)
    np.testing.assert_allclose(exported["logits"], logits, rtol=1e-4, atol=1e-4)
