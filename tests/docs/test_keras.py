"""Keras and Estimators under `replicator.strategy`: equal numbers, resumed anywhere."""

import contextlib
import io
import re
import runpy
import shutil
import sys

import numpy as np
import pytest

import rl_replicator as rr
from tests.docs.programs import ROOT, output
from tests.suite import forked

EXAMPLES = ROOT / "docs" / "examples"
# Sums over a batch are computed in another order, and printed to six places.
TOLERANCE = 1e-5
pytestmark = pytest.mark.slow


def numbers(text):
    return np.array(re.findall(r"(?:loss|mae|prediction) (-?[\d.]+)", text), float)


@pytest.fixture(scope="module", autouse=True)
def two_devices():
    rr.split_cpu(2)


def run(name, *arguments):
    """Runs an example in this process; returns its variables and the numbers it printed."""
    printed = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(printed):
        patch.setattr(sys, "argv", [name, *map(str, arguments)])
        variables = runpy.run_path(str(EXAMPLES / name))
    return variables, numbers(printed.getvalue())


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """The folder in which `first` saves."""
    return tmp_path_factory.mktemp("keras") / "run"


@pytest.fixture(scope="module")
def first(saved):
    """The first three epochs on one device: variables and numbers."""
    return run("keras_fit.py", "single_device", saved)


def state(variables):
    """Weights, statistics, and the optimizer's slots."""
    model = variables["model"]
    slots = [np.asarray(v.numpy()) for v in model.optimizer.variables]
    return [*model.get_weights(), *slots]


def test_fit_evaluate_predict(first):
    one, printed = first
    two, printed_by_two = run("keras_fit.py", "multi_device:2")
    assert two["model"].weights[0].values[1].device.endswith("CPU:1")
    assert printed[4] < printed[0] / 1.5
    np.testing.assert_allclose(printed_by_two, printed, atol=TOLERANCE)
    for got, want in zip(state(two), state(one), strict=True):
        np.testing.assert_allclose(got, want, atol=TOLERANCE)


@pytest.mark.processes
@pytest.mark.timeout(200)
def test_a_model_resumed_elsewhere(first, saved, tmp_path):
    for name in ("run", "whole"):
        shutil.copytree(saved, tmp_path / name)
    run("keras_fit.py", "multi_device:2", tmp_path / "run")
    jobs = [sys.executable, "-m", "rl_replicator.jobs", "--workers", "2", "--"]
    program = [*forked.python(), str(EXAMPLES / "keras_fit.py"), "multi_worker"]
    told = output(*jobs, *program, tmp_path / "run")
    run("keras_fit.py", "single_device", tmp_path / "whole")
    _, uninterrupted = run("keras_fit.py", "single_device", tmp_path / "whole")
    assert "step 90: loss" in told
    np.testing.assert_allclose(numbers(told), uninterrupted, atol=5 * TOLERANCE)


def test_an_estimator(tmp_path):
    """Its model folder, with Adam's slots, is also continued on other replicas."""
    parameters = {}
    for name in ("single_device", "multi_device:2"):
        variables, printed = run("estimator.py", tmp_path / name[0], name, 20)
        estimator = variables["estimator"]
        names = estimator.get_variable_names()
        assert "dense/kernel/Adam_1" in names and printed.shape == (1,)
        parameters[name] = {key: estimator.get_variable_value(key) for key in names}
    one, two = parameters.values()
    for key, want in one.items():
        np.testing.assert_allclose(two[key], want, atol=TOLERANCE, err_msg=key)
    _, first = run("estimator.py", tmp_path / "s", "multi_device:2", 40)
    _, second = run("estimator.py", tmp_path / "m", "single_device", 40)
    np.testing.assert_allclose(first, second, atol=TOLERANCE)
