"""The findings of `rl-replicator doctor` on MuJoCo and rendering."""

from importlib import metadata

import environments
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


def test_a_mujoco_that_does_not_fit_dm_control(monkeypatch):
    versions = {"mujoco": "3.8.1", "dm-control": "1.0.37"}

    def make(name, seed):  # As this pair fails.
        raise AttributeError("'MjData' object has no attribute 'ten_J_colind'")

    monkeypatch.setattr(metadata, "version", versions.get)
    monkeypatch.setattr(metadata, "requires", lambda name: ["lxml", "mujoco>=3.5.0"])
    monkeypatch.setattr(environments, "make", make)
    (finding,) = renderer.examine()
    assert finding.verdict == diagnosis.WRONG
    assert "dm-control 1.0.37 does not work with mujoco 3.8.1: 'MjData'" in finding.text
    assert finding.advice == "pip install 'mujoco~=3.5.0', or another dm-control"
