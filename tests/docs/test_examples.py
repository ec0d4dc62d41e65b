"""The examples run as the docs say, and print the same numbers wherever they run."""

import os
import pathlib
import re
import subprocess
import sys

import numpy as np
import pytest

ROOT = pathlib.Path(__file__).parents[2]
EXAMPLES = ROOT / "docs" / "examples"
SUPERVISOR = ("-m", "rl_replicator.jobs", "--workers", "2", "--", sys.executable)


NAMES = ("supervised", "gan", "contrastive")
# Every start of TensorFlow takes seconds, so one process takes them all in turn.
ALONE = """
import runpy, sys
import rl_replicator as rr

rr.split_cpu(2)
for name in sys.argv[1:]:
    for replicator in ("single_device", "multi_device:2"):
        print("run", name, replicator, flush=True)
        sys.argv = [name, replicator]
        runpy.run_path(name)
"""


def output(*command):
    done = subprocess.run(
        [sys.executable, *command],
        env={**os.environ, "PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "3"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def numbers(text):
    """Those in each line about a step, [lines, numbers]."""
    lines = [line for line in text.splitlines() if "step" in line]
    return np.array([re.findall(r"[\d.]+", line.partition("step")[2]) for line in lines], float)


@pytest.fixture(scope="module")
def alone():
    """What the examples print in a single process, by name and replicator."""
    paths = [str(EXAMPLES / f"{name}.py") for name in NAMES]
    runs = output("-c", ALONE, *paths).split("run ")[1:]
    heads = [run.partition("\n")[0].split() for run in runs]
    return {
        (pathlib.Path(path).stem, kind): run for (path, kind), run in zip(heads, runs, strict=True)
    }


@pytest.mark.processes
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", NAMES)
def test_the_same_from_one_device_to_two_workers(name, alone):
    one = numbers(alone[name, "single_device"])
    assert len(one) >= 4
    # The GAN's two players drift apart from any rounding, in the end.
    rows = slice(0, 3)
    workers = output(*SUPERVISOR, str(EXAMPLES / f"{name}.py"), "multi_worker")
    for many in (numbers(alone[name, "multi_device:2"]), numbers(workers)):
        assert many.shape == one.shape
        np.testing.assert_allclose(many[rows], one[rows], atol=2e-4)


@pytest.mark.parametrize("name", NAMES)
def test_they_are_short(name):
    text = (EXAMPLES / f"{name}.py").read_text().partition('"""\n\n')[2]
    lines = [line for line in text.splitlines() if line.strip() and line.strip()[0] != "#"]
    assert len(lines) < 40
