"""The examples run as the docs say, and print the same numbers wherever they run."""

import re
import sys

import numpy as np
import pytest

from tests.docs.programs import ROOT, output
from tests.suite import forked

EXAMPLES = ROOT / "docs" / "examples"
SUPERVISOR = ("-m", "rl_replicator.jobs", "--workers", "2", "--")


def printed(*command):
    """The numbers in each line that the command prints, [lines, numbers]."""
    lines = [line for line in output(*command).splitlines() if "step" in line]
    return np.array([re.findall(r"[\d.]+", line.partition("step")[2]) for line in lines], float)


@pytest.mark.processes
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", ["supervised", "gan", "contrastive"])
def test_the_same_on_one_device_and_on_two_replicas(name):
    program = str(EXAMPLES / f"{name}.py")
    python = forked.python()
    one = printed(*python, program)
    assert len(one) >= 4
    # test_collectives.py covers `all_gather` in several processes, and test_replicators.py covers
    # steps that share their input on several devices.
    if name == "gan":
        many = printed(sys.executable, *SUPERVISOR, *python, program, "multi_worker")
    else:
        many = printed(*python, program, "multi_device:2")
    assert many.shape == one.shape
    # The GAN's two players amplify rounding differences: to 1e-5 at step 10 and 2e-3 at step 25, on
    # a processor that rounds one batch differently from two halves.
    rows = 1 if name == "gan" else 3
    np.testing.assert_allclose(many[:rows], one[:rows], atol=2e-4)


@pytest.mark.parametrize("name", ["supervised", "gan", "contrastive"])
def test_they_are_short(name):
    text = (EXAMPLES / f"{name}.py").read_text().partition('"""\n\n')[2]
    lines = [line for line in text.splitlines() if line.strip() and line.strip()[0] != "#"]
    assert len(lines) < 40
