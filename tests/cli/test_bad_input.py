"""Bad input of every kind: one line says what was expected and what was given; no file changes."""

import dataclasses
import re

import pytest

from rl_replicator.cli import main, trainables

# Tried for each option: not a number, and a number that is too low. Large values are tried below.
VALUES = ("x", "-1")
FAKE_ENVIRONMENT = ("--env", "environments.fakes:target", "--steps", "1000")
D4PG = ("train", "d4pg", *FAKE_ENVIRONMENT)
NOT_NUMBERS = {"--env", "--run-dir", "--resume", "--data-dir", "--features"}
# Options that their errors do not repeat, and what these mention instead.
MENTIONED = {"--replicas": "replica"}
# A run directory that is refused last, after everything else has been checked.
OTHER_FILES = "has other files in it"


@pytest.fixture(autouse=True)
def folder(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)


def refused(capsys, *words):
    """Runs a command that must be refused; returns its message in one line."""
    assert main.main(words) == 2, words
    out, err = capsys.readouterr()
    assert out == "", words
    text = " ".join(re.sub("[\u2500-\u257f]", " ", err).split())
    assert "Traceback" not in text and text.count("rl-replicator: error:") <= 1, (words, err)
    return text


def files(directory):
    return {path: path.read_bytes() for path in sorted(directory.rglob("*")) if path.is_file()}


def option_names(config, prefix=""):
    """Yields the options that take a value, as they are typed: --agent.n-step."""
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if dataclasses.is_dataclass(value):
            inner = "" if field.name == "config" else f"{prefix}{field.name}."
            yield from option_names(value, inner)
        elif not isinstance(value, bool):
            yield f"--{prefix}{field.name}".replace("_", "-")


@pytest.mark.parametrize("name", ["d4pg", "resnet", "sngan"])
def test_every_option_refuses_what_makes_no_sense(capsys, tmp_path, name):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").write_text("...")
    before = files(tmp_path)
    words = ["train", name, "--run-dir", "full"]
    words += FAKE_ENVIRONMENT if name in ("d4pg", "sac") else ["--data-dir", "nowhere"]
    accepted, num_refused = set(), 0
    options = {
        *option_names(trainables.load(name).options_from({"env": "a:b"} if name == "d4pg" else {}))
    }
    for option in sorted(options - NOT_NUMBERS):
        for value in VALUES:
            line = refused(capsys, *words, option, value)
            if OTHER_FILES in line or "nowhere" in line:
                accepted.add((option, value))
                continue
            num_refused += 1
            word = option.removeprefix("--").rpartition(".")[2]
            assert MENTIONED.get(option, word) in line.replace("_", "-"), (option, value, line)
    assert files(tmp_path) == before
    assert not [option for option, value in accepted if value == "x"], accepted
    assert num_refused > 1.5 * len(options - NOT_NUMBERS), accepted


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("train", "d4pg"), "--env STR"),
        (("train", "nowhere:make_learner"), "nowhere"),
        (("train", "json:make_learner"), "make_learner"),
        (("train", "json:dumps"), "expected"),
        (("train", "d4pg", "--env", "cartpole"), "expected"),
        (("train", "d4pg", "--env", "cartpole:swing"), "expected"),
        (("train", "d4pg", "--env", "nothere:make"), "nothere"),
        (("train", "d4pg", "--env", "json:make"), "make"),
        (("train", "d4pg", "--env", "json:loads"), "expected"),
        (("train", "d4pg", "--env", ":"), "expected"),
        (("train", "d4pg", "--env", ""), "expected"),
        ((*D4PG, "--resume"), "found none"),
        ((*D4PG, "--run-dir", "gs://bucket/run"), "mounted"),
        ((*D4PG, "--run-dir", "a-file/run"), "cannot write"),
        (
            (*D4PG, "--run-dir", "a-file"),
            "a-file, which is a file, or has",
        ),
        ((*D4PG, "--replicas", "multi_device:0"), "expected"),
        ((*D4PG, "--replicas", "²"), "expected a replicator"),
        ((*D4PG, "--replicas", "multi_worker:1"), "at least 2"),
        ((*D4PG, "--replicas", "multi_worker:2"), "--launch"),
        ((*D4PG, "--replicas", "mesh:data=0"), "expected"),
        ((*D4PG, "--replicas", "99999999999"), "at most 256"),
        ((*D4PG, "--agent.num-atoms", "99999999999"), "num-atoms"),
        ((*D4PG, "--agent.discount", "nan"), "discount"),
        ((*D4PG, "--agent.replay.samples-per-insert", "inf"), "up to"),
        ((*D4PG, "--agent.critic-loss", "square"), "critic"),
        ((*D4PG, "--agent.critic-loss", "json:no"), "no"),
        ((*D4PG, "--agent.exploration", "none:no"), "none"),
        (
            (*D4PG, "--agent.policy-layers"),
            "expected one or more layer",
        ),
        ((*D4PG, "more"), "Unrecognized options: more"),
        (("eval", "a-file"), "expected"),
        (("eval", "a-file", "b-file"), "expected"),
        (("plot", "a" * 300), "of 300 characters; choose a shorter one"),
        ((*D4PG, "--run-dir", "a" * 300), "of 300 characters"),
        (("train", ":"), "expected module:function, got ':'"),
        (("train", ":make"), "expected module:function, got ':make'"),
        (("compare", "nowhere"), "expected"),
        (("doctor", "more"), "Unrecognized options: more"),
    ],
    ids=lambda value: " ".join(value)[:60] if isinstance(value, tuple) else "",
)
def test_commands(capsys, tmp_path, words, expected):
    (tmp_path / "a-file").write_text("...")
    before = files(tmp_path)
    assert expected in refused(capsys, *words)
    assert files(tmp_path) == before


@pytest.mark.parametrize("command", ["eval", "video", "train"])
@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "null",
        "{}",
        '{"identity": 3}',
        '{"identity": {}, "trainable": 7}',
        '{"identity": {"config": []}, "trainable": "resnet"}',
        '{"identity": {}, "trainable": "nothing"}',
        '{"identity": {}, "trainable": "resnet", "options": 5}',
        '{"identity": {}, "trainable": "d4pg"}',
        '{"identity": {"env": 1, "agent": {}}, "trainable": "d4pg"}',
        '{"identity": {"env": "cartpole:swingup", "agent": {"from": "the future"}}, '
        '"trainable": "d4pg"}',
    ],
)
def test_damaged_settings_of_a_run(capsys, tmp_path, command, text):
    _check_damaged(capsys, tmp_path, command, text)


def _check_damaged(capsys, tmp_path, command, text):
    (tmp_path / "run" / "metrics").mkdir(parents=True)
    (tmp_path / "run" / "config.json").write_text(text)
    before = files(tmp_path)
    words = ("--run-dir", "run") if command == "train" else ("run",)
    refused(capsys, command, *words)
    assert files(tmp_path) == before
