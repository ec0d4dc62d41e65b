"""Which evaluations of a trial's runs are compared, and the table of the trials."""

import pytest

from rl_replicator.experiments import sweep, trial
from rl_replicator.experiments.trial import Trial, TrialEvaluation, TrialRun, TrialState
from rl_replicator.runs.metrics import MetricWriter
from rl_replicator.runs.run_directory import RunDirectory
from rl_replicator.runs.score import Score


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


@pytest.mark.parametrize(
    ("figure", "is_highest_best", "expected"),
    [(2.0, True, 2.0), (2.0, False, -2.0), (float("nan"), False, -1e30), (None, True, -1e30)],
)
def test_the_objective_is_to_be_maximized(figure, is_highest_best, expected):
    rows = (
        []
        if figure is None
        else [TrialEvaluation(1, 9.0, 9.0, 9.0), TrialEvaluation(2, figure, 0, 0)]
    )
    assert trial.objective(rows, is_highest_best) == expected


def test_trials_are_read_as_they_were_written(tmp_path):
    row = TrialEvaluation(100, 1.5, 1.0, 2.0)
    written = [
        Trial("trial-000", {"x": "0.1"}, TrialState.STOPPED, "", "loss", False, [row], "a at 3"),
        Trial("trial-001", {"x": "0.2"}, TrialState.FAILED, "why"),
        Trial("trial-002", {"x": "0.3"}, TrialState.RUNNING),
    ]
    trial.write(tmp_path / "trials.json", written)
    found = trial.read(tmp_path / "trials.json")
    assert found[:2] == written[:2]
    assert found[2].state is TrialState.WAITING  # Nobody runs it any more.
    assert trial.read(tmp_path / "none.json") == []


def test_the_table_has_the_best_trials_first():
    def one(number, state, *means):
        rows = [TrialEvaluation(100 * i, mean, mean, mean + 1) for i, mean in enumerate(means, 1)]
        values = {"rate": "0.00063805612345", "size": "2000000", "kind": "a.b"}
        return Trial(f"trial-{number:03}", values, state, "", "loss", False, rows)

    trials = [
        one(0, TrialState.FAILED),
        one(1, TrialState.STOPPED, 1.0),
        one(2, TrialState.DONE, 3.0, 2.0),
        one(3, TrialState.STOPPED, 9.0, 9.0),
        one(4, TrialState.DONE, 1.0, 0.5),
    ]
    first, head, *rows = [line.split() for line in sweep.text(trials, 8).splitlines()]
    assert " ".join(first) == "5 of 8 trials ended, 2 stopped, 2 done, 1 failed"
    assert head[-3:] == ["steps", "loss", "seeds"]
    assert [row[0] for row in rows] == ["4", "2", "3", "1", "0"]
    cells = ["0.000638056", "2000000", "a.b", "done", "2", "200", "0.5", "0.5", "to", "1.5"]
    assert rows[0][1:] == cells
