"""Which evaluations of a trial's runs are compared."""

import pytest

from rl_replicator.runs.metrics import MetricWriter
from rl_replicator.runs.run_directory import RunDirectory
from rl_replicator.runs.score import Score
from rl_replicator.sweeps.trial import SweepTrial, TrialState

EVERY, END = 1000, 4500


def trial_of(tmp_path, *tables, every=EVERY, end=END):
    """A trial with one run for each table; the figure of a row is its step + 0.1 * seed."""
    seeds = tuple(range(1, len(tables) + 1))
    trial = SweepTrial(0, {}, tmp_path / "trial-000", seeds, total_steps=end)
    for seed, steps in zip(trial.seeds, tables, strict=True):
        run = RunDirectory(trial.run_dir(seed))
        with run.opened("net", {}):
            run.describe("net", {}, {}, Score("evaluation", "figure", every=every).plain())
        writer = MetricWriter(run.path, "steps")
        for step in steps:
            writer.write("evaluation", step, {"figure": step + 0.1 * seed})
        writer.close()
    return trial


def columns(trial):
    """The steps of each evaluation, one for each seed."""
    evaluated = trial.evaluated()
    found = [tuple(int(score) for score in column) for column in evaluated.scores.T]
    assert evaluated.count == len(found)
    assert evaluated.steps.tolist() == [min(column) for column in found]
    return found


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        # The learner of the second one had not begun when its first evaluation was due.
        ((1000, 2000, 4000), (2000, 4000), [(2000, 2000), (4000, 4000)]),
        # An evaluation was due during another one.
        ((1000, 2000, 3000, 4000), (1000, 3000, 4000), [(1000, 1000), (3000, 3000), (4000, 4000)]),
        # They come some steps late.
        ((1010, 2750, 3000), (1950, 2000, 3020), [(1010, 1950), (2750, 2000), (3000, 3020)]),
        # The one at the end is none of those that were due before it.
        ((1010, 4050, 4500), (1020, 4500), [(1010, 1020), (4500, 4500)]),
        ((1010, 4010, 4500), (1000, 4090, 4500), [(1010, 1000), (4010, 4090), (4500, 4500)]),
        ((1010, 4010), (1000, 4500), [(1010, 1000)]),
        # Not all runs have come equally far.
        ((1000, 2000), (1000,), [(1000, 1000)]),
        ((1000,), (2000, 3000), []),
        ((1000,), (), []),
    ],
)
def test_evaluations_of_runs_are_matched_by_their_steps(tmp_path, first, second, expected):
    assert columns(trial_of(tmp_path, first, second)) == expected


def test_later_rows_change_no_earlier_evaluation(tmp_path):
    tables = (1000, 2010, 3000, 4020, 4500), (2000, 3500, 4010, 4500), (1010, 2990, 3010, 4500)
    seen = []
    for end in sorted({step for steps in tables for step in steps}):
        reached = [[step for step in steps if step <= end] for steps in tables]
        found = columns(trial_of(tmp_path / str(end), *reached))
        assert found[: len(seen)] == seen
        seen = found
    assert seen[:2] == [(2010, 2000, 2990), (3000, 3500, 3010)]
    assert seen[2:] == [(4500, 4500, 4500)]


def test_runs_of_equal_steps_need_no_schedule(tmp_path):
    trial = trial_of(tmp_path, (500, 1000, 1200), (1000, 1200), every=None)
    assert columns(trial) == [(1000, 1000), (1200, 1200)]


def test_the_score_of_a_trial_that_is_done_is_the_last_one_of_each_run(tmp_path):
    trial = trial_of(tmp_path, (1000, 2000, 3000), (1000, 2000, 3100), every=None)
    assert columns(trial) == [(1000, 1000), (2000, 2000)]
    trial.state = TrialState.DONE
    assert columns(trial) == [(1000, 1000), (2000, 2000), (3000, 3100)]
    other = trial_of(tmp_path / "other", (1000,), (1500,), every=None)
    assert other.has_evaluations() and columns(other) == []
    other.state = TrialState.DONE
    assert columns(other) == [(1000, 1500)]
    assert not trial_of(tmp_path / "third", (1000,), ()).has_evaluations()
    assert not SweepTrial(1, {}, tmp_path / "trial-001", (1,)).has_evaluations()


@pytest.mark.parametrize("every", [None, EVERY])
def test_what_runs_were_trained_for_by_hand_does_not_count(tmp_path, every):
    """Trials are compared after the same number of steps, and so are the seeds of one trial."""
    longer = (1000, 4000, END, 5000, 9000)
    trial = trial_of(tmp_path, longer, longer[:3], longer, every=every)
    for trial.state in (TrialState.DONE, TrialState.RUNNING):
        assert columns(trial) == [(step,) * 3 for step in longer[:3]]
    other = trial_of(tmp_path / "other", (5000,), longer)  # Not evaluated within its steps.
    assert not other.has_evaluations() and columns(other) == []
