"""Population based training: who is copied, what a copy is, and what a later process finds."""

import json
import shutil

import numpy as np
import pytest
import tensorflow as tf

from rl_replicator.checkpoints import Checkpointer
from rl_replicator.checkpoints.parts import TrackablePart
from rl_replicator.runs.metrics import MetricWriter, read_metrics
from rl_replicator.runs.run_directory import RunDirectory
from rl_replicator.runs.score import Score
from rl_replicator.sweeps import lineage, search
from rl_replicator.sweeps.population import Population
from rl_replicator.sweeps.study import SearchPlan, Study
from rl_replicator.sweeps.trial import TrialState

PLAN = SearchPlan(
    tuple(search.parse_all(["x=uniform(0,1)", "group.y-z=loguniform(0.01,1)"])),
    "tpe",
    "pbt",
    grace=1,
    reduction=3,
    interval=100,
)


def open_population(tmp_path, count=8):
    study = Study(tmp_path / "trials.journal", PLAN, (1, 2))
    population = Population(study, PLAN.interval)
    return population, population.trials(count)


def train(trial, step, figure, is_highest_best=True, end=1000):
    """Does what a trial's runs do up to an evaluation; the weights encode its number and seed."""
    for seed in trial.seeds:
        run = RunDirectory(trial.run_dir(seed))
        settings = {"x": float(trial.values["x"])}
        settings["group"] = {"y_z": float(trial.values["group.y-z"])}
        score = Score("evaluation", "figure", is_highest_best, end=end)
        with run.opened("net", {"config": {**settings, "seed": seed}}):
            run.describe("net", {"config": {**settings, "seed": seed}}, settings, score.plain())
        writer = MetricWriter(run.path, "steps")
        writer.write("evaluation", step, {"figure": figure + seed})
        writer.close()
        weights = tf.Variable(np.full([3], 10.0 * trial.number + seed))
        Checkpointer(run.checkpoints).save(step, {"learner": TrackablePart(weights=weights)})


def pause(population, trial, step, figure, **options):
    population.begin(trial)
    train(trial, step, figure, **options)
    assert population.report(trial, [])
    trial.state = TrialState.PAUSED
    population.finish(trial, None)


def weights_of(trial, seed):
    weights = tf.Variable(np.zeros([3]))
    run = RunDirectory(trial.run_dir(seed))
    info = run.checkpointer().restore({"learner": TrackablePart(weights=weights)})
    return info.step, weights.numpy().tolist()


def test_the_worst_quarter_copies_the_best(tmp_path):
    population, trials = open_population(tmp_path)
    assert {trial.state for trial in trials} == {TrialState.RUNNING}
    before = [dict(trial.values) for trial in trials]
    assert len({json.dumps(one) for one in before}) == 8
    figures = [5, 1, 7, 3, 0, 6, 4, 2]  # Trials 1 and 4 are the worst, 2 and 5 the best.
    for trial, figure in zip(trials, figures, strict=True):
        pause(population, trial, 110, figure)
    assert population.advance(trials) == trials
    drawn: list[tuple[int, str]] = []
    for trial in trials:
        if trial.number not in (1, 4):
            assert trial.values == before[trial.number] and len(trial.lineage) == 1
            assert weights_of(trial, 1) == (110, [10.0 * trial.number + 1] * 3)
            continue
        first, second = trial.lineage
        source = first.trial
        assert source in (2, 5) and first.values == before[source]
        assert (second.step, second.trial, second.source) == (110, trial.number, source)
        for option, value in trial.values.items():
            old = float(before[source][option])
            space = next(one.space for one in PLAN.parameters if one.option == option)
            factors = [min(max(old * f, space.low), space.high) for f in (0.8, 1.2)]
            if not any(float(value) == pytest.approx(x, rel=1e-5) for x in factors):
                drawn.append((trial.number, option))
                assert space.low <= float(value) <= space.high
        for seed in (1, 2):
            run = RunDirectory(trial.run_dir(seed))
            assert weights_of(trial, seed) == (110, [10.0 * source + seed] * 3)
            config = run.config()
            changed = {"x": float(trial.values["x"])}
            changed["group"] = {"y_z": float(trial.values["group.y-z"])}
            assert config["options"] == changed
            assert config["identity"] == {"trainable": "net", "config": {**changed, "seed": seed}}
            figure = read_metrics(run.path, "evaluation")["figure"]
            assert figure.tolist() == [figures[source] + seed]
            stages = json.loads((run.path / "lineage.json").read_text())
            assert [stage["copied_from"] for stage in stages] == [None, source]
            assert stages[1]["step"] == 110 and stages[1]["values"] == trial.values
    assert drawn == [(4, "x")]  # One of four, the expected number.


def test_another_process_finds_the_decisions_and_completes_the_copies(tmp_path):
    population, trials = open_population(tmp_path, count=4)
    for trial, figure in zip(trials[:3], [0, 3, 2], strict=True):
        pause(population, trial, 100, figure)
    # The process ended before the last trial had come as far.
    population, trials = open_population(tmp_path, count=4)
    states = [trial.state for trial in trials]
    assert states == [TrialState.PAUSED] * 3 + [TrialState.RUNNING]
    pause(population, trials[3], 120, 1)
    population.advance(trials)
    assert trials[0].lineage[-1].source == 1
    # The process ended during a copy: the lineage of the run is written last.
    for seed in (1, 2):
        path = trials[0].run_dir(seed)
        (path / "lineage.json").unlink()
        shutil.rmtree(path / "checkpoints")
    population, again = open_population(tmp_path, count=4)
    assert [trial.values for trial in again] == [trial.values for trial in trials]
    assert again[0].lineage == trials[0].lineage
    assert {trial.state for trial in again} == {TrialState.RUNNING}
    assert [weights_of(again[0], seed)[1] for seed in (1, 2)] == [[11.0] * 3, [12.0] * 3]
    # A copy that is complete is not made again: its own training would be lost.
    train(again[0], 150, 9)
    _, third = open_population(tmp_path, count=4)
    assert weights_of(third[0], 1) == (150, [1.0] * 3)


