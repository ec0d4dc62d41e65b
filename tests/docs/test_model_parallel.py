"""The example of model parallelism: no device holds more than its share; the losses agree."""

import re

import numpy as np
import pytest

from tests.docs.programs import ROOT, output
from tests.suite import forked

SHARE = 10.0  # MB; the wide layers and their slots take 12.6.


@pytest.mark.processes
def test_a_mesh_shares_the_layers_and_trains_as_one_device():
    losses = {}
    for way, num_devices in (("mesh", 4), ("single_device", 1)):
        program = ROOT / "docs" / "examples" / "model_parallel.py"
        told = output(*forked.python(), program, way)
        losses[way] = [float(x) for x in re.findall(r"loss ([\d.]+)", told)]
        held = [float(x) for x in re.findall(r"CPU:\d holds ([\d.]+) MB", told)]
        assert len(held) == num_devices
        assert (max(held) < SHARE) == (way == "mesh")
    assert losses["mesh"][-1] < losses["mesh"][0]
    np.testing.assert_allclose(losses["mesh"], losses["single_device"], atol=2e-5)
