"""The example of model parallelism: no device holds more than its share; the losses agree."""

import os
import pathlib
import re
import subprocess

import numpy as np
import pytest

from tests.suite import forked

ROOT = pathlib.Path(__file__).parents[2]
SHARE = 10.0  # MB; the wide layers and their slots take 12.6.


@pytest.mark.processes
def test_a_mesh_shares_the_layers_and_trains_as_one_device():
    losses = {}
    for way, num_devices in (("mesh", 4), ("single_device", 1)):
        done = subprocess.run(
            [*forked.python(), str(ROOT / "docs" / "examples" / "model_parallel.py"), way],
            env={**os.environ, "PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "3"},
            capture_output=True,
            text=True,
            timeout=100,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        losses[way] = [float(x) for x in re.findall(r"loss ([\d.]+)", done.stdout)]
        held = [float(x) for x in re.findall(r"CPU:\d holds ([\d.]+) MB", done.stdout)]
        assert len(held) == num_devices
        assert (max(held) < SHARE) == (way == "mesh")
    assert losses["mesh"][-1] < losses["mesh"][0]
    np.testing.assert_allclose(losses["mesh"], losses["single_device"], atol=2e-5)
