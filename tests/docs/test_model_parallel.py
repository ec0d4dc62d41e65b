"""The example of model parallelism: no device holds more than its share, and both ways agree."""

import os
import pathlib
import re
import subprocess
import sys

import numpy as np
import pytest

ROOT = pathlib.Path(__file__).parents[2]
SHARE = 10.0  # MB; the wide layers and their slots take 12.6.


@pytest.mark.processes
def test_both_ways_share_the_layers_and_agree():
    losses = {}
    for way in ("mesh", "logical"):
        done = subprocess.run(
            [sys.executable, str(ROOT / "docs" / "examples" / "model_parallel.py"), way],
            env={**os.environ, "PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "3"},
            capture_output=True,
            text=True,
            timeout=100,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        losses[way] = [float(x) for x in re.findall(r"loss ([\d.]+)", done.stdout)]
        held = [float(x) for x in re.findall(r"CPU:\d holds ([\d.]+) MB", done.stdout)]
        assert len(held) == 4 and max(held) < SHARE
    assert losses["mesh"][-1] < losses["mesh"][0]
    np.testing.assert_allclose(losses["mesh"], losses["logical"], atol=2e-5)
