"""The table that fills up during a suite."""

import csv
import io

from agents.suites import board, plot, results, tasks
from agents.suites.anchors import Anchors
from rl_replicator.experiments.live_table import LiveTable
from rl_replicator.experiments.trial import Trial
from rl_replicator.experiments.trial import TrialState as State
from tests.agents.suites.fake_agent import write_run

ANCHORS = Anchors({"D4PG": {"a:b": 30.0, "c:d": 10.0}, "SAC (1)": {"a:b": 5.0}})


def make(tmp_path, task, seed, state, evaluations=()):
    name = tasks.run_name(task, seed)
    if evaluations:
        write_run(tmp_path / name, task, seed, evaluations)
    return Trial(name, {"env": task, "seed": str(seed)}, state)


def test_cells(tmp_path):
    trials = [
        make(tmp_path, "a:b", 1, State.DONE, [(50, 5), (100, 20)]),
        make(tmp_path, "a:b", 2, State.DONE, [(100, 40)]),
        make(tmp_path, "c:d", 1, State.RUNNING, [(50, 7)]),
        make(tmp_path, "c:d", 2, State.WAITING),
        make(tmp_path, "e:f", 1, State.FAILED),
    ]
    lines = board.text(trials, tmp_path, 100, ANCHORS).splitlines()
    assert lines[0] == "2 of 5 runs done, 1 running, 1 failed"
    assert [line.split() for line in lines[1:]] == [
        ["task", "seed", "1", "seed", "2", "mean", "D4PG"],
        ["a:b", "20", "40", "30", "30"],
        ["c:d", "50%", "(7)", "-", "10"],
        ["e:f", "failed"],
    ]
    # The mean over tasks with results, and the published algorithm's mean over the same tasks.
    trials[2] = make(tmp_path, "c:d", 1, State.DONE, [(100, 50)])
    assert board.text(trials, tmp_path, 100, ANCHORS).splitlines()[-1].split() == [
        *("mean", "of", "2", "tasks", "40", "20"),
    ]


def test_small_returns_are_not_rounded_to_nothing(tmp_path):
    trials = [
        make(tmp_path, "a:b", 1, State.DONE, [(100, 0.31)]),
        make(tmp_path, "a:b", 2, State.DONE, [(100, -0.2)]),
        make(tmp_path, "a:b", 3, State.RUNNING, [(50, 0.4567)]),
    ]
    *_, row = board.text(trials, tmp_path, 100, Anchors({})).splitlines()
    assert row.split() == ["a:b", "0.31", "-0.2", "50%", "(0.457)", "0.055"]


def test_a_run_that_has_more_steps_counts_at_the_mark(tmp_path):
    """The suite was repeated with fewer steps; evaluations may miss the mark by an action."""
    trials = [
        make(tmp_path, "a:b", 1, State.DONE, [(50, 5), (99, 20), (200, 80)]),
        make(tmp_path, "a:b", 2, State.RUNNING, [(99, 40)]),
    ]
    *_, row = board.text(trials, tmp_path, 100, ANCHORS).splitlines()
    assert row.split() == ["a:b", "20", "99%", "(40)", "20", "30"]


def test_the_table_and_the_summary_count_the_same_runs(tmp_path):
    """An evaluation near the mark is not the last one of a run that failed or was stopped."""
    trials = [
        make(tmp_path, "a:b", 1, State.FAILED, [(99, 5)]),
        make(tmp_path, "c:d", 1, State.WAITING, [(99, 5)]),
        make(tmp_path, "c:d", 2, State.DONE, [(98, 5), (101, 30), (200, 80)]),
        make(tmp_path, "e:f", 1, State.DONE, [(100, 50)]),
        make(tmp_path, "g:h", 1, State.DONE, [(50, 5), (200, 80)]),
    ]
    *_, last = board.text(trials, tmp_path, 100, Anchors({})).splitlines()
    assert last.split() == ["mean", "of", "2", "tasks", "40"]
    rows = [row for one in trials for row in board.rows_of(tmp_path / one.name)]
    results.write_summary(tmp_path / "summary.csv", rows, 100)
    mean, *_ = csv.DictReader((tmp_path / "summary.csv").open())
    assert (mean["value"], mean["tasks"], mean["runs"]) == ("40", "2", "2")
    stopped = [row for row in rows if row.task in ("a:b", "c:d") and row.seed == 1]
    image = tmp_path / "results.png"
    image.touch()  # From other steps.
    plot.draw(stopped, 100, Anchors({}), image)
    assert not image.exists()


class _Terminal(io.StringIO):
    def isatty(self):
        return True


def test_a_terminal_is_drawn_over():
    stream, lines = _Terminal(), ["head", "one"]
    table = LiveTable(lambda: "\n".join(lines), stream)
    table.refresh()
    lines.append("two")
    table.refresh()  # Not due yet.
    table.note("two is new")
    table.close()
    first, second, last = stream.getvalue().split("\x1b[J")[1:]
    assert (first, second) == ("head\none\n\x1b[2A", "head\none\ntwo\n\x1b[3A")
    assert last == "head\none\ntwo\n"
    stream = io.StringIO()
    table = LiveTable(lambda: "all", stream)
    table.refresh()
    table.note("two is new")
    table.close()
    assert stream.getvalue() == "two is new\nall\n"


def test_names_of_runs_are_single_folders():
    name = tasks.run_name("dm:manipulation/reach_site", 2)
    assert name == "dm-manipulation-reach_site-seed2"
    names = [one.name for one in tasks.trials(["a:b", "c:d"], 2)]
    assert names == ["a-b-seed1", "c-d-seed1", "a-b-seed2", "c-d-seed2"]
