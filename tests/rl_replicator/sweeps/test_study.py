"""The search by Optuna: what is tried, what is stopped, what is kept in the file."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from rl_replicator.runs.run_directory import RunDirectory
from rl_replicator.runs.score import Score
from rl_replicator.sweeps import search
from rl_replicator.sweeps.study import SearchPlan, Study
from rl_replicator.sweeps.trial import Evaluated, SweepTrial, TrialState

PARAMETERS = ("x=uniform(0,1)", "y=choice(a,b)", "n=randint(1,4)")
ASHA = SearchPlan(tuple(search.parse_all(PARAMETERS)), "random", "asha", grace=1, reduction=3)
FIFO = dataclasses.replace(ASHA, scheduler="fifo")


def open_study(tmp_path, plan):
    return Study(tmp_path / "trials.journal", plan, (1,))


def finish(study, trial, value):
    assert not study.report(trial, [value])
    trial.state = TrialState.DONE
    study.finish(trial, value)


def test_asha_continues_one_of_three_at_the_rungs(tmp_path):
    """Rungs are at the evaluations 1, 3, 9."""
    study = open_study(tmp_path, ASHA)
    trials = [study.ask() for _ in range(5)]
    assert not study.report(trials[0], [5.0])  # The first one has nothing to be compared with.
    assert study.report(trials[1], [4.0])
    assert study.report(trials[2], [3.0])
    assert not study.report(trials[3], [6.0])  # The best of four.
    assert not study.report(trials[0], [5.0, 1.0])  # Not a rung.
    assert not study.report(trials[0], [5.0, 1.0, 1.0])  # The first one at this rung.
    assert not study.report(trials[3], [6.0, 0.0])
    assert study.report(trials[3], [6.0, 0.0, 0.5])
    assert study.report(trials[4], [5.5])  # The second of five: a third of them is one.


def test_a_trial_that_has_taken_all_steps_is_not_stopped(tmp_path, monkeypatch):
    """Its runs only evaluate once more, with more episodes."""
    study = open_study(tmp_path, ASHA)
    steps = [np.array([100])]
    monkeypatch.setattr(
        SweepTrial, "evaluated", lambda trial: Evaluated(steps[0], np.zeros([1, len(steps[0])]))
    )
    best, whole, partial = trials = study.ask(), study.ask(), study.ask()
    for trial in trials:
        trial.total_steps = 300
    assert not study.report(best, [5.0])
    steps[0] = np.array([300])
    assert not study.report(whole, [1.0])
    steps[0] = np.array([200])
    assert study.report(partial, [1.0])


def test_the_steps_of_a_trial_are_those_its_runs_began_with(tmp_path):
    """Whichever option sets them, and however long somebody trains a run later."""
    study = open_study(tmp_path, FIFO)
    trial, other = study.ask(), study.ask()
    assert not study.report(trial, []) and trial.total_steps is None
    for end in (300, 900):
        run = RunDirectory(trial.run_dir(1))
        with run.opened("net", {}):
            run.describe("net", {}, {}, Score("evaluation", "figure", end=end).plain())
        assert not study.report(trial, []) and trial.total_steps == 300
        study = open_study(tmp_path, FIFO)
        trial, other = study.trials()
        assert (trial.total_steps, other.total_steps) == (300, None)


def test_grace_and_fifo(tmp_path):
    patient = open_study(tmp_path, dataclasses.replace(ASHA, grace=2))
    first, second = patient.ask(), patient.ask()
    assert not patient.report(first, [2.0, 2.0])
    assert not patient.report(second, [1.0])
    assert patient.report(second, [1.0, 1.0])
    (tmp_path / "other").mkdir()
    fifo = open_study(tmp_path / "other", FIFO)
    assert not any(fifo.report(fifo.ask(), [-value] * 9) for value in range(6))


@pytest.mark.timeout(60)
def test_what_a_killed_process_leaves_does_no_harm(tmp_path, monkeypatch):
    """A lock of Optuna, with a relative path, and half a line."""
    monkeypatch.chdir(tmp_path)
    folder = Path("sweep")
    folder.mkdir()
    study = open_study(folder, FIFO)
    finish(study, study.ask(), 2.0)
    study.ask()
    journal = folder / "trials.journal"
    (folder / "trials.journal.lock").symlink_to(journal)
    whole = journal.read_bytes()
    journal.write_bytes(whole + whole.splitlines()[-1][:20])
    states = [TrialState.DONE, TrialState.RUNNING]
    for _ in range(2):  # The second one reads what the first one has appended.
        again = open_study(folder, FIFO)
        assert [trial.state for trial in again.trials()] == states
        again.ask()
        states.append(TrialState.RUNNING)


def test_a_sweep_killed_while_it_drew_values_goes_on(tmp_path):
    """Optuna writes a line when a trial begins, and one for each value."""
    preferred = {"x": "0.5", "y": "b", "n": "3"}
    journal = tmp_path / "trials.journal"
    study = open_study(tmp_path, FIFO)
    study.prefer(preferred)
    before = len(journal.read_bytes().splitlines())
    study.ask()
    lines = journal.read_bytes().splitlines(keepends=True)
    assert len(lines) - before >= len(PARAMETERS)
    for count in range(before, len(lines)):
        journal.write_bytes(b"".join(lines[:count]))
        again = open_study(tmp_path, FIFO)
        again.prefer(preferred)
        assert again.trials() == []
        trial = again.ask()
        assert trial.values == preferred
        finish(again, trial, 1.0)
        (there,) = open_study(tmp_path, FIFO).trials()
        assert there.number == trial.number and there.state is TrialState.DONE


@pytest.mark.parametrize("sampler", ["random", "tpe"])
def test_another_process_continues(tmp_path, sampler):
    plan = dataclasses.replace(ASHA, sampler=sampler)
    study = open_study(tmp_path, plan)
    study.prefer({"x": "0.5", "y": "b", "n": "3"})
    done, running, stopped, failed = (study.ask() for _ in range(4))
    assert done.values == {"x": "0.5", "y": "b", "n": "3"}
    finish(study, done, 2.0)
    assert study.report(stopped, [1.0])
    stopped.state = TrialState.STOPPED
    study.finish(stopped, None)
    failed.state = TrialState.FAILED
    study.finish(failed, None)
    assert study.report(running, [1.0])  # The process ends before it has stopped the run.

    study = open_study(tmp_path, plan)
    study.prefer({"x": "0.4", "y": "a", "n": "1"})  # There are trials already.
    trials = study.trials()
    assert [trial.values for trial in trials] == [
        one.values for one in (done, running, stopped, failed)
    ]
    states = [TrialState.DONE, TrialState.RUNNING, TrialState.STOPPED, TrialState.FAILED]
    assert [trial.state for trial in trials] == states
    assert trials[1].run_dir(1) == tmp_path / "trial-001" / "seed-1"
    assert study.report(trials[1], [1.0])
    new = study.ask()
    assert new.number == 4 and new.values not in [trial.values for trial in trials]


def test_a_trial_that_has_failed_can_be_tried_again(tmp_path):
    study = open_study(tmp_path, ASHA)
    done, failed = study.ask(), study.ask()
    finish(study, done, 2.0)
    for _ in range(2):
        failed.state = TrialState.FAILED
        study.finish(failed, None)
        study = open_study(tmp_path, ASHA)
        study.retry()
        trials = study.trials()
        assert [trial.state for trial in trials] == [TrialState.DONE, TrialState.RUNNING]
        assert [trial.state for trial in open_study(tmp_path, ASHA).trials()] == [
            TrialState.DONE,
            TrialState.RUNNING,
        ]
    failed = trials[1]
    finish(study, failed, 3.0)
    assert [one.state for one in open_study(tmp_path, ASHA).trials()] == [TrialState.DONE] * 2


def test_values_outside_of_the_search_are_not_preferred(tmp_path):
    study = open_study(tmp_path, FIFO)
    study.prefer({"x": "0.125", "y": "c", "n": "3"})
    assert study.ask().values["x"] != "0.125"


def test_importance_names_what_matters(tmp_path):
    study = open_study(tmp_path, FIFO)
    assert study.importance() == {}
    for _ in range(24):
        trial = study.ask()
        finish(study, trial, -abs(float(trial.values["x"]) - 0.3))
    shares = study.importance()
    assert next(iter(shares)) == "x" and shares["x"] > 0.5
    assert sum(shares.values()) == pytest.approx(1)
