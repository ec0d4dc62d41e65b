"""`rl-replicator sweep`, with runs that take no time and with a network; trials and their table."""

import csv
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from launchpad.engines.ray import cluster
from rl_replicator.cli import main
from rl_replicator.experiments import copies, driver, sweep
from rl_replicator.experiments.trial import Trial, TrialEvaluation, TrialState
from rl_replicator.runs.metrics import read_metrics
from rl_replicator.runs.run_directory import RunDirectory
from tests.rl_replicator.experiments import hill, steered
from tests.waiting import wait_until

pytestmark = pytest.mark.timeout(600)
ROOT = Path(__file__).parents[3]
HILL = hill.NAME
CLIMBER = "tests.rl_replicator.experiments.climber:climber"
PBT = (CLIMBER, "--scheduler", "pbt", "--interval", "200")
PLACE = (HILL, "--search", "place=uniform(0,1)", "--run-dir", "s")


@pytest.fixture(scope="module")
def shared_ray():
    """One Ray for all sweeps of this process, whose workers find the tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(ROOT))
        patch.syspath_prepend(str(ROOT))
        connection = cluster.acquire(None)
        yield
        cluster.release(connection)


@pytest.fixture
def run(tmp_path, monkeypatch, capsys, shared_ray):
    """Runs `rl-replicator sweep WORDS`; returns the status, the output and the errors."""
    monkeypatch.chdir(tmp_path)

    def run(*words):
        status = main.main(["sweep", *words])
        return status, *capsys.readouterr()

    return run


def results(path):
    with (path / "results.csv").open() as file:
        return list(csv.DictReader(file))


def evaluated(run_dir):
    return len(read_metrics(run_dir, "evaluation").get("steps", ()))


def test_the_words_of_a_sweep_come_where_train_takes_them(tmp_path, monkeypatch, capsys):
    """Options outside a union precede the word that chooses its dataclass; its own follow it."""
    monkeypatch.chdir(tmp_path)
    plans = []
    monkeypatch.setattr(driver, "run", lambda plan: plans.append(plan) or 0)
    searched = (
        "--search",
        "learning-rate=uniform(0.1,0.2)",
        "--search",
        "steering.force=choice(2,3)",
    )
    chosen = ("steering:slow", "--steering.patience", "4")
    assert main.main(["sweep", steered.NAME, *searched, "--steps", "5", *chosen]) == 0
    assert main.main(["sweep", steered.NAME, *searched, "--steps", "5", "steering:fast"]) == 2
    assert "steering.force" in capsys.readouterr().err
    (plan,) = plans
    (one,) = plan.runs("trial-000", {"learning-rate": "0.15", "steering.force": "3"})
    assert main.main(["train", *one.words]) == 0
    config = RunDirectory(one.path).config()["identity"]["config"]
    assert (config["learning_rate"], config["steering"]) == (0.15, {"force": 3.0, "patience": 4})


@pytest.mark.processes
def test_a_search_is_interrupted_killed_and_continued(tmp_path, run):
    """Optuna and ASHA; the first runs wait for SIGTERM, and the next ones for a kill."""
    hold = tmp_path / "hold"
    hold.touch()
    words = (*PLACE, "--trials", "6", "--parallel", "2", "--grace", "3", "--wait-at", "2")
    runs = [tmp_path / "s" / f"trial-{number:03}" / "seed-1" for number in range(6)]

    def start():
        command = [sys.executable, "-m", "rl_replicator.cli.main", "sweep", *words]
        return subprocess.Popen(command, start_new_session=True, stdout=subprocess.PIPE, text=True)

    process = start()  # A process of its own, in which Ray's handler of SIGTERM would abort.
    wait_until(lambda: [evaluated(path) for path in runs[:2]] == [2, 2], 300)
    os.killpg(process.pid, signal.SIGTERM)  # To Ray's daemons, too.
    output, _ = process.communicate()
    assert process.returncode == 143
    assert output.splitlines()[-1] == "stopped; the same command continues the sweep"
    assert {row["state"] for row in results(tmp_path / "s")} == {"waiting"}
    assert not any(RunDirectory(path).is_live for path in runs)

    with start() as process:
        wait_until(lambda: [evaluated(path) for path in runs[2:4]] == [2, 2], 300)
        process.kill()
    before = results(tmp_path / "s")  # The runs may still be ending: the trials wait for that.

    hold.unlink()
    status, output, errors = run(*words, "--trials", "7")
    assert (status, errors) == (0, "")
    rows = results(tmp_path / "s")
    assert {row["state"] for row in rows} <= {"done", "stopped"} and len(rows) == 7
    assert [row["place"] for row in before] == [row["place"] for row in rows][: len(before)]
    # The default value comes first, and no evaluation was made twice.
    assert rows[0]["place"] == "0.5" and rows[0]["score"] == "3.75"
    for path in runs[:4]:
        made = read_metrics(path, "evaluation")["index"].tolist()
        assert len(made) >= 3 and made == [1, 2, 3, 4][: len(made)]
    assert "7 of 7 trials ended" in output and "importance: place 100%" in output
    best = max((row for row in rows if row["state"] == "done"), key=lambda row: float(row["score"]))
    settings = ["--place", best["place"], "--wait-at", "2"]
    assert shlex.split(output.splitlines()[-1])[1:] == ["train", HILL, *settings]
    assert not (tmp_path / "s" / ".tune").exists()

    # Another sweep is not mixed with it; the same one has nothing left to do, even if an option
    # that does not change what is learned has another value.
    status, _, errors = run(*words[:-2])
    assert status == 2 and "options.wait_at was 2 and is now None" in errors
    status, output, _ = run(*words, "--env-timeout", "9")
    assert status == 0 and "7 of 7 trials ended" in output


@pytest.mark.processes
def test_worse_trials_are_stopped(tmp_path, run):
    """Those wait until they are stopped; the figure is a distance, of which the lowest is best."""
    words = (HILL, "--search", "place=choice(0.5,0.3,0.9)", "--kind", "low", "--run-dir", "s")
    status, _, errors = run(
        *(*words, "--sampler", "random", "--trials", "4", "--parallel", "1", "--seeds", "2"),
        *("--waits-beyond", "0.5", "--shape.height", "2"),
    )
    assert (status, errors) == (0, "")
    rows = results(tmp_path / "s")
    assert [row["state"] == "stopped" for row in rows] == [row["place"] == "0.9" for row in rows]
    assert len({row["state"] for row in rows}) == 2
    for row in rows:
        assert row["evaluations"] == ("1" if row["state"] == "stopped" else "4")
        assert float(row["score"]) == pytest.approx(abs(float(row["place"]) - 0.25))
    # The trial's run is like any other, and can be continued by hand.
    stopped = next(row for row in rows if row["state"] == "stopped")
    path = tmp_path / "s" / f"trial-{int(stopped['trial']):03}" / "seed-2"
    options = RunDirectory(path).config()["identity"]["options"]
    assert (options["place"], options["seed"]) == (0.9, 2)


@pytest.mark.processes
def test_failures(tmp_path, run):
    words = (HILL, "--search", "place=uniform(-3,-2)", "--run-dir", "s", "--scheduler", "fifo")
    words += ("--parallel", "1")
    # If no trial can run, the rest is not tried.
    status, output, errors = run(*words)
    assert status == 1 and [row["state"] for row in results(tmp_path / "s")] == ["failed"] * 3
    (line,) = errors.splitlines()
    why = "trial-000 ended with status 2: rl-replicator: error: there is no such place"
    assert f"expected trials that run, but all 3 failed ({why}" in line
    assert "has failed: ended with status 2: rl-replicator: error: there is no such" in output
    # The cause is corrected, here by a file that the runs look for.
    (tmp_path / "s" / "place_is_there").touch()
    assert run(*words, "--trials", "3")[0] == 1
    status, output, _ = run(*words, "--trials", "3", "--retry-failed")
    assert status == 0 and "3 of 3 trials ended, 3 done" in output
    started = (tmp_path / "s").glob("*/seed-1/started.txt")
    assert len({path.read_text().split()[1] for path in started}) == 1  # One actor ran them all.
    blind = (HILL, "--search", "place=uniform(0,1)", "--kind", "blind", "--run-dir", "u")
    status, _, errors = run(*blind)
    assert status == 2 and "expected runs with an evaluation" in errors


@pytest.mark.processes
def test_a_killed_trial_continues_while_it_makes_progress(tmp_path, run):
    """It was killed after each evaluation, or before the first one."""
    words = (HILL, "--search", "end=choice(kill,die)", "--scheduler", "fifo", "--sampler", "random")
    assert run(*words, "--trials", "3", "--run-dir", "s")[0] == 0
    rows = results(tmp_path / "s")
    assert {row["end"] for row in rows} == {"kill", "die"}
    for row in rows:
        state, starts = {"kill": ("done", 5), "die": ("failed", 2)}[row["end"]]
        started = (tmp_path / "s" / _name(row) / "seed-1" / "started.txt").read_text()
        assert (row["state"], len(started.splitlines())) == (state, starts)


@pytest.mark.processes
def test_a_full_disk_ends_the_sweep_and_fails_no_trial(tmp_path, run):
    status, _, errors = run(*PLACE, "--trials", "1", "--end", "disk")
    assert status == 74 and [row["state"] for row in results(tmp_path / "s")] == ["waiting"]
    assert "trial-000 ended with status 74: no space left" in errors
    assert "the same command continues" in errors


@pytest.mark.processes
def test_a_population_copies_its_best(tmp_path, run):
    words = (*PBT, "--search", "rate=loguniform(0.01,10)", "--steps", "800", "--run-dir", "s")
    words += ("--together", "4")
    status, output, errors = run(*words, "--trials", "4", "--parallel", "4")
    assert (status, errors) == (0, "")
    rows = results(tmp_path / "s")
    assert {(row["state"], row["steps"]) for row in rows} == {("done", "800")}
    copied = [row for row in rows if (tmp_path / "s" / _name(row) / "lineage.json").exists()]
    assert copied and "the start" in output
    for row in rows:
        run_dir = tmp_path / "s" / _name(row) / "seed-1"
        stages = copies.read(run_dir.parent)
        table = read_metrics(run_dir, "evaluation")
        rates = np.diff([1.0, *table["height"]]) / 100
        # The height has grown by the rates of the lineage, one after the other.
        assert f"{rates[-1]:.6g}" == f"{float(row['rate']):.6g}"
        assert RunDirectory(run_dir).config()["identity"]["options"]["rate"] == float(row["rate"])
        for stage in stages:
            assert stage["is_complete"]
        if stages:
            own = [
                step
                for step, rate in zip(table["steps"], rates, strict=True)
                if f"{rate:.6g}" == f"{rates[-1]:.6g}"
            ]
            assert min(own) == stages[-1]["step"] + 100
            assert row["rate"] == stages[-1]["values"]["rate"]
    # The same command has nothing left to do; a population does not grow.
    assert run(*words, "--trials", "4", "--parallel", "4")[0] == 0
    status, _, errors = run(*words, "--trials", "5")
    assert status == 2 and "trials was 4 and is now 5" in errors


def _name(row):
    return f"trial-{int(row['trial']):03}"


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
