"""`rl-replicator sweep`, with runs that take no time and with a network."""

import csv
import os
import shlex
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

from rl_replicator.cli import main
from rl_replicator.runs.metrics import read_metrics
from rl_replicator.runs.run_directory import RunDirectory
from tests.suite import forked

ROOT = Path(__file__).parents[3]
HILL = "tests.rl_replicator.sweeps.hill:hill"
SPIRALS = "spirals_learner:make_learner"


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
        ([HILL, "--search", "place=uniform(0,1)", "--seed", "3"], "expected no --seed"),
        ([HILL, "--search", "place=uniform(0,1)", "--trials", "0"], "--trials: expected at least"),
        ([HILL, "--search", "place=uniform(0,1)", "--scheduler", "pbt"], "'asha' or 'fifo'"),
        ([HILL, "--search", "place=uniform(0,1)", "--shape.wide", "1"], "got '--shape.wide'"),
    ],
)
def test_bad_input_starts_nothing(tmp_path, monkeypatch, capsys, words, message):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(ROOT))
    assert main.main(["sweep", *words]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line
    assert list(tmp_path.iterdir()) == []


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

    # Another sweep does not mix with it; the same one has nothing left to do.
    status, _, errors = finish(start(*words[:-2], "--trials", "1"))
    assert status == 2 and "options.wait_at was 2 and is now None" in errors
    status, output, _ = finish(start(*words, "--trials", "1"))
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
        evaluations = {"done": "4", "stopped": row["evaluations"]}
        assert row["evaluations"] == evaluations[row["state"]]
        assert float(row["score"]) == pytest.approx(abs(float(row["place"]) - 0.25))
    # The lowest figure is best here; a trial that is stopped was worse than another one.
    best = min(rows, key=lambda row: float(row["score"]))
    assert best["state"] == "done" and "stopped" in {row["state"] for row in rows}
    assert "importance: place 100%" in output
    command = shlex.split(output.splitlines()[-1])
    settings = ["--kind", "low", "--shape.height", "2", "--place", best["place"]]
    assert command[1:] == ["train", HILL, *settings]
    # The trial's run is one like any other, and can be continued by hand.
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
    assert "is failed: exit status 2: rl-replicator: error: there is no such place" in output
    assert status == 2 and {row["state"] for row in results(tmp_path / "t")} == {"failed"}
    assert len(results(tmp_path / "t")) == 3
    assert len(errors.splitlines()) == 1 and "the first 3 failed, the last one with" in errors
    blind = (HILL, "--search", "place=uniform(0,1)", "--kind", "blind", "--run-dir", "u")
    status, _, errors = finish(start(*blind))
    assert status == 2 and "expected runs with an evaluation" in errors


@pytest.mark.processes
@pytest.mark.timeout(900)
def test_a_network(tmp_path, start):
    """A learner of a user's own; its best trial goes on with `train` as any run does."""
    shutil.copy(ROOT / "docs" / "examples" / "spirals_learner.py", tmp_path)
    status, output, errors = finish(
        start(
            *(SPIRALS, "--search", "learning-rate=choice(0.003,1e-6)", "--steps", "600"),
            *("--trials", "2", "--sampler", "random", "--parallel", "2", "--run-dir", "s"),
        )
    )
    assert (status, errors) == (0, "")
    rows = results(tmp_path / "s")
    assert rows[0]["learning-rate"] == "0.003" and rows[0]["state"] == "done"
    accuracy = read_metrics(tmp_path / "s" / "trial-000" / "seed-1", "evaluation")["accuracy"]
    assert float(rows[0]["score"]) == pytest.approx(accuracy[-1])
    assert "accuracy" in output
