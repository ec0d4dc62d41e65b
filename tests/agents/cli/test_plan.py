"""`rl-replicator plan`, with parts that were measured before."""

import dataclasses
import enum
import errno
import json
import re
from pathlib import Path

import pytest

from agents.nodes.run_plan import Replicas
from agents.plan.command import measured_settings
from agents.plan.deployment import Hardware, deploy
from agents.plan.parts import Parts
from agents.runs.options import AgentOptions
from rl_replicator.cli import main, trainables
from rl_replicator.errors import ConfigError, DiskError
from tests.agents.plan.parts import PARTS

FAKE = ("plan", "d4pg", "--env", "environments.fakes:target")
PREDICTED = (
    "predicted at most for 64 actors of 1 environment, 1 replica, 1 replay server, "
    "8 machines of 16 processors"
)
WHAT = "d4pg on environments.fakes:target"


@pytest.fixture(autouse=True)
def installed(tmp_path, monkeypatch):
    """Registers the command, and writes the parts to a file."""
    info = tmp_path / "site" / "tests_of_plan-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: tests-of-plan\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[rl_replicator.commands]\nplan = agents.cli.plan\n")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    monkeypatch.chdir(tmp_path)
    settings = measured_settings(parsed(*FAKE[2:]))
    dataclasses.replace(PARTS, what=WHAT, settings=settings).save(tmp_path / "parts.json")


def parsed(*words):
    """The options of a run of D4PG."""
    return trainables.load("d4pg").parse(words, {})


