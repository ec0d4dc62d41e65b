"""Trials: their evaluations, matched over runs, and their record."""

import math

import pytest

from rl_replicator.experiments import trial
from rl_replicator.experiments.trial import Trial, TrialEvaluation, TrialRun, TrialState
from rl_replicator.runs.evaluations import Score
from rl_replicator.runs.metrics import MetricWriter
from rl_replicator.runs.run_directory import RunDirectory


def columns(tmp_path, *tables, every=1000, end=4500):
    """The steps of each evaluation, one for each run; the figure of a row is its step."""
    runs = []
    for number, steps in enumerate(tables):
        run = RunDirectory(tmp_path / str(number))
        with run.opened("net", {}):
            run.describe("net", {}, {}, Score("evaluation", "y", every=every, end=end).plain())
        writer = MetricWriter(run.path, "steps")
        for step in steps:
            writer.write("evaluation", step, {"y": step})
        writer.close()
        runs.append(TrialRun((), run.path, run.path / "log"))
    found = trial.evaluations(runs)
    assert [one.steps for one in found] == [one.low for one in found]
    assert [one.mean for one in found] == [(one.low + one.high) / 2 for one in found]
    return [(one.low, one.high) for one in found]


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        # The learner of the second one had not begun when its first evaluation was due.
        ((1000, 2000, 4000), (2000, 4000), [(2000, 2000), (4000, 4000)]),
        # An evaluation was due during another one.
        ((1000, 2000, 3000, 4000), (1000, 3000, 4000), [(1000, 1000), (3000, 3000), (4000, 4000)]),
        # They come some steps late.
        ((1010, 2750, 3000), (1950, 2000, 3020), [(1010, 1950), (2000, 2750), (3000, 3020)]),
        # The one at the end is none of those that were due before it, and may be late, too.
        ((1010, 4050, 4500), (1020, 4500), [(1010, 1020), (4500, 4500)]),
        ((1010, 4010, 4508), (1000, 4090, 4500), [(1000, 1010), (4010, 4090), (4500, 4508)]),
        ((1010, 4010), (1000, 4500), [(1000, 1010)]),
        # Not all runs have come equally far.
        ((1000, 2000), (1000,), [(1000, 1000)]),
        ((1000,), (2000, 3000), []),
        ((1000,), (), []),
    ],
)
def test_evaluations_of_runs_are_matched_by_their_steps(tmp_path, first, second, expected):
    assert columns(tmp_path, first, second) == expected


def test_runs_of_equal_steps_need_no_schedule(tmp_path):
    found = columns(tmp_path, (500, 1000, 1200), (1000, 1200), every=None)
    assert found == [(1000, 1000), (1200, 1200)]
    assert trial.evaluations([TrialRun((), tmp_path / "none", tmp_path / "log")]) == []


def test_trials_are_read_as_they_were_written(tmp_path):
    row, undefined = (
        TrialEvaluation(100, 1.5, 1.0, 2.0),
        TrialEvaluation(100, math.nan, -math.inf, math.inf),
    )
    written = [
        Trial("trial-000", {"x": "0.1"}, TrialState.STOPPED, "", "loss", False, [row], "a at 3"),
        Trial("trial-001", {"x": "0.2"}, TrialState.FAILED, "why", evaluations=[undefined]),
        Trial("trial-002", {"x": "0.3"}, TrialState.RUNNING),
    ]
    trial.write(tmp_path / "trials.json", written)
    found = trial.read(tmp_path / "trials.json")
    assert [repr(one) for one in found[:2]] == [repr(one) for one in written[:2]]
    objectives = [trial.objective(one.evaluations, one.is_highest_best) for one in found]
    assert objectives == [-1.5, -1e30, -1e30]  # The lowest was best.
    assert found[2].state is TrialState.WAITING  # Nobody runs it any more.
    assert trial.read(tmp_path / "none.json") == []
