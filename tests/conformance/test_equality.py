"""The same mathematics everywhere: every backend against one device with the global batch.

The table it prints (`pytest -s`) is the largest relative difference of any variable after 100 steps
of Adam. Asynchronous servers are held against it with a single worker and no staleness, where they
must do the same; with more workers they do other sums, see test_asynchronous.py.
"""

import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest
import tensorflow  # noqa: F401 - so that conftest splits its CPU before the first test

import rl_replicator as rr
from tests.conformance import training_program
from tests.suite import forked

REFERENCE = "single_device"
# The first layer of the MLP is split over `model` by columns, the second by rows.
SPLIT = "mesh:data=2,model=2@first/w=none,model@first/b=model@mlp/second/w=model,none"
TEXTS = {"mesh split over model": SPLIT}
IN_PROCESS = (
    "single_device",
    "multi_device:1",
    "multi_device:2",
    "multi_device:4",
    "mesh:data=1",
    "mesh:data=2",
    "mesh:data=4",
    "mesh split over model",
)
# Arguments of the supervisor.
GROUPS = {
    "multi_worker x2": ("multi_worker", "--workers", "2"),
    "multi_worker x4": ("multi_worker", "--workers", "4"),
    "async x1": (
        "multi_worker_async:max_staleness=0",
        *("--workers", "1", "--parameter-servers", "1"),
    ),
}
ALL = (*IN_PROCESS, *GROUPS)
# Each saves once and restores what all of these saved.
RESTORING = (
    "single_device",
    "multi_device:2",
    "multi_device:4",
    "mesh split over model",
    "multi_worker x2",
    "async x1",
)
ROOT = pathlib.Path(__file__).parents[2]


def run(name, out, restore=()):
    if name in GROUPS:
        replicas, *supervisor = GROUPS[name]
        program = [*forked.python(), "-m", "tests.conformance.training_program"]
        command = [
            sys.executable,
            "-m",
            "rl_replicator.jobs",
            *supervisor,
            "--",
            *program,
        ]
        done = subprocess.run(
            [*command, "--replicas", replicas, "--out", str(out)]
            + (["--restore", *map(str, restore)] if restore else []),
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == 0, done.stdout + done.stderr
    else:
        training_program.run(rr.make(TEXTS.get(name, name)), out, list(restore))


def folder(root, name):
    return root / name.replace(":", "_").replace(" ", "_").replace(",", "_")


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return tmp_path_factory.mktemp("equality")


@pytest.fixture(scope="module")
def trained(root):
    """A function that trains under a replicator, once, and gives the folder of its results."""

    def train(name):
        out = folder(root, name)
        if not out.exists():
            run(name, out)
        return out

    return train


def difference(got, want):
    """Largest absolute difference of a variable over its largest value, over all variables."""
    with np.load(got) as a, np.load(want) as b:
        assert a.files == b.files and a.files
        return max(np.abs(a[k] - b[k]).max() / np.abs(b[k]).max() for k in b.files)


def movement(got, start):
    """The smallest over all variables of their largest absolute change."""
    with np.load(got) as a, np.load(start) as b:
        return min(np.abs(a[k] - b[k]).max() for k in b.files if b[k].dtype.kind == "f")


@pytest.mark.processes
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", ALL)
def test_100_steps_equal_one_device(name, trained):
    for model in training_program.MODELS:
        file = f"{training_program.LAST}.npz"
        found = difference(trained(name) / model / file, trained(REFERENCE) / model / file)
        print(f"\n| {name} | {model} | {found:.1e} |", end="")
        assert found <= 1e-5
        # An optimizer that does nothing would make all backends equal. 100 steps of Adam move a
        # weight by up to 0.1; the moving variance of the ConvNet moves by 6e-4.
        start = trained(name) / model / f"{training_program.FIRST}.npz"
        assert movement(trained(name) / model / file, start) > 1e-4


@pytest.mark.processes
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", RESTORING)
def test_restores_what_any_other_saved(name, trained, root):
    sources = [trained(source) for source in RESTORING]
    out = folder(root, f"restored by {name}")
    run(name, out, sources)
    for model in training_program.MODELS:
        want = trained(REFERENCE) / model / f"{training_program.LATER}.npz"
        for source in sources:
            got = out / model / f"{training_program.LATER}-from-{source.name}.npz"
            assert difference(got, want) <= 1e-5, (name, source.name, model)