def test_a_population_goes_on_without_runs_that_were_deleted(tmp_path, caplog):
    population, trials = open_population(tmp_path, count=4)
    for trial, figure in zip(trials, [0, 3, 2, 1], strict=True):
        pause(population, trial, 100, figure)
    population.advance(trials)
    copy, other = trials[0], trials[2]
    assert copy.lineage[-1].source == 1
    copy.state = TrialState.DONE
    population.finish(copy, 1.0)
    for trial in (copy, other):
        shutil.rmtree(trial.path)
    _, again = open_population(tmp_path, count=4)
    states = [TrialState.DONE, TrialState.RUNNING, TrialState.FAILED, TrialState.RUNNING]
    for _ in range(2):
        assert [trial.state for trial in again] == states
        assert not copy.path.exists() and not other.path.exists()
        _, again = open_population(tmp_path, count=4)
    told = f"trial 2 has failed: it found no run in {other.run_dir(1)} any more"
    assert caplog.text.count(told) == 1


def test_nothing_is_lost_if_the_source_of_a_copy_was_deleted(tmp_path, caplog):
    population, trials = open_population(tmp_path, count=4)
    for trial, figure in zip(trials, [0, 3, 2, 1], strict=True):
        pause(population, trial, 100, figure)
    before = (trials[0].run_dir(1) / "lineage.json").read_text()
    with pytest.MonkeyPatch.context() as patch:  # Ended before the copy.
        patch.setattr(lineage, "copy_run", lambda *args: None)
        population.advance(trials)
    source = trials[1]
    assert trials[0].lineage[-1].source == source.number
    shutil.rmtree(source.path)
    for _ in range(2):
        _, again = open_population(tmp_path, count=4)
        states = [TrialState.FAILED] * 2 + [TrialState.RUNNING] * 2
        assert [trial.state for trial in again] == states
        assert weights_of(again[0], 1) == (100, [1.0] * 3)
        assert (again[0].run_dir(1) / "lineage.json").read_text() == before
        assert not source.path.exists()
        # Tried again, both fail again.
        Study(tmp_path / "trials.journal", PLAN, (1, 2)).retry()
    told = "trial 0 has failed: it found no checkpoint of trial 1 to copy any more"
    assert caplog.text.count(told) == 2


def test_the_lowest_figure_may_be_the_best(tmp_path):
    population, trials = open_population(tmp_path, count=4)
    for trial, figure in zip(trials, [0, 3, 2, 1], strict=True):
        pause(population, trial, 100, figure, is_highest_best=False)
    population.advance(trials)
    assert [len(trial.lineage) for trial in trials] == [1, 2, 1, 1]
    assert trials[1].lineage[-1].source == 0


@pytest.mark.parametrize("figures", [[2, 2, 2, 2], [float("nan")] * 4])
def test_nothing_is_copied_from_trials_that_are_not_better(tmp_path, figures):
    population, trials = open_population(tmp_path, count=4)
    for trial, figure in zip(trials, figures, strict=True):
        pause(population, trial, 100, figure)
    assert population.advance(trials) == trials
    assert {len(trial.lineage) for trial in trials} == {1}


def test_nothing_is_copied_once_a_trial_is_complete(tmp_path):
    population, trials = open_population(tmp_path, count=4)
    for trial, figure in zip(trials[:3], [0, 3, 2], strict=True):
        pause(population, trial, 100, figure)
    trials[3].state = TrialState.DONE
    population.finish(trials[3], 1.0)
    assert population.advance(trials) == trials[:3]
    assert {len(trial.lineage) for trial in trials} == {1}


def test_when_a_trial_pauses(tmp_path):
    """At the first evaluation at or after the comparison that this process has written."""
    population, (trial, other) = open_population(tmp_path, count=2)
    population.begin(trial)
    assert not population.report(trial, [])
    train(trial, 99, 1.0)
    assert not population.report(trial, [])
    train(trial, 101, 1.0)
    assert population.report(trial, [])
    population.begin(trial)  # Rows of a killed process may lie beyond its checkpoint.
    assert not population.report(trial, [])
    train(trial, 130, 1.0)
    assert population.report(trial, [])
    trial.state = TrialState.PAUSED
    population.finish(trial, None)
    pause(population, other, 100, 0.0)
    population.advance([trial, other])


def test_no_trial_pauses_at_the_end(tmp_path):
    """Runs stop there by themselves."""
    population, (trial, other) = open_population(tmp_path, count=2)
    for one in (trial, other):
        pause(population, one, 100, one.number, end=200)
    population.advance([trial, other])
    population.begin(trial)
    train(trial, 200, 1.0, end=200)
    assert not population.report(trial, [])


def test_nothing_is_copied_once_a_paused_trial_has_all_steps(tmp_path):
    """It took them before it noticed its pause."""
    population, trials = open_population(tmp_path, count=2)
    for trial in trials:
        pause(population, trial, 100, trial.number, end=150)
    train(trials[1], 150, 1, end=150)
    population.advance(trials)
    assert {len(trial.lineage) for trial in trials} == {1}


def test_trials_without_a_checkpoint_are_not_copied(tmp_path):
    population, trials = open_population(tmp_path, count=2)
    for trial in trials:
        pause(population, trial, 100, trial.number)
    shutil.rmtree(trials[1].run_dir(2) / "checkpoints")
    population.advance(trials)
    assert len(trials[0].lineage) == 1
