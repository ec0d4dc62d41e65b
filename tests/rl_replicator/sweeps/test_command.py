"""`rl-replicator sweep`, with runs that take no time and with a network."""

import csv
import dataclasses
import errno
import itertools
import json
import os
import shlex
import shutil
import signal
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest

from rl_replicator.cli import main, sweep
from rl_replicator.runs.metrics import read_metrics
from rl_replicator.runs.run_directory import RunDirectory
from rl_replicator.sweeps.trial import SweepTrial
from tests.rl_replicator.sweeps import hill, steered
from tests.suite import forked

ROOT = Path(__file__).parents[3]
HILL = hill.NAME
SPIRALS = "spirals_learner:make_learner"
CLIMBER = "tests.rl_replicator.sweeps.climber:climber"
PBT = (CLIMBER, "--scheduler", "pbt", "--interval", "200")
D4PG = ("d4pg", "--env", "environments.fakes:target", "--scheduler", "pbt", "--interval", "200")


@pytest.fixture
def start(tmp_path):
    """Starts `rl-replicator sweep WORDS`; kills what a failed test leaves."""
    processes = []

    def start(*words):
        process = subprocess.Popen(
            [*forked.python(), "-m", "rl_replicator.cli.main", "sweep", *words],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        processes.append(process)
        return process

    yield start
    for process in processes:
        process.kill()
        process.communicate()


def finish(process):
    output, errors = process.communicate(timeout=800)
    return process.returncode, output, errors


def results(path):
    with (path / "results.csv").open() as file:
        return list(csv.DictReader(file))


def wait_for(condition, process):
    deadline = time.monotonic() + 600
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "expected something to train"),
        (["hil"], "expected something to train"),
        ([HILL], "expected --search 'option=expression' at least once"),
        ([HILL, "--search", "x=choice(1)"], "of two values or more"),
        ([HILL, "--search", "plase=uniform(0,1)"], "did you mean --place?"),
        ([HILL, "--search", "shape.height=uniform(0,1.5)"], "expected a whole number for --shape"),
        ([HILL, "--search", "place=uniform(0,1)", "--place", "3"], "either searched or set"),
        ([HILL, "--search", "seed=choice(1,2)"], "--search: expected no seed, which"),
        (
            ["d4pg", "--search", "env=choice(a:b,c:d)"],
            "--search: expected options that have a default, got env; give --env",
        ),
        (
            ["d4pg", "--search", "evaluation.every=choice(1000,9000)"],
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
            "'asha' or 'fifo' or 'pbt'",
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
        ([HILL, "--search", "place=uniform(0,1)", "--shape.wide", "1"], "got '--shape.wide'"),
        ((HILL, "--search", "shape.height=loguniform(1,9)"), "a whole number for --shape.height"),
    ],
)
def test_bad_input_starts_nothing(tmp_path, monkeypatch, capsys, words, message):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(ROOT))
    assert main.main(["sweep", *words]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line
    assert list(tmp_path.iterdir()) == []


def test_the_first_trial_may_have_a_default_of_none(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT))
    words = ["sweep", HILL, "--search", "wait-at=choice(2,None)", "--search", "place=uniform(0,1)"]
    plans = []
    monkeypatch.setattr(sweep.command, "run", lambda plan: plans.append(plan) or 0)
    assert main.main(words) == 0
    (plan,) = plans
    matches = [one.space.match(plan.defaults[one.option]) for one in plan.search.parameters]
    assert matches == ["None", "0.5"]


def test_the_words_of_a_sweep_come_where_train_takes_them(tmp_path, monkeypatch, capsys):
    """Options outside a union precede the word that chooses its dataclass; its own follow it."""
    monkeypatch.chdir(tmp_path)
    plans = []
    monkeypatch.setattr(sweep.command, "run", lambda plan: plans.append(plan) or 0)
    searched = (
        "--search",
        "learning-rate=uniform(0.1,0.2)",
        "--search",
        "steering.force=choice(2,3)",
    )
    chosen = ("steering:slow", "--steering.patience", "4")
    assert main.main(["sweep", steered.NAME, *searched, "--steps", "5", *chosen]) == 0
    assert main.main(["sweep", steered.NAME, *searched, "--steps", "5", "steering:fast"]) == 2
    assert "got '--steering.force'" in capsys.readouterr().err
    (plan,) = plans
    trial = SweepTrial(0, {"learning-rate": "0.15", "steering.force": "3"}, tmp_path, (None,))
    words = plan.command(trial, None)[len(plan.program) :]
    run_dir = str(trial.run_dir(None))
    assert words == [
        *("train", steered.NAME, "--steps", "5", "--learning-rate", "0.15", "--run-dir", run_dir),
        *(*chosen, "--steering.force", "3"),
    ]
    assert main.main(words) == 0
    config = RunDirectory(trial.run_dir(None)).config()["identity"]["config"]
    assert (config["learning_rate"], config["steering"]) == (0.15, {"force": 3.0, "patience": 4})


