"""A ResNet on two replicas does the same as on one device with the global batch.

Compared after a few steps: all variables of the checkpoint (weights, statistics, optimizer slots,
counters), and the figures of the evaluation.
"""

import numpy as np
import pytest

import rl_replicator as rr
from rl_replicator.checkpoints.parts import TrackablePart
from rl_replicator.learners.loop import Training
from rl_replicator.learners.resnet import ResNetConfig, networks
from rl_replicator.learners.resnet.learner import ResNetLearner
from rl_replicator.learners.run_options import RunOptions
from rl_replicator.runs.run_directory import RunDirectory
from tests.rl_replicator.learners import tiny_images

BATCH, STEPS = 16, 4
# Largest difference relative to the variable's norm; 3e-6 was measured with two replicas.
TOLERANCE = 1e-4


def variables(learner):
    found = TrackablePart(**learner.trackables()).variables()
    return {name: np.float64(variable.numpy()) for name, variable in found.items()}


def difference(got, want):
    """Returns the norm of the difference, relative to the norm of the wanted value."""
    return np.linalg.norm(got - want) / max(np.linalg.norm(want), 1e-3)


@pytest.mark.slow
@pytest.mark.usefixtures("plain_graphs")
def test_two_replicas_do_what_one_device_does(tmp_path, monkeypatch):
    # A depth with only two stages, because tracing takes most of the time here.
    monkeypatch.setitem(networks.STAGES, 6, ((1, 1), False))
    config = ResNetConfig(
        data_dir=tiny_images.fashion_mnist(tmp_path),
        depth=6,
        width=4,
        precision="float32",
        cross_replica_norm=True,
        global_batch_size=BATCH,
        epochs=STEPS * BATCH / tiny_images.NUM_TRAIN,
        warm_up_epochs=0.0,
        evaluate_epochs=100.0,
    )
    found = []
    for name in ("single_device", "multi_device:2"):
        replicator = rr.make(name)
        learner = ResNetLearner(replicator, config)
        run = RunDirectory(tmp_path / name)
        options = RunOptions(steps_per_call=1, checkpoint_seconds=1000.0)
        training = Training(replicator, learner, run, options)
        start = variables(learner)
        assert training.run() is None
        found.append((variables(learner), training.measure()))
    (want, wanted_figures), (got, figures) = found
    weights = [name for name in start if name.endswith("/w")]
    moved = [name for name in weights if difference(got[name], start[name]) > 1e-5]
    assert len(moved) > 0.9 * len(weights) > 0  # Otherwise, learners that do nothing would pass.
    assert got.keys() == want.keys()
    worst = max(want, key=lambda name: difference(got[name], want[name]))
    assert difference(got[worst], want[worst]) < TOLERANCE, worst
    assert figures == pytest.approx(wanted_figures, rel=1e-3)
