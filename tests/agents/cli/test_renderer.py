"""The finding of `rl-replicator doctor` on rendering."""

import re

import pytest

from agents.cli import renderer
from environments.errors import RenderingUnavailableError
from environments.pixels import rendering
from rl_replicator.cli import diagnosis


def test_a_renderer_that_is_missing_is_no_error(monkeypatch):
    def find():
        raise RenderingUnavailableError("none; 'apt-get install libegl1'")

    monkeypatch.setattr(rendering, "find", find)
    (finding,) = renderer.examine()
    assert finding.verdict == diagnosis.NOTE and "libegl1" in finding.text


def test_both_ways_to_draw_are_measured():
    (finding,) = renderer.examine()
    if finding.text.startswith("none"):
        pytest.skip(finding.text)
    measured = re.search(r"cartpole:balance at 64x64: fast (\d+), exact (\d+)$", finding.text)
    assert measured, finding.text
    # Which is faster depends on the load of the machine, too.
    assert int(measured[1]) > 0 and int(measured[2]) > 0