@pytest.mark.parametrize(
    ("value", "written"),
    [((8, 4), "8 4"), ([8, 4], "8 4"), (signal.SIGINT, "SIGINT"), ({"b", "a"}, "a b")],
)
def test_a_default_is_written_as_on_the_command_line(value, written):
    settings = dataclasses.make_dataclass("Settings", ["option"])(value)
    assert sweep._current(settings, "option") == written


@pytest.mark.processes
@pytest.mark.parametrize(("failures", "expected"), [(1, 0), (99, 2)])
def test_results_that_cannot_be_written_end_no_trials(
    tmp_path, monkeypatch, capsys, caplog, failures, expected
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(ROOT))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    write, errors = sweep.command._write_rows, [OSError("No space left on device")] * failures

    def write_or_fail(path, rows):
        if errors:
            raise errors.pop()
        write(path, rows)

    monkeypatch.setattr(sweep.command, "_write_rows", write_or_fail)
    words = ["sweep", HILL, "--search", "place=uniform(0,1)", "--trials", "2", "--run-dir", "s"]
    assert main.main([*words, "--parallel", "1"]) == expected
    assert caplog.text.count("until the next trial changes: No space left") == min(failures, 2)
    if expected == 0:
        assert {row["state"] for row in results(tmp_path / "s")} <= {"done", "stopped"}
    else:
        assert "the sweep in s has stopped: No space left" in capsys.readouterr().err


def test_a_disk_without_space_for_the_journal_ends_a_sweep_in_one_line(
    tmp_path, monkeypatch, capsys
):
    def fail(*args):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(ROOT))
    monkeypatch.setattr(sweep.command.Study, "ask", fail)
    words = ["sweep", HILL, "--search", "place=uniform(0,1)", "--trials", "2", "--run-dir", "s"]
    assert main.main([*words, "--parallel", "1"]) == 74
    line = capsys.readouterr().err.splitlines()[-1]
    assert line.startswith("rl-replicator: error: the sweep in s has stopped: [Errno 28]")


@pytest.mark.processes
def test_a_sweep_goes_on_without_runs_that_were_deleted(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(ROOT))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    words = [
        "sweep",
        HILL,
        "--search",
        "place=uniform(0,1)",
        "--run-dir",
        "s",
        "--scheduler",
        "fifo",
    ]
    assert main.main([*words, "--trials", "2", "--parallel", "1"]) == 0
    assert "best: trial " in capsys.readouterr().out
    for left in ([1], []):
        shutil.rmtree(tmp_path / "s" / ("trial-000" if left else "trial-001"))
        assert main.main([*words, "--trials", "2"]) == 0
        output = capsys.readouterr().out
        assert ("best: trial 1 " in output) == bool(left)
        assert ("best:" in output) == bool(left)


@pytest.mark.processes
@pytest.mark.timeout(900)
def test_seeds_asha_a_kill_and_more_trials(tmp_path, start):
    """Two seeds each; the sweep is killed while its first trial waits, and is then continued."""
    search = (HILL, "--search", "place=uniform(0,1)", "--search", "is-steep=choice(true,false)")
    words = (*search, "--seeds", "2", "--parallel", "1", "--run-dir", "s", "--wait-at", "2")
    process = start(*words, "--trials", "1")
    first = tmp_path / "s" / "trial-000"
    tables = [first / f"seed-{seed}" for seed in (1, 2)]
    wait_for(
        lambda: all(len(read_metrics(p, "evaluation").get("steps", ())) == 2 for p in tables),
        process,
    )
    os.kill(forked.program(process), signal.SIGKILL)
    process.communicate()
    runs = [(path / "started.txt").read_text() for path in tables]
    assert runs == ["0\n", "0\n"]

    status, output, errors = finish(start(*words, "--trials", "1"))
    assert (status, errors) == (0, "")
    assert [(path / "started.txt").read_text() for path in tables] == ["0\n2\n", "0\n2\n"]
    (row,) = results(tmp_path / "s")
    assert (row["state"], row["evaluations"], row["steps"]) == ("done", "4", "400")
    # The default values come first: at 0.5, a quarter from the top, 3 + seed high.
    assert (row["place"], row["is-steep"], row["score"]) == ("0.5", "false", "4.25")
    assert (row["lowest_seed"], row["highest_seed"]) == ("3.75", "4.75")
    assert "1 of 1 trials ended, 1 done" in output

    # Another sweep is not mixed with it; the same one has nothing left to do, even if an option
    # that does not change what is learned has another value.
    status, _, errors = finish(start(*words[:-2], "--trials", "1"))
    assert status == 2 and "options.wait_at was 2 and is now None" in errors
    status, output, _ = finish(start(*words, "--trials", "1", "--env-timeout", "9"))
    assert status == 0 and "1 of 1 trials ended" in output


