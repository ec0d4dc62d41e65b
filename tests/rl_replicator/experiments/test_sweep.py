"""`rl-replicator sweep`, with runs that take no time and with a network."""

import csv
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from launchpad.engines.ray import cluster
from rl_replicator.cli import main, sweep
from rl_replicator.experiments import copies
from rl_replicator.runs.metrics import read_metrics
from rl_replicator.runs.run_directory import RunDirectory
from tests.rl_replicator.experiments import hill, steered

pytestmark = pytest.mark.timeout(600)
ROOT = Path(__file__).parents[3]
HILL = hill.NAME
SPIRALS = "spirals_learner:make_learner"
CLIMBER = "tests.rl_replicator.experiments.climber:climber"
PBT = (CLIMBER, "--scheduler", "pbt", "--interval", "200")
D4PG = ("d4pg", "--env", "environments.fakes:target", "--scheduler", "pbt", "--interval", "200")
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


def wait_for(condition):
    deadline = time.monotonic() + 300
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def when(condition, action):
    """Calls a function in the background as soon as a condition holds."""

    def wait():
        wait_for(condition)
        action()

    threading.Thread(target=wait, daemon=True).start()


def evaluated(run_dir):
    return len(read_metrics(run_dir, "evaluation").get("steps", ()))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "expected something to train"),
        (["hil"], "expected something to train"),
        ([HILL], "expected --search 'option=expression' at least once"),
        ([HILL, "--search", "x=choice(1)"], "of two values or more"),
        ([HILL, "--search", "plase=uniform(0,1)"], "Perhaps you meant: --place"),
        ([HILL, "--search", "shape.height=uniform(0,1.5)"], "Error parsing --shape.height"),
        ([HILL, "--search", "place=uniform(0,1)", "--place", "3"], "either searched or set"),
        ([HILL, "--search", "seed=choice(1,2)"], "--search: expected no seed, which"),
        (
            [*D4PG[:3], "--search", "evaluation.every=choice(1000,9000)"],
            "got evaluation.every; give --",
        ),
        ([*D4PG[:3], "--search", "steps=choice(1000,9000)"], "length and the evaluations of a run"),
        (["resnet", "--search", "epochs=randint(1,9)", "--scheduler", "fifo"], "got epochs; give"),
        (["resnet", "--search", "evaluate-epochs=uniform(1.0,2.0)"], "got evaluate-epochs; give"),
        ([HILL, "--search=--place=uniform(0,1)"], "expected 'option=expression', such as 'agent"),
        ([HILL, "--search", "place=uniform(0,1)", "--seed", "3"], "expected no --seed"),
        ([HILL, "--search", "place=uniform(0,1)", "--trials", "0"], "--trials: expected at least"),
        (
            [HILL, "--search", "place=uniform(0,1)", "--scheduler", "pb"],
            "('asha', 'fifo', 'pbt')",
        ),
        ([*PBT[:-2], "--search", "rate=uniform(0,1)"], "--interval: expected at least 1 with"),
        ([*PBT, "--search", "rate=uniform(0,1)", "--interval", "0"], "at least 1 with"),
        ([HILL, "--search", "place=uniform(0,1)", "--interval", "9"], "and none without, got 9"),
        ([*PBT, "--search", "rate=uniform(0,1)", "--trials", "1"], "at least 2 with --scheduler"),
        ([*PBT, "--search", "layers=choice(8 8,64)"], "--search layers: expected a real number"),
        ([*PBT, "--search", "width=randint(1,8)"], "--search width: expected a real number"),
        ([*PBT, "--search", "patience=uniform(0,1)"], "--search patience: expected a real number"),
        ([*D4PG, "--search", "agent.policy-layers=choice(8,8 8)"], "that a checkpoint fixes"),
        ([*D4PG, "--search", "agent.replay.samples-per-insert=uniform(1,2)"], "checkpoint fixes"),
        ([*D4PG, "--search", "agent.discount=uniform(0.9,0.99)"], "that a checkpoint fixes"),
        ([*D4PG, "--search", "checkpoint-seconds=uniform(9,10)"], "that a checkpoint fixes"),
        (
            [HILL, "--search", "place=uniform(0,1)", "--shape.wide", "1"],
            "Unrecognized options: --shape.wide",
        ),
        ((HILL, "--search", "shape.height=loguniform(1,9)"), "Error parsing --shape.height"),
    ],
)
def test_bad_input_starts_nothing(tmp_path, monkeypatch, capsys, words, message):
    monkeypatch.chdir(tmp_path)
    assert main.main(["sweep", *words]) == 2
    text = " ".join(re.sub("[\u2500-\u257f]", " ", capsys.readouterr().err).split())
    assert message in text, text
    assert list(tmp_path.iterdir()) == []


