"""Learners do the same in a job of two workers as on one device.

Compared with one device that has the global batch, after a few steps: all variables of the
checkpoint (weights, statistics, targets, optimizer slots, counters), and the figures of the
evaluation.
"""

import functools
import json
import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest

import rl_replicator as rr
from rl_replicator.checkpoints.parts import VariableValues
from tests.conformance import learners_program
from tests.rl_replicator.learners import tiny_images
from tests.suite import forked

REFERENCE, JOB = "single_device", "multi_worker"
LEARNERS = (*learners_program.LEARNERS, "d4pg")
# Largest difference relative to the variable's norm; 3e-6 was measured with two replicas.
TOLERANCE = 1e-4
ROOT = pathlib.Path(__file__).parents[2]

pytestmark = [
    pytest.mark.processes,
    pytest.mark.timeout(600),
    pytest.mark.usefixtures("plain_graphs"),
]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A function that trains all learners once under a backend and returns the folder."""
    data = tiny_images.fashion_mnist(tmp_path_factory.mktemp("images"))

    @functools.cache
    def train(name):
        out = tmp_path_factory.mktemp("run")
        if name != JOB:
            learners_program.run(rr.make(name), data, out)
            return out
        program = [*forked.python(), "-m", learners_program.__name__, "--replicas", name]
        supervisor = [sys.executable, "-m", "rl_replicator.jobs", "--max-restarts", "0"]
        done = subprocess.run(
            [*supervisor, "--workers", "2", "--", *program, "--data", str(data), "--out", str(out)],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=500,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return out

    return train


def variables(folder):
    """Returns all variables of the checkpoint in a folder, by name."""
    (saved,) = folder.glob("*/learner")
    return VariableValues.read(saved)


def difference(got, want):
    """Returns the norm of the difference, relative to the norm of the wanted value."""
    got, want = np.asarray(got, np.float64), np.asarray(want, np.float64)
    return np.linalg.norm(got - want) / max(np.linalg.norm(want), 1e-3)


@pytest.mark.parametrize("learner", LEARNERS)
def test_the_reference_learns(trained, learner):
    """Otherwise the tests below would pass with learners that do nothing."""
    start, end = (variables(trained(REFERENCE) / learner / name) for name in ("start", "end"))
    weights = [name for name in start if name.endswith("/w")]
    moved = [name for name in weights if difference(end[name], start[name]) > 1e-5]
    assert len(moved) > 0.9 * len(weights) > 0


@pytest.mark.parametrize("learner", LEARNERS)
def test_learners_do_what_they_do_on_one_device(trained, learner):
    folder = trained(JOB) / learner
    want, got = variables(trained(REFERENCE) / learner / "end"), variables(folder / "end")
    assert got.keys() == want.keys()
    worst = max(want, key=lambda name: difference(got[name], want[name]))
    found = difference(got[worst], want[worst])
    print(f"\n| {learner} | {found:.1e} | {worst} |")
    assert found < TOLERANCE, worst
    figures = trained(REFERENCE) / learner / "figures.json"
    if figures.exists():
        mine = json.loads((folder / "figures.json").read_text())
        assert mine == pytest.approx(json.loads(figures.read_text()), rel=1e-3)