@pytest.mark.processes
@pytest.mark.timeout(900)
def test_worse_trials_are_stopped_and_the_best_is_a_command(tmp_path, start):
    words = (HILL, "--search", "place=choice(0.5,0.3,0.9)", "--kind", "low", "--sampler", "random")
    status, output, errors = finish(
        start(*words, "--trials", "5", "--parallel", "2", "--run-dir", "s", "--shape.height", "2")
    )
    assert (status, errors) == (0, "")
    rows = results(tmp_path / "s")
    assert rows[0]["place"] == "0.5" and len(rows) == 5
    for row in rows:
        assert row["state"] in ("done", "stopped")
        assert (row["evaluations"] == "4") == (row["state"] == "done")
        assert float(row["score"]) == pytest.approx(abs(float(row["place"]) - 0.25))
    # The lowest figure is best here; a trial that is stopped was worse than another one.
    best = min(rows, key=lambda row: float(row["score"]))
    assert best["state"] == "done" and "stopped" in {row["state"] for row in rows}
    assert "importance: place 100%" in output
    command = shlex.split(output.splitlines()[-1])
    settings = ["--kind", "low", "--shape.height", "2", "--place", best["place"]]
    assert command[1:] == ["train", HILL, *settings]
    # The trial's run is like any other, and can be continued by hand.
    stopped = next(row for row in rows if row["state"] == "stopped")
    run = RunDirectory(tmp_path / "s" / f"trial-{int(stopped['trial']):03}" / "seed-1")
    assert run.config()["identity"]["options"]["place"] == float(stopped["place"])


@pytest.mark.processes
@pytest.mark.timeout(900)
def test_ctrl_c_lets_the_runs_save_and_failures_are_told(tmp_path, start):
    words = (HILL, "--search", "place=choice(0.5,0.1)", "--parallel", "1", "--run-dir", "s")
    process = start(*words, "--wait-at", "1", "--trials", "1")
    run = tmp_path / "s" / "trial-000" / "seed-1"
    wait_for(lambda: len(read_metrics(run, "evaluation").get("steps", ())) == 1, process)
    os.kill(forked.program(process), signal.SIGINT)
    status, output, _ = finish(process)
    assert status == 130
    assert output.splitlines()[-1] == "stopped; the same command continues the sweep"
    assert results(tmp_path / "s")[0]["state"] == "running"

    # If no trial can run, the rest is not tried.
    search = (HILL, "--search", "place=uniform(-3,-2)", "--run-dir", "t", "--parallel", "1")
    status, output, errors = finish(start(*search))
    assert "has failed: ended with status 2: rl-replicator: error: there is no such place" in output
    assert status == 1 and {row["state"] for row in results(tmp_path / "t")} == {"failed"}
    assert len(results(tmp_path / "t")) == 3
    assert len(errors.splitlines()) == 1
    assert "all 3 failed (trial 0 ended with status 2: rl-replicator: error: there is" in errors
    blind = (HILL, "--search", "place=uniform(0,1)", "--kind", "blind", "--run-dir", "u")
    status, _, errors = finish(start(*blind))
    assert status == 2 and "expected runs with an evaluation" in errors


@pytest.mark.processes
def test_a_sweep_without_a_trial_that_runs_has_failed(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(ROOT))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    words = ["sweep", HILL, "--search", "place=uniform(-3,-2)", "--trials", "1", "--run-dir", "s"]
    for reason in (" (trial 0 ended with status 2: rl-replicator: error: there is", "; see s/logs"):
        assert main.main(words) == 1
        (line,) = capsys.readouterr().err.splitlines()
        assert f"error: expected trials that run, but the only one failed{reason}" in line
    # The cause is corrected, here by a file that the runs look for.
    (tmp_path / "s" / "place_is_there").touch()
    assert main.main(words) == 1
    assert main.main([*words, "--retry-failed"]) == 0
    output = capsys.readouterr().out
    assert "1 of 1 trials ended, 1 done" in output and "best: trial 0 with figure" in output


