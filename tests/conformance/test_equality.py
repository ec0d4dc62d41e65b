"""Every backend computes the same as one device with the global batch.

The printed table (`pytest -s`) has the largest relative difference of any variable after 100 steps
of Adam. Asynchronous training is compared with a single worker and no staleness, where it must do
the same; with more workers it computes different sums, see test_asynchronous.py.
"""

import contextlib
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
# test_replicators.py, test_mesh.py and test_multi_worker.py test other numbers of replicas.
IN_PROCESS = ("single_device", "single_device:xla", "multi_device:2", "mesh split over model")
# Arguments of the supervisor.
GROUPS = {
    "multi_worker x2": ("multi_worker", "--workers", "2"),
    "async x1": (
        "multi_worker_async:max_staleness=0",
        *("--workers", "1", "--parameter-servers", "1"),
    ),
}
ALL = (*IN_PROCESS, *GROUPS)
ROOT = pathlib.Path(__file__).parents[2]
SECONDS = 400  # For the groups, on a busy machine.

pytestmark = [
    pytest.mark.processes,
    pytest.mark.timeout(900),
    pytest.mark.usefixtures("plain_graphs"),
]


class Runs:
    """Trains under each replicator when its results are first requested."""

    def __init__(self, root):
        self._root = root
        self._learners = {}
        self._have_groups_run = False

    def folder(self, name):
        """Returns the folder of a run's results, whether or not it has run."""
        return self._root / name.replace(":", "_").replace(" ", "_").replace(",", "_")

    def trained(self, name):
        """Returns the folder of the results of 100 steps."""
        if name in GROUPS:
            self._run_groups()
        elif name not in self._learners:
            replicator = rr.make(TEXTS.get(name, name))
            learners = training_program.make_learners(replicator)
            training_program.train(replicator, learners, self.folder(name))
            self._learners[name] = replicator, learners
        return self.folder(name)

    def restored(self, name):
        """Returns the folder of the results of 20 steps after the checkpoint of each run."""
        sources = [self.trained(source) for source in ALL]
        if name in IN_PROCESS:
            training_program.restore(*self._learners[name], self.folder(name), sources)
        return self.folder(name)

    def _run_groups(self):
        """Runs the groups concurrently, because each restores what the others saved."""
        if self._have_groups_run:
            return
        self._have_groups_run = True
        for name in IN_PROCESS:
            self.trained(name)
        with contextlib.ExitStack() as stack:
            for job in [stack.enter_context(self._started(name)) for name in GROUPS]:
                output, _ = job.communicate(timeout=SECONDS)
                assert job.returncode == 0, output

    @contextlib.contextmanager
    def _started(self, name):
        replicas, *supervisor = GROUPS[name]
        sources = [str(self.folder(source)) for source in ALL]
        job = subprocess.Popen(
            [
                *(sys.executable, "-m", "rl_replicator.jobs", "--max-restarts", "0"),
                *(*supervisor, "--"),
                *(*forked.python(), "-m", training_program.__name__, "--replicas", replicas),
                *("--out", str(self.folder(name)), "--restore", *sources),
            ],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        try:
            yield job
        finally:
            job.terminate()
            job.communicate()


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    return Runs(tmp_path_factory.mktemp("equality"))


def difference(got, want):
    """Returns the largest difference of any variable, relative to that variable's largest value."""
    with np.load(got) as a, np.load(want) as b:
        assert a.files == b.files and a.files
        return max(np.abs(a[k] - b[k]).max() / np.abs(b[k]).max() for k in b.files)


def movement(got, start):
    """Returns the smallest, over all floating-point variables, of their largest absolute change."""
    with np.load(got) as a, np.load(start) as b:
        return min(np.abs(a[k] - b[k]).max() for k in b.files if b[k].dtype.kind == "f")


@pytest.mark.parametrize("name", ALL)
def test_100_steps_equal_one_device(name, runs):
    for model in training_program.MODELS:
        file = f"{training_program.LAST}.npz"
        got, want = runs.trained(name) / model, runs.trained(REFERENCE) / model
        found = difference(got / file, want / file)
        print(f"\n| {name} | {model} | {found:.1e} |", end="")
        assert found <= 1e-5
        # If the optimizer did nothing, all backends would be equal. 100 steps of Adam change a
        # weight by up to 0.1; the ConvNet's moving variance changes by 6e-4.
        assert movement(got / file, got / f"{training_program.FIRST}.npz") > 1e-4


@pytest.mark.parametrize("name", ALL)
def test_restores_what_any_other_saved(name, runs):
    restored = runs.restored(name)
    for model in training_program.MODELS:
        want = runs.trained(REFERENCE) / model / f"{training_program.LATER}.npz"
        for source in ALL:
            from_source = f"{training_program.LATER}-from-{runs.folder(source).name}.npz"
            got = restored / model / from_source
            assert difference(got, want) <= 1e-5, (name, source, model)
