"""What becomes of a trial, however its runs end."""

import contextlib
import os
import sys
import time

import pytest

from rl_replicator.checkpoints import Checkpointer
from rl_replicator.errors import DiskError
from rl_replicator.runs.metrics import MetricWriter
from rl_replicator.runs.run_directory import RunDirectory
from rl_replicator.runs.score import Score
from rl_replicator.sweeps.runner import SweepRunner
from rl_replicator.sweeps.trial import SweepTrial, TrialState
from tests.rl_replicator.jobs.endless_run import endless_run
from tests.rl_replicator.sweeps.hill import NAME


class CutsAfterTheFirstEvaluation:
    """A `TrialScheduler` with one trial."""

    when_cut = TrialState.STOPPED

    def __init__(self, trial):
        self.trial = trial
        self.scores = []

    def ask(self):
        return self.trial

    def begin(self, trial):
        pass

    def report(self, trial, values):
        return len(values) > 0

    def finish(self, trial, value):
        self.scores.append(value)

    def advance(self, trials):
        return ()


def test_a_trial_that_ends_regularly_is_done(tmp_path):
    trial = SweepTrial(0, {}, tmp_path / "trial-000", seeds=(1,))
    scheduler = CutsAfterTheFirstEvaluation(trial)

    def command(trial, seed):
        words = [sys.executable, "-m", "rl_replicator.cli.main", "train", NAME]
        return [*words, "--evaluations", "1", "--run-dir", str(trial.run_dir(seed))]

    runner = SweepRunner(scheduler, command, tmp_path, 1, lambda trial: None, lambda: None)
    assert runner.run([], count=1) is None
    assert trial.state is TrialState.DONE
    assert scheduler.scores == [3 + 1 - 0.25]


@pytest.mark.processes
def test_runs_save_after_an_error_of_the_sweep(tmp_path):
    trial = SweepTrial(0, {}, tmp_path / "trial-000", seeds=(1,))
    command, is_ready, has_saved = endless_run(tmp_path)

    def look():
        if is_ready():
            raise OSError("No space left on device")

    runner = SweepRunner(
        CutsAfterTheFirstEvaluation(trial),
        lambda *_: command,
        tmp_path / "logs",
        1,
        lambda _: None,
        look,
    )
    with pytest.raises(OSError, match="No space left"):
        runner.run([], count=1)
    assert has_saved()


@pytest.mark.processes
def test_a_run_saves_if_that_of_the_next_seed_cannot_start(tmp_path):
    trial = SweepTrial(0, {}, tmp_path / "trial-000", seeds=(1, 2))
    words, is_ready, has_saved = endless_run(tmp_path)

    def command(trial, seed):
        if seed == 1:
            return words
        deadline = time.monotonic() + 60
        while not is_ready():
            assert time.monotonic() < deadline
            time.sleep(0.02)
        raise OSError("Resource temporarily unavailable")

    scheduler = CutsAfterTheFirstEvaluation(trial)
    runner = SweepRunner(scheduler, command, tmp_path / "logs", 1, lambda _: None, lambda: None)
    with pytest.raises(OSError, match="Resource temporarily unavailable"):
        runner.run([], count=1)
    assert has_saved()


@pytest.mark.processes
def test_a_trial_waits_while_somebody_else_trains_its_run(tmp_path, caplog):
    """Its run would be refused, which says nothing about its settings."""
    taken, new = [SweepTrial(n, {}, tmp_path / f"trial-{n:03d}", seeds=(1,)) for n in range(2)]
    scheduler, starts, looks = CutsAfterTheFirstEvaluation(new), [], []

    def command(trial, seed):
        starts.append(trial.number)
        words = [sys.executable, "-m", "rl_replicator.cli.main", "train", NAME]
        return [*words, "--evaluations", "1", "--run-dir", str(trial.run_dir(seed))]

    def look():
        looks.append(new.state)
        if looks[-3:] == [TrialState.DONE] * 3:
            train.close()

    runner = SweepRunner(scheduler, command, tmp_path, 1, lambda _: None, look)
    with contextlib.ExitStack() as train:
        train.enter_context(RunDirectory(taken.run_dir(1)).locked())
        assert runner.run([taken], count=2) is None
    assert starts == [1, 0]
    assert [taken.state, new.state] == [TrialState.DONE] * 2
    told = f"trial 0 waits, because another process trains in {taken.run_dir(1)}"
    assert caplog.text.count(told) == 1


@pytest.mark.processes
@pytest.mark.parametrize(
    ("ends", "started"), [((900, 400), [2]), ((900, 900), []), ((400, 400), [1, 2])]
)
def test_a_run_that_was_trained_for_longer_by_hand_is_not_started(tmp_path, ends, started):
    """It would refuse the steps of the sweep. The other runs may still have to save."""
    trial = SweepTrial(0, {}, tmp_path / "trial-000", seeds=(1, 2), total_steps=400)
    starts = []
    for seed, end in zip(trial.seeds, ends, strict=True):
        path = trial.run_dir(seed)
        path.mkdir(parents=True)
        RunDirectory(path).describe("x", {}, {}, Score("evaluation", "figure", end=end).plain())
        writer = MetricWriter(path, "steps")
        for step in range(200, end + 1, 200):
            writer.write("evaluation", step, {"figure": step + seed})

    def command(trial, seed):
        starts.append(seed)
        return ["sh", "-c", f"exit {2 if ends[seed - 1] > 400 else 0}"]

    scheduler = CutsAfterTheFirstEvaluation(trial)
    scheduler.report = lambda trial, values: False
    runner = SweepRunner(scheduler, command, tmp_path, 1, lambda _: None, lambda: None)
    assert runner.run([trial], count=1) is None
    assert trial.state is TrialState.DONE
    assert (starts, scheduler.scores) == (started, [401.5])