@pytest.mark.processes
@pytest.mark.timeout(900)
def test_a_network(tmp_path, start):
    """A sweep over a user's own learner."""
    shutil.copy(ROOT / "docs" / "examples" / "spirals_learner.py", tmp_path)
    status, output, errors = finish(
        start(
            *(SPIRALS, "--search", "learning-rate=choice(0.003,1e-6)", "--steps", "600"),
            *("--trials", "1", "--sampler", "random", "--run-dir", "s"),
        )
    )
    assert (status, errors) == (0, "")
    rows = results(tmp_path / "s")
    assert rows[0]["learning-rate"] == "0.003" and rows[0]["state"] == "done"
    assert RunDirectory(tmp_path / "s" / "trial-000" / "seed-1").config()["score"]["end"] == 600
    accuracy = read_metrics(tmp_path / "s" / "trial-000" / "seed-1", "evaluation")["accuracy"]
    assert float(rows[0]["score"]) == pytest.approx(accuracy[-1])
    assert "accuracy" in output


def stages(path):
    return json.loads((path / "lineage.json").read_text())


@pytest.mark.processes
@pytest.mark.timeout(900)
def test_a_population_is_ended_killed_and_continued(tmp_path, start):
    """Trials wait in the middle of the second round, for SIGTERM and then for a kill."""
    words = (*PBT, "--search", "rate=loguniform(0.01,10)", "--steps", "600", "--wait-at", "300")
    words += ("--trials", "4", "--parallel", "2", "--run-dir", "s")
    runs = [tmp_path / "s" / f"trial-{number:03}" / "seed-1" for number in range(4)]

    def are_there(step, *numbers):
        tables = [read_metrics(runs[number], "evaluation") for number in numbers]
        return all(step in table.get("steps", ()) for table in tables)

    process = start(*words)
    wait_for(lambda: (tmp_path / "s/rounds.csv").exists() and are_there(300, 0, 1), process)
    os.kill(forked.program(process), signal.SIGTERM)
    status, output, _ = finish(process)
    assert status == 143
    assert output.splitlines()[-1] == "stopped; the same command continues the sweep"
    (row,) = [row for row in csv.DictReader((tmp_path / "s/rounds.csv").open()) if row["new_rate"]]
    copied, source = int(row["trial"]), int(row["copied_from"])
    lineage = stages(runs[copied])
    assert [stage["copied_from"] for stage in lineage] == [None, source]
    assert lineage[1]["values"] == {"rate": row["new_rate"]}

    process = start(*words)
    wait_for(lambda: are_there(300, 2, 3), process)
    os.kill(forked.program(process), signal.SIGKILL)
    process.communicate()
    (tmp_path / "s" / "go").touch()
    status, output, errors = finish(start(*words))
    assert (status, errors) == (0, "")
    assert stages(runs[copied])[:2] == lineage
    rows = results(tmp_path / "s")
    assert {(row["state"], row["steps"]) for row in rows} == {("done", "600")}
    for row, run in zip(rows, runs, strict=True):
        # The height has grown by the rates of the lineage, one after the other.
        heights = np.array([1.0, *read_metrics(run, "evaluation")["height"]])
        grown = [f"{rate:.6g}" for rate in np.diff(heights) / 100]
        rates = [stage["values"]["rate"] for stage in stages(run)]
        assert [key for key, _ in itertools.groupby(grown)] == [
            f"{float(key):.6g}" for key, _ in itertools.groupby(rates)
        ]
        assert row["rate"] == rates[-1]
        assert RunDirectory(run).config()["identity"]["options"]["rate"] == float(rates[-1])
    best = max(rows, key=lambda row: float(row["score"]))
    text = output[output.index(f"best: trial {best['trial']} with height") :].splitlines()
    told = [line.strip() for line in text[1:] if line.startswith("  trial ")]
    path = stages(runs[int(best["trial"])])
    origins = ["the start", *(f"trial {one['copied_from']} at {one['step']}" for one in path[1:])]
    if len(path) > 1:
        assert told == [
            f"trial {one['trial']} from {origin}: rate {one['values']['rate']}"
            for one, origin in zip(path, origins, strict=True)
        ]
    # The same command has nothing left to do; a population does not grow.
    assert finish(start(*words))[0] == 0
    status, _, errors = finish(start(*words[:-6], "--trials", "5", *words[-4:]))
    assert status == 2 and "trials was 4 and is now 5" in errors