def test_it_names_what_saturates_and_what_helps(capsys):
    # A step of 100 actions takes 2 ms on one thread of 16: 500 a second, and as many actions.
    words = ("--parts", "parts.json", "--actors", "64", "--launch", "ray", "--machines", "8")
    words += ("--cores", "16", "--steps", "30000")
    words += ("--agent.global-batch-size", "100")
    words += ("--agent.replay.samples-per-insert", "100", "--agent.replay.min-size", "1000")
    assert main.main([*FAKE, *words]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "measured on tests" in lines[0]
    predicted = lines[lines.index(PREDICTED) + 1]
    assert predicted == (
        "  500 environment steps/s, 500.0 learner steps/s, 1.0 minutes to 30,000 environment steps"
    )
    assert "saturates first: the learner's steps" in lines
    assert any("--network-gbps 10" in line for line in lines)
    assert "--device-speedup 10: 10.00 x" in lines[lines.index("what would help") + 1]


@pytest.mark.parametrize(
    ("words", "replicas"),
    [(("--learner-gpus", "4"), 32), (("--learner-gpus", "0"), 8), ((), 8)],
)
def test_it_plans_the_replicas_of_a_run(words, replicas):
    words = ("--replicas", "multi_worker:8", "--launch", "ray", *words)
    run = parsed("--env", "a:b", *words)
    deployment = deploy(run, Hardware(machines=8))
    assert (deployment.replicas, deployment.learner_processes) == (replicas, 8)
    in_run = Replicas.parse(run.replicas, run.launch, run.learner_gpus or 0)
    assert in_run.num_replicas == replicas


def test_it_plans_the_episodes_of_an_evaluation():
    words = ("--env", "cartpole:balance", "--pixels", "--frame.action-repeat", "8")
    run = parsed(*words, "--evaluation.max-episode-steps", "100")
    assert deploy(run, Hardware()).episode_actions == 13


def test_an_agent_without_a_replay_is_refused():
    @dataclasses.dataclass(frozen=True)
    class Config:
        rate: float = 0.1

    with pytest.raises(ConfigError, match="is an agents.config.OffPolicyConfig, got Config: a pl"):
        deploy(AgentOptions(env="a:b", agent=Config()), Hardware())


class Kind(enum.Enum):
    """A type of a setting."""

    QUICK = 1


@dataclasses.dataclass(frozen=True)
class OwnConfig:
    """Settings of a user-defined agent, of the types that a run stores."""

    kind: Kind = Kind.QUICK
    layers: tuple[tuple[int, int], ...] = ((8, 2), (4, 1))
    clip: float = 0.5
    data: Path = Path("data")


def test_parts_are_taken_for_equal_settings_of_all_types(tmp_path):
    settings = measured_settings(AgentOptions(env="environments.fakes:target", agent=OwnConfig()))
    path = tmp_path / "own.json"
    dataclasses.replace(PARTS, what=WHAT, settings=settings).save(path)
    found = Parts.load(path, WHAT, settings)
    assert found.settings["agent.layers"] == [[8, 2], [4, 1]]
    assert found.settings["agent.kind"] == Kind.QUICK.value
    with pytest.raises(ConfigError, match="measured with agent.clip 1.0, got .* with 0.5; choose"):
        Parts.load(path, WHAT, {**settings, "agent.clip": 1.0})


def test_a_full_disk_leaves_the_parts_that_are_there(tmp_path, monkeypatch):
    path = tmp_path / "parts.json"
    before, write = path.read_text(), Path.write_bytes

    def fill(self, data):
        write(self, data[:100])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", fill)
    with pytest.raises(DiskError, match="--parts: cannot write .*No space left"):
        PARTS.save(path)
    assert path.read_text() == before and not [*tmp_path.glob(".parts*")]


def test_a_network_that_the_caches_alone_use_up_is_no_division_by_zero(capsys):
    # 64 caches fetch a megabyte each five times a second: 2.56 Gbit/s.
    words = ("--parts", "parts.json", "--actors", "64", "--launch", "ray", "--machines", "8")
    words += ("--cores", "16", "--caches", "64", "--network-gbps", "1.5")
    words += ("--replicas", "multi_worker:2")
    assert main.main([*FAKE, *words]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "saturates first: the network out of the learner" in lines
    assert any(
        line.startswith("  0 environment steps/s, 0.0 learner steps/s, for") for line in lines
    )
    helps = lines[lines.index("what would help") + 1 :]
    assert len(helps) == 1 and helps[0].startswith("  --network-gbps 3: ") and "inf" not in helps[0]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("plan",), "Missing from rl-replicator plan: AGENT"),
        (("plan", "resnet"), "expected an agent"),
        (("plan", "d4pg"), "--env STR"),
        ((*FAKE, "--machines", "0"), "--machines: expected at least 1, got 0"),
        ((*FAKE, "--cores", "inf"), "--cores: expected a number greater than 0"),
        ((*FAKE, "--device-speedup", "-1"), "--device-speedup"),
        ((*FAKE, "--latency-us", "-1"), "--latency-us"),
        ((*FAKE, "--measure-seconds", "0"), "--measure-seconds"),
        ((*FAKE, "--machines", "2"), "--launch: expected ray on several machines, got threads"),
        ((*FAKE, "--replicas", "mesh:data=2"), "--replicas: expected a number"),
        ((*FAKE, "--replicas", "multi_worker:2"), "--launch processes"),
        ((*FAKE, "--replicas", "multi_worker:1"), "at least 2 learner processes, got 'multi_work"),
        ((*FAKE, "--replicas", "7"), "a multiple of 7 replicas"),
        ((*FAKE, "--actors", "4", "--replay-shards", "3"), "--replay-shards"),
        ((*FAKE, "--deterministic"), "--deterministic"),
        ((*FAKE, "--config", "f.toml"), "expected no --config after 'rl-replicator plan', which o"),
        ((*FAKE, "--macines", "2"), "Unrecognized options: --macines"),
        ((*FAKE, "--parts", "nowhere/parts.json"), "--parts: expected a file in a folder"),
        ((*FAKE, "--parts", "broken.json"), "--parts"),
        (
            (*FAKE, "--parts", "parts.json", "--agent.policy-layers", "8"),
            "parts that were measured with agent.policy-layers [8], got parts.json, measured with "
            "[256, 256",
        ),
        (
            (*FAKE, "--env", "cartpole:balance", "--parts", "parts.json"),
            f"measured with {WHAT}",
        ),
    ],
    ids=lambda value: " ".join(value[3:])[:60] if isinstance(value, tuple) else "",
)
def test_bad_options_are_named(capsys, tmp_path, words, expected):
    (tmp_path / "broken.json").write_text(json.dumps({"what": WHAT}))
    assert main.main(words) == 2
    out, err = capsys.readouterr()
    assert out == ""
    text = " ".join(re.sub("[\u2500-\u257f]", " ", err).split())
    assert expected in text, text
