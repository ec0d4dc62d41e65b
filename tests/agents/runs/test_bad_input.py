"""Options that cannot work are refused with one line, before anything starts."""

import dataclasses
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import rl_replicator
from agents import d4pg
from agents.d4pg import D4PGConfig
from rl_replicator.errors import UsageError
from rl_replicator.processes.ports import OPEN_PORTS

TRAIN = ("--env", "environments.fakes:target", "--agent.value-min", "0")


@dataclasses.dataclass(frozen=True)
class AmbiguousConfig(D4PGConfig):
    """A path, which would be stored like a string."""

    teacher: str | Path = Path("here")


def test_a_hyper_parameter_that_a_run_would_not_give_back(tmp_path):
    agent = dataclasses.replace(d4pg.command, config=AmbiguousConfig, presets={})
    args = [*TRAIN, "--agent.value-max", "20", "--steps", "9", "--no-video"]
    args += ["--run-dir", str(tmp_path / "run")]
    with pytest.raises(
        UsageError, match="can restore for 'agent.teacher', got .* restored as 'here'"
    ):
        agent.train(agent.parse(args, {}))
    assert not (tmp_path / "run").exists()


def test_stored_hyper_parameters_replace_the_default_ones_one_by_one():
    default = dataclasses.field(default_factory=lambda: {"a": 1.0})
    kind = dataclasses.make_dataclass(
        "Scaled", [("scales", dict[str, float], default)], bases=(D4PGConfig,), frozen=True
    )
    agent = dataclasses.replace(d4pg.command, config=kind, presets={})
    changes = {"scales": {"b": 2.0}, "replay": {"max_size": 9_000}}
    made = agent.options_from({"env": "environments.fakes:target", "agent": changes}).agent
    assert made.scales == {"b": 2.0}  # One setting, not a group of settings.
    assert made.replay == dataclasses.replace(D4PGConfig().replay, max_size=9_000)


FULL = """
import pathlib, resource
import numpy as np
from agents.policies import playing
from rl_replicator.errors import DiskError

frames = np.random.default_rng(0).integers(256, size=(20, 64, 64, 3), dtype=np.uint8)
for path in map(pathlib.Path, ("video.mp4", "video.gif")):
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, -1))  # Python ignores the signal.
    try:
        with playing.film(path) as add:
            for frame in frames:
                add(frame)
    except DiskError as error:
        print(error)
    assert list(pathlib.Path().iterdir()) == []
    resource.setrlimit(resource.RLIMIT_FSIZE, (-1, -1))
    with playing.film(path) as add:
        for frame in frames[:5]:
            add(frame)
    assert list(pathlib.Path().iterdir()) == [path]
    path.unlink()
"""


def output(code, folder):
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        timeout=100,
        check=True,
    ).stdout


@pytest.mark.processes
def test_a_video_on_a_full_disk(tmp_path):
    lines = output(FULL, tmp_path).splitlines()
    assert len(lines) == 2
    assert all(re.match("cannot write the video: .*is the disk full", line) for line in lines)


@pytest.mark.processes
def test_neither_help_nor_an_unknown_environment_import_tensorflow(tmp_path):
    code = """
import sys
from rl_replicator.cli import main
for words, expected in ((["--help"], 0), (["--env", "cartpole:nothing"], 2)):
    try:
        status = main.main(["train", "d4pg", *words])
    except SystemExit as end:
        status = end.code
    assert (status, "tensorflow" in sys.modules) == (expected, False)
"""
    output(code, tmp_path)


@pytest.mark.parametrize("what", [("d4pg", {"env": "environments.fakes:target"}), ("resnet", {})])
def test_open_ports_are_allowed_for_one_run_only(tmp_path, monkeypatch, what):
    monkeypatch.delenv(OPEN_PORTS, raising=False)
    monkeypatch.chdir(tmp_path)
    name, settings = what
    with pytest.raises(UsageError, match="nonsense"):
        rl_replicator.train(name, open_ports=True, replicas="nonsense", **settings)
    assert OPEN_PORTS not in os.environ
