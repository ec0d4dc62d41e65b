"""The table that fills up during a suite."""

import csv
import io

from agents.suites import board, plot, results, tasks
from agents.suites.anchors import Anchors
from agents.suites.progress import RunStatus, State
from agents.suites.tasks import SuiteRun
from tests.agents.suites.fake_agent import write_run

ANCHORS = Anchors({"D4PG": {"a:b": 30.0, "c:d": 10.0}, "SAC (1)": {"a:b": 5.0}})


def make(tmp_path, task, seed, state, evaluations=()):
    run = SuiteRun(task, seed)
    if evaluations:
        write_run(tmp_path / run.name, task, seed, evaluations)
    return RunStatus(run, tmp_path / run.name, state)


def test_cells(tmp_path):
    statuses = [
        make(tmp_path, "a:b", 1, State.DONE, [(50, 5), (100, 20)]),
        make(tmp_path, "a:b", 2, State.DONE, [(100, 40)]),
        make(tmp_path, "c:d", 1, State.RUNNING, [(50, 7)]),
        make(tmp_path, "c:d", 2, State.WAITING),
        make(tmp_path, "e:f", 1, State.FAILED),
    ]
    lines = board.text(statuses, 100, ANCHORS).splitlines()
    assert lines[0] == "2 of 5 runs done, 1 running, 1 failed"
    assert [line.split() for line in lines[1:]] == [
        ["task", "seed", "1", "seed", "2", "mean", "D4PG"],
        ["a:b", "20", "40", "30", "30"],
        ["c:d", "50%", "(7)", "-", "10"],
        ["e:f", "failed"],
    ]
    # The mean over tasks with results, and the published algorithm's mean over the same tasks.
    statuses[2] = make(tmp_path, "c:d", 1, State.DONE, [(100, 50)])
    assert board.text(statuses, 100, ANCHORS).splitlines()[-1].split() == [
        *("mean", "of", "2", "tasks", "40", "20"),
    ]


def test_small_returns_are_not_rounded_to_nothing(tmp_path):
    statuses = [
        make(tmp_path, "a:b", 1, State.DONE, [(100, 0.31)]),
        make(tmp_path, "a:b", 2, State.DONE, [(100, -0.2)]),
        make(tmp_path, "a:b", 3, State.RUNNING, [(50, 0.4567)]),
    ]
    *_, row = board.text(statuses, 100, Anchors({})).splitlines()
    assert row.split() == ["a:b", "0.31", "-0.2", "50%", "(0.457)", "0.055"]


def test_a_run_that_has_more_steps_counts_at_the_mark(tmp_path):
    """The suite was repeated with fewer steps; evaluations may miss the mark by an action."""
    statuses = [
        make(tmp_path, "a:b", 1, State.DONE, [(50, 5), (99, 20), (200, 80)]),
        make(tmp_path, "a:b", 2, State.RUNNING, [(99, 40)]),
    ]
    *_, row = board.text(statuses, 100, ANCHORS).splitlines()
    assert row.split() == ["a:b", "20", "99%", "(40)", "20", "30"]


def test_the_table_and_the_summary_count_the_same_runs(tmp_path):
    """An evaluation near the mark is not the last one of a run that failed or was stopped."""
    statuses = [
        make(tmp_path, "a:b", 1, State.FAILED, [(99, 5)]),
        make(tmp_path, "c:d", 1, State.WAITING, [(99, 5)]),
        make(tmp_path, "c:d", 2, State.DONE, [(98, 5), (101, 30), (200, 80)]),
        make(tmp_path, "e:f", 1, State.DONE, [(100, 50)]),
        make(tmp_path, "g:h", 1, State.DONE, [(50, 5), (200, 80)]),
    ]
    *_, last = board.text(statuses, 100, Anchors({})).splitlines()
    assert last.split() == ["mean", "of", "2", "tasks", "40"]
    rows = [row for status in statuses for row in status.rows()]
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


def test_a_terminal_is_drawn_over(tmp_path):
    status = make(tmp_path, "a:b", 1, State.RUNNING)
    stream = _Terminal()
    drawn = board.Board([status], 100, ANCHORS, stream)
    drawn.refresh()
    status.state, status.reason = State.FAILED, "ended with status 2: because"
    drawn.note(status)
    drawn.close()
    first, second, last = stream.getvalue().split("\x1b[J")[1:]
    assert first.endswith("\x1b[3A") and "1 running" in first  # A headline, a head and a row.
    assert (
        second.endswith("\x1b[4A") and "a:b seed 1 failed, ended with status 2: because" in second
    )
    assert "\x1b" not in last and "0 of 1 runs done, 1 failed" in last


def test_names_of_runs_are_single_folders():
    assert (
        tasks.SuiteRun("dm:manipulation/reach_site", 2).name == "dm-manipulation-reach_site-seed2"
    )
    assert tasks.SuiteRun("cartpole:swingup", 1).name == "cartpole-swingup-seed1"