def test_the_words_of_a_sweep_come_where_train_takes_them(tmp_path, monkeypatch, capsys):
    """Options outside a union precede the word that chooses its dataclass; its own follow it."""
    monkeypatch.chdir(tmp_path)
    plans = []
    monkeypatch.setattr(sweep.sweep, "run", lambda plan: plans.append(plan) or 0)
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
    """Optuna and ASHA; the first runs wait for Ctrl-C, and the next ones for a kill."""
    hold = tmp_path / "hold"
    hold.touch()
    words = (*PLACE, "--trials", "8", "--parallel", "2", "--grace", "3", "--wait-at", "2")
    runs = [tmp_path / "s" / f"trial-{number:03}" / "seed-1" for number in range(8)]
    when(
        lambda: [evaluated(path) for path in runs[:2]] == [2, 2],
        lambda: os.kill(os.getpid(), signal.SIGINT),
    )
    status, output, _ = run(*words)
    assert status == 130
    assert output.splitlines()[-1] == "stopped; the same command continues the sweep"
    assert {row["state"] for row in results(tmp_path / "s")} == {"waiting"}
    assert not any(RunDirectory(path).is_live for path in runs)

    process = subprocess.Popen(
        [sys.executable, "-m", "rl_replicator.cli.main", "sweep", *words], start_new_session=True
    )
    wait_for(lambda: [evaluated(path) for path in runs[2:4]] == [2, 2])
    process.kill()
    process.wait()
    before = results(tmp_path / "s")
    wait_for(lambda: not any(RunDirectory(path).is_live for path in runs))

    hold.unlink()
    status, output, errors = run(*words)
    assert (status, errors) == (0, "")
    rows = results(tmp_path / "s")
    assert {row["state"] for row in rows} <= {"done", "stopped"} and len(rows) == 8
    assert [row["place"] for row in before] == [row["place"] for row in rows][: len(before)]
    # The default value comes first, and no evaluation was made twice.
    assert rows[0]["place"] == "0.5" and rows[0]["score"] == "3.75"
    assert [(path / "started.txt").read_text() for path in runs[:4]] == ["0\n2\n"] * 4
    assert "8 of 8 trials ended" in output and "importance: place 100%" in output
    best = max((row for row in rows if row["state"] == "done"), key=lambda row: float(row["score"]))
    settings = ["--place", best["place"], "--wait-at", "2"]
    assert shlex.split(output.splitlines()[-1])[1:] == ["train", HILL, *settings]
    assert not (tmp_path / "s" / ".tune").exists()

    # Another sweep is not mixed with it; the same one has nothing left to do, even if an option
    # that does not change what is learned has another value.
    status, _, errors = run(*words[:-2])
    assert status == 2 and "options.wait_at was 2 and is now None" in errors
    status, output, _ = run(*words, "--env-timeout", "9")
    assert status == 0 and "8 of 8 trials ended" in output
    assert run(*words, "--trials", "9")[0] == 0 and len(results(tmp_path / "s")) == 9


@pytest.mark.processes
def test_worse_trials_are_stopped(tmp_path, run):
    """Those wait until they are stopped; the figure is a distance, of which the lowest is best."""
    words = (HILL, "--search", "place=choice(0.5,0.3,0.9)", "--kind", "low", "--run-dir", "s")
    status, _, errors = run(
        *(*words, "--sampler", "random", "--trials", "5", "--parallel", "1", "--seeds", "2"),
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
    blind = (HILL, "--search", "place=uniform(0,1)", "--kind", "blind", "--run-dir", "u")
    status, _, errors = run(*blind)
    assert status == 2 and "expected runs with an evaluation" in errors


@pytest.mark.processes
@pytest.mark.parametrize(
    ("end", "status", "state", "starts"),
    [("kill", 0, "done", 5), ("die", 1, "failed", 2), ("disk", 74, "waiting", 1)],
)
def test_a_killed_trial_continues_while_it_makes_progress(
    tmp_path, run, end, status, state, starts
):
    """A full disk ends the sweep, and fails no trial."""
    found, _, errors = run(*PLACE, "--trials", "1", "--end", end)
    assert found == status
    assert [row["state"] for row in results(tmp_path / "s")] == [state]
    started = (tmp_path / "s" / "trial-000" / "seed-1" / "started.txt").read_text()
    assert len(started.splitlines()) == starts
    if end == "disk":
        assert "trial-000 ended with status 74: no space left" in errors
        assert "the same command continues" in errors


@pytest.mark.processes
def test_a_trial_waits_while_somebody_else_trains_its_run(tmp_path, run):
    """Its run would be refused, which says nothing about its settings."""
    path = tmp_path / "s" / "trial-000" / "seed-1"
    path.mkdir(parents=True)
    (tmp_path / "s" / "trial-000").rename(tmp_path / "there")
    with RunDirectory(tmp_path / "there" / "seed-1").locked():
        when(
            (tmp_path / "s" / "trials.json").exists,
            lambda: (tmp_path / "there").rename(tmp_path / "s" / "trial-000"),
        )
        when(
            (tmp_path / "s" / "logs" / "trial-000.ray.log").exists,
            lambda: os.kill(os.getpid(), signal.SIGTERM),
        )
        assert run(*PLACE, "--trials", "1")[0] == 143
    assert run(*PLACE, "--trials", "1")[0] == 0


@pytest.mark.processes
def test_a_population_copies_its_best(tmp_path, run):
    words = (*PBT, "--search", "rate=loguniform(0.01,10)", "--steps", "800", "--run-dir", "s")
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


@pytest.mark.processes
def test_a_network(tmp_path, run):
    """A sweep over a user's own learner."""
    shutil.copy(ROOT / "docs" / "examples" / "spirals_learner.py", tmp_path)
    status, output, errors = run(
        *(SPIRALS, "--search", "learning-rate=choice(0.003,1e-6)", "--steps", "600"),
        *("--trials", "1", "--sampler", "random", "--run-dir", "s"),
    )
    assert (status, errors) == (0, "")
    (row,) = results(tmp_path / "s")
    assert (row["learning-rate"], row["state"]) == ("0.003", "done")
    accuracy = read_metrics(tmp_path / "s" / "trial-000" / "seed-1", "evaluation")["accuracy"]
    assert float(row["score"]) == pytest.approx(accuracy[-1])
    assert "accuracy" in output