@pytest.mark.processes
@pytest.mark.usefixtures("sigint_ignored")
def test_an_ignored_ctrl_c_does_not_end_a_sweep(tmp_path):
    trial = SweepTrial(0, {}, tmp_path / "trial-000", seeds=(1,))
    command = ["sh", "-c", f"kill -INT {os.getpid()}"]
    scheduler = CutsAfterTheFirstEvaluation(trial)
    runner = SweepRunner(scheduler, lambda *_: command, tmp_path, 1, lambda _: None, lambda: None)
    assert runner.run([], count=1) is None
    assert trial.state is TrialState.FAILED and trial.reason == "ended without an evaluation"


@pytest.mark.processes
@pytest.mark.parametrize("state", [TrialState.FAILED, TrialState.DONE])
def test_a_continued_sweep_gives_up_only_if_no_trial_has_run(tmp_path, state):
    before, *rest = [
        SweepTrial(index, {}, tmp_path / f"trial-{index:03d}", seeds=(1,)) for index in range(5)
    ]
    before.state = state
    trials, coming = [before], iter(rest)
    scheduler = CutsAfterTheFirstEvaluation(before)
    scheduler.ask = lambda: next(coming)
    command = ["sh", "-c", "echo no such place; exit 3"]
    runner = SweepRunner(scheduler, lambda *_: command, tmp_path, 1, lambda _: None, lambda: None)
    assert runner.run(trials, count=5) is None
    assert len(trials) == (5 if state is TrialState.DONE else 4)
    assert all(trial.state is TrialState.FAILED for trial in trials[1:])


@pytest.mark.processes
def test_a_full_disk_ends_the_sweep_and_fails_no_trial(tmp_path):
    first, second = [
        SweepTrial(index, {}, tmp_path / f"trial-{index:03d}", seeds=(1,)) for index in range(2)
    ]
    words, _, has_saved = endless_run(tmp_path)
    wait = f"until [ -e {tmp_path / 'is_ready'} ]; do sleep 0.05; done"
    commands = {0: words, 1: ["sh", "-c", f"{wait}; echo no space left; exit 74"]}
    scheduler, coming = CutsAfterTheFirstEvaluation(first), iter([first, second])
    scheduler.ask = lambda: next(coming)
    runner = SweepRunner(
        scheduler,
        lambda trial, _: commands[trial.number],
        tmp_path,
        2,
        lambda _: None,
        lambda: None,
    )
    trials = []
    told = r"trial 1 ended with status 74: no space left .*the same command continues the sweep"
    with pytest.raises(DiskError, match=told):
        runner.run(trials, count=9)
    assert [trial.state for trial in trials] == [TrialState.RUNNING] * 2
    assert scheduler.scores == [] and has_saved()


@pytest.mark.processes
@pytest.mark.parametrize(
    ("progress", "end", "how"),
    [
        (0, "kill -9 $$", "was killed by SIGKILL"),
        (2, "kill -9 $$", "was killed by SIGKILL"),
        (0, "kill $$", "was killed by SIGTERM"),
        (2, "exit 143", "ended with status 143"),
    ],
)
def test_a_killed_trial_continues_while_it_makes_progress(tmp_path, caplog, progress, end, how):
    """It is killed each time; the first `progress` times, it has evaluated before."""
    trial = SweepTrial(0, {}, tmp_path / "trial-000", seeds=(1,))
    path = trial.run_dir(1)
    writer, starts = MetricWriter(path, "steps"), []

    def command(trial, seed):
        starts.append(trial.state)
        if len(starts) <= progress:
            score = Score("evaluation", "figure", True).plain()
            path.mkdir(parents=True, exist_ok=True)
            RunDirectory(path).describe("x", {}, {}, score)
            writer.write("evaluation", 100 * len(starts), {"figure": 1.0})
        return ["sh", "-c", end]

    scheduler = CutsAfterTheFirstEvaluation(trial)
    scheduler.report = lambda trial, values: False
    runner = SweepRunner(scheduler, command, tmp_path, 1, lambda _: None, lambda: None)
    assert runner.run([], count=1) is None
    assert len(starts) == max(progress, 1) + 1
    assert trial.state is TrialState.FAILED and how in trial.reason
    assert caplog.text.count(f"trial 0 {how}: no output") == len(starts) - 1


@pytest.mark.processes
def test_a_killed_trial_continues_if_it_has_saved(tmp_path):
    """After a kill, a run removes the evaluations beyond its checkpoint, and has fewer."""
    trial = SweepTrial(0, {}, tmp_path / "trial-000", seeds=(1,))
    run = RunDirectory(trial.run_dir(1))
    # For each process: where it begins, the steps that it evaluates, and the one that it saves.
    processes = iter([(0, (100, 200, 300), 150), (150, (200,), 250), (250, (300,), None)])

    def command(trial, seed):
        begin, evaluated, saved = next(processes)
        run.path.mkdir(parents=True, exist_ok=True)
        run.describe("x", {}, {}, Score("evaluation", "figure").plain())
        writer = MetricWriter(run.path, "steps", resume_step=begin)
        for step in evaluated:
            writer.write("evaluation", step, {"figure": 1.0})
        writer.close()
        if saved is not None:
            Checkpointer(run.checkpoints).save(saved, {})
        return ["sh", "-c", "kill -9 $$"]

    scheduler = CutsAfterTheFirstEvaluation(trial)
    scheduler.report = lambda trial, values: False
    runner = SweepRunner(scheduler, command, tmp_path, 1, lambda _: None, lambda: None)
    assert runner.run([], count=1) is None
    assert next(processes, None) is None and trial.state is TrialState.FAILED
