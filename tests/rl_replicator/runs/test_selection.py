"""Which runs the paths on a command line stand for."""

import os
from pathlib import Path

import pytest

from rl_replicator.cli import eval as evaluation
from rl_replicator.cli import export, train
from rl_replicator.errors import UsageError
from rl_replicator.runs import selection
from rl_replicator.runs.run_directory import RunDirectory


def describe(path, kind):
    """The directory of a run, a sweep or a suite."""
    path.mkdir(parents=True)
    RunDirectory(path).describe(kind, {}, {})


@pytest.fixture
def sweep_and_suite(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    describe(Path("sweep"), "sweep")
    describe(Path("suite"), "suite")
    for run in ("sweep/trial-000/seed-1", "sweep/trial-001/seed-1", "suite/a-seed1"):
        describe(Path(run), "d4pg")
    (tmp_path / "sweep/logs").mkdir()
    (tmp_path / "sweep/trials.journal").touch()


def test_each_run_once_in_the_order_given(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("b", "a", "folder/c"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "config.json").write_text("{}")
    os.symlink("a", "link")
    given = ["b", "a", tmp_path / "b", "folder/../a", "link", "folder", "folder/c"]
    assert selection.expanded([Path(path) for path in given]) == [
        Path("b"),
        Path("a"),
        Path("folder/c"),
    ]


def test_a_sweep_and_a_suite_stand_for_their_runs(sweep_and_suite):
    trials = [Path("sweep/trial-000/seed-1"), Path("sweep/trial-001/seed-1")]
    assert selection.expanded([Path("sweep")]) == trials
    assert selection.expanded([Path()]) == [Path("suite/a-seed1"), *trials]
    assert selection.expanded([trials[1]]) == [trials[1]]
    describe(Path("empty"), "sweep")
    assert selection.expanded([Path("empty")]) == [Path("empty")]


def test_a_run_stands_for_itself_whatever_lies_in_it(tmp_path):
    describe(tmp_path / "run", "d4pg")
    describe(tmp_path / "run/copy", "d4pg")
    assert selection.expanded([tmp_path / "run"]) == [tmp_path / "run"]
    assert selection.expanded([tmp_path]) == [tmp_path / "run"]
    (tmp_path / "run/config.json").write_text("{")  # A damaged one is named as such.
    assert selection.expanded([tmp_path / "run"]) == [tmp_path / "run"]


@pytest.mark.parametrize(
    "command",
    [
        lambda path: evaluation.run([path]),
        lambda path: export.run([path, "--format", "numpy", "--out", "out"]),
        lambda path: train.run(["--run-dir", path]),
        lambda path: train.run(["d4pg", "--run-dir", path]),
    ],
    ids=["eval", "export", "train", "train d4pg"],
)
def test_one_of_many_runs_must_be_named(sweep_and_suite, command):
    expected = "one run, got sweep, which holds a sweep; .*, such as sweep/trial-000/seed-1"
    with pytest.raises(UsageError, match=expected):
        command("sweep")
    with pytest.raises(UsageError, match="got suite, which holds a suite; .*, such as suite/a-s"):
        command("suite")


def test_a_link_that_leads_to_itself_hides_no_run(tmp_path):
    describe(tmp_path / "run", "d4pg")
    loop = tmp_path / "loop"
    loop.symlink_to("loop")
    found, left_out = selection.readable(
        [loop, tmp_path / "run"], lambda path: RunDirectory(path).config()["trainable"]
    )
    assert len(found) == 1 and [one.path for one in left_out] == [loop]
    assert "Too many levels of symbolic links" in left_out[0].reason
