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
from agents.nodes import run_plan
from agents.runs import preparation
from rl_replicator.cli import main
from rl_replicator.errors import UsageError
from rl_replicator.processes.ports import OPEN_PORTS

TRAIN = ("--env", "environments.fakes:target", "--agent.value-min", "0")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ("--agent.replay.max-size", "1000000000000000"),
            r"--agent\.replay\.max-size: expected less than 2\*\*31, got 1000000000000000",
        ),
        (
            ("--actors", "10000"),
            r"--actors: expected at most 400 with --launch threads and 8\.0 GB of free memory, got",
        ),
        (
            ("--actors", "27", "--launch", "processes"),
            "--actors: expected at most 26 with --launch processes",
        ),
        (
            ("--actors", "2", "--envs-per-actor", "300"),
            "--envs-per-actor: expected at most 200 with --actors 2, --launch threads and",
        ),
        (
            ("--env-engine", "envpool", "--time-limit", "9"),
            "--env-engine: expected dm_control with --time-limit, got envpool",
        ),
        (
            ("--env-engine", "envpool", "--deterministic"),
            "--env-engine: expected dm_control with --deterministic, got envpool",
        ),
        (
            ("--agent.policy-layers", "1000000", "1000000"),
            r"--agent\.policy-layers: expected one or more layer sizes from 1 to 8192, got",
        ),
        (
            ("--agent.value-max", "inf"),
            r"--agent\.value-max: expected a number from -1e.30 to 1e.30, got inf",
        ),
        (("--agent.n-step", "100000"), r"--agent\.n-step: expected at most 1000, got 100000"),
        (
            ("--agent.exploration-sigma", "1e9"),
            r"--agent\.exploration-sigma: expected a number from 0 to 10, got 1000000000\.0",
        ),
        (
            ("--learner-gpus", "4", "--launch", "processes", "--agent.value-max", "20"),
            r"--learner-gpus: expected at most 0, as this machine has 0 GPUs, got 4",
        ),
        (
            ("--learner-gpus", "1", "--agent.value-max", "20"),
            r"--learner-gpus: expected --launch processes or ray with it \(.*\), got threads",
        ),
        (
            ("--agent.encoder", "small"),
            r"Unrecognized options: --agent\.encoder, small",
        ),
        (("--address", "10.0.0.1:6379"), "--address: expected --launch ray, got threads"),
        (("--caches", "2"), "--caches: expected 0 to one per actor, got 2"),
        (
            ("--actors", "3", "--replay-shards", "2"),
            "--replay-shards: expected a divisor of 3, .* got 2",
        ),
        (
            ("--deterministic", "--actors", "2"),
            "--actors: expected 1 with --deterministic, got 2",
        ),
        (
            ("--deterministic", "--launch", "processes"),
            "--launch: expected threads with --deterministic",
        ),
        (("--agent.discount", "1.0"), "--agent.discount: expected .* got 1.0"),
        (("--agent.policy-average", "10"), "expected 1, or more than 10: .* got 10"),
        (
            ("--agent.value-max", "-1"),
            r"--agent\.value-min: expected less than value_max \(-1\.0\)",
        ),
        (("--agent.value-max", "nan"), "--agent.value-max: expected a number from .*, got nan"),
        (("--agent.max-gradient-norm", "inf"), "--agent.max-gradient-norm: .* or None, got inf"),
        (("--agent.torso", "nothere"), "--agent.torso: expected mlp, simba, .* got 'nothere'"),
        (
            ("--agent.torso", "simba", "--agent.policy-layers", "8", "9"),
            "policy.layers: expected equal",
        ),
        (("--agent.torso", "xqc"), "policy.average: expected 1 with the torso xqc, got 2000"),
        (("--agent.exploration", "nothere"), "--agent.exploration: expected gaussian, .*'nothere'"),
        (("--agent.critic-loss", "nothere"), "--agent.critic-loss: expected .* got 'nothere'"),
        (("--pixels", "--agent.frame-stack", "0"), "--agent.frame-stack: expected at least 1"),
        (("--pixels", "--agent.replay.chunk-length", "0"), "--agent.replay.chunk-length: .* got 0"),
        (("--evaluation.max-episode-steps", "0"), "max-episode-steps: expected at least 1, got 0"),
    ],
)
def test_a_bad_option_is_named(words, message, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(preparation, "available_memory", lambda: 8e9)
    monkeypatch.setattr(run_plan, "_count_gpus", lambda: 0)
    assert main.main(["train", "d4pg", *TRAIN, "--run-dir", str(tmp_path / "run"), *words]) == 2
    text = " ".join(re.sub("[\u2500-\u257f]", " ", capsys.readouterr().err).split())
    assert re.search(message, text), text
    assert not (tmp_path / "run").exists()


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
import pathlib, resource, sys
import numpy as np
from agents.policies import playing
from rl_replicator.errors import DiskError

path = pathlib.Path(sys.argv[1])
frames = np.random.default_rng(0).integers(256, size=(20, 64, 64, 3), dtype=np.uint8)
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, -1))  # Python ignores the signal.
try:
    with playing.film(path) as add:
        for frame in frames:
            add(frame)
except DiskError as error:
    print(error)
assert list(path.parent.iterdir()) == []
resource.setrlimit(resource.RLIMIT_FSIZE, (-1, -1))
with playing.film(path) as add:
    for frame in frames[:5]:
        add(frame)
assert list(path.parent.iterdir()) == [path]
"""


@pytest.mark.processes
@pytest.mark.parametrize("name", ["video.mp4", "video.gif"])
def test_a_video_on_a_full_disk(name, tmp_path):
    child = subprocess.run(
        [sys.executable, "-c", FULL, str(tmp_path / name)],
        stdout=subprocess.PIPE,
        text=True,
        timeout=100,
        check=True,
    )
    assert re.match("cannot write the video: .*is the disk full", child.stdout)


@pytest.mark.processes
@pytest.mark.parametrize("words", [("--help",), ("--env", "cartpole:nothing")])
def test_neither_help_nor_an_unknown_environment_import_tensorflow(words):
    code = f"""
import sys
from rl_replicator.cli import main
try:
    status = main.main(["train", "d4pg", *{words}])
except SystemExit as end:
    status = end.code
assert "tensorflow" not in sys.modules
sys.exit(status)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == (0 if words == ("--help",) else 2), done.stderr


@pytest.mark.parametrize("what", [("d4pg", {"env": "environments.fakes:target"}), ("resnet", {})])
def test_open_ports_are_allowed_for_one_run_only(tmp_path, monkeypatch, what):
    monkeypatch.delenv(OPEN_PORTS, raising=False)
    monkeypatch.chdir(tmp_path)
    name, settings = what
    with pytest.raises(UsageError, match="nonsense"):
        rl_replicator.train(name, open_ports=True, replicas="nonsense", **settings)
    assert OPEN_PORTS not in os.environ
