"""`rl-replicator suite`, with runs that end immediately, fail, or wait for Ctrl-C."""

import csv
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import imageio.v3 as imageio
import pytest

from agents.cli import suite
from agents.suites import command
from agents.suites.anchors import Anchors
from agents.suites.tasks import Suite, run_name
from launchpad.engines.ray import cluster
from rl_replicator.cli import main, trainables
from rl_replicator.errors import UsageError
from rl_replicator.runs import events
from rl_replicator.runs.run_directory import RunDirectory
from tests.agents.suites.fake_agent import fake, write_run

pytestmark = pytest.mark.timeout(600)
ROOT = Path(__file__).parents[3]
TASKS = "tests.agents.suites.fake_agent"


@pytest.fixture(scope="module")
def shared_ray(tmp_path_factory):
    """One Ray for all suites of this process, whose workers find the fake agent."""
    site = tmp_path_factory.mktemp("site")
    info = site / "tests_of_suites-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: tests-of-suites\nVersion: 1.0\n")
    groups = f"[rl_replicator.trainables]\nfake = {TASKS}:fake\n"
    (info / "entry_points.txt").write_text(groups)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join([str(site), str(ROOT)]))
        patch.syspath_prepend(str(site))
        connection = cluster.acquire(None)
        yield
        cluster.release(connection)


@pytest.fixture
def words(tmp_path, monkeypatch, shared_ray):
    """Returns the words of `rl-replicator suite` with the fake agent; @ stands for its module."""
    monkeypatch.chdir(tmp_path)

    def words(*given):
        named = [word.replace("@", f"{TASKS}:") for word in given]
        return ["suite", *named, "--agent", "fake", "--run-dir", "suite"]

    return words


def started(tmp_path):
    path = tmp_path / "suite" / "started.txt"
    return [tuple(line.split()) for line in path.read_text().splitlines()] if path.exists() else []


def results(tmp_path):
    with (tmp_path / "results.csv").open() as file:
        return list(csv.DictReader(file))


def wait_for(condition):
    deadline = time.monotonic() + 300
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.processes
def test_a_failed_run_does_not_end_the_others_and_what_is_done_is_skipped(tmp_path, words, capsys):
    status = main.main(words("@broken", "@quick", "--seeds", "2", "--steps", "100"))
    output, errors = capsys.readouterr()
    assert status == 1, errors
    tried = [("broken", "1"), ("quick", "1"), ("broken", "2"), ("quick", "2")]
    assert [run[:2] for run in started(tmp_path)] == tried
    why = "failed, ended with status 2: rl-replicator: error: this one"
    assert f"{TASKS}:broken seed 1 {why}" in errors
    assert "2 of 4 runs done, 2 failed" in output
    table = [line.split() for line in output.splitlines()]
    assert [f"{TASKS}:quick", "200", "400", "300"] in table
    assert [f"{TASKS}:broken", "failed", "failed"] in table
    assert "mean of 1 tasks: 300 [200, 400]" in output
    rows = results(tmp_path / "suite")
    assert [(row["seed"], row["environment_steps"], row["return_mean"]) for row in rows] == [
        ("1", "50", "100"),
        ("1", "100", "200"),
        ("2", "50", "200"),
        ("2", "100", "400"),
    ]
    assert {(row["preset"], row["observations"]) for row in rows} == {("default", "state")}
    assert (rows[0]["return_median"], rows[0]["failed_share"]) == ("100.5", "")
    assert imageio.imread(tmp_path / "suite" / "results.png").size > 10_000
    with (tmp_path / "suite" / "summary.csv").open() as file:
        (mean, _) = csv.DictReader(file)
    wanted = ("mean", "300", "1", "2")
    assert (mean["measure"], mean["value"], mean["tasks"], mean["runs"]) == wanted

    # Repeated: only failed runs are started; the results keep runs that are no longer named.
    (tmp_path / "suite" / "started.txt").unlink()
    assert main.main(words("@quick", "--steps", "100", "--seeds", "2")) == 0
    assert started(tmp_path) == [] and "2 of 2 runs done" in capsys.readouterr().out
    assert main.main(words("@quick", "--steps", "200", "--parallel", "3")) == 0
    assert started(tmp_path) == [("quick", "1", "1")]  # With --parallel 3, on one processor.
    assert [row["seed"] for row in results(tmp_path / "suite")] == ["1", "1", "2", "2"]

    # Other hyper-parameters would mix with those of the existing runs.
    capsys.readouterr()
    assert main.main(words("@quick", "--steps", "200", "--n-step", "3")) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "n_step was 5 and is now 3" in line


@pytest.mark.processes
def test_a_suite_is_interrupted_killed_and_continued(tmp_path, words, capsys):
    hold = tmp_path / "hold"
    hold.touch()
    given = words("@endless", "@quick", "--steps", "100", "--seeds", "2")
    runs = [tmp_path / "suite" / run_name(f"{TASKS}:endless", seed) for seed in (1, 2)]

    def interrupt():
        wait_for((runs[0] / "is_ready").exists)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()
    assert main.main(given) == 130
    output, errors = capsys.readouterr()
    assert errors == "" and (runs[0] / "saved").exists()  # It was asked to end, and not killed.
    assert "0 of 4 runs done" in output and "the same command continues the suite" in output
    assert [run[:2] for run in started(tmp_path)] == [("endless", "1")]
    assert [row["environment_steps"] for row in results(tmp_path / "suite")] == ["50"]

    (runs[0] / "is_ready").unlink()
    process = subprocess.Popen([sys.executable, "-m", "rl_replicator.cli.main", *given])
    wait_for((runs[0] / "is_ready").exists)
    process.kill()
    process.wait()
    hold.unlink()
    assert main.main(given) == 0
    assert "4 of 4 runs done" in capsys.readouterr().out
    found = results(tmp_path / "suite")
    assert [row["return_mean"] for row in found if row["environment_steps"] == "100"] == [
        *("200", "400", "200", "400"),
    ]


def plan(tmp_path, tasks=("a:b",), seeds=1, **options):
    return command.SuitePlan(
        suite=Suite("s", tasks),
        steps=100,
        seeds=seeds,
        run_dir=tmp_path,
        agent="fake",
        parallel=1,
        module="rl_replicator.cli.main",
        arguments=(),
        options=options,
        anchors=Anchors({}),
    )


@pytest.fixture
def folder(tmp_path):
    """The directory of a suite of the fake agent, which was run before."""
    RunDirectory(tmp_path).describe("suite", plan(tmp_path).identity, {})
    return tmp_path


def write(folder, task="a:b", seed=1, evaluations=((100, 7),)):
    write_run(folder / run_name(task, seed), task, seed, evaluations)
    return folder / run_name(task, seed)


def test_other_runs_in_its_folder_are_left_out(folder, capsys):
    """A copy, a run of another agent, and one that cannot be read."""
    write(folder)
    for name in ("copy", "other", "broken"):
        write_run(folder / name, "a:b", 1, [(100, 900)])
    config = json.loads((folder / "other" / "config.json").read_text())
    (folder / "other" / "config.json").write_text(json.dumps({**config, "trainable": "sac"}))
    (folder / "broken" / "config.json").write_text("{")
    assert command.run(plan(folder)) == 0
    output, errors = capsys.readouterr()
    assert "mean of 1 tasks: 7" in output and "1 of 1 runs done" in output
    first, *rest = errors.splitlines()
    assert first.startswith(f"left out {folder / 'broken'}: expected a run's settings in")
    assert rest == [
        f"left out {folder / name}: it is not a run of this suite" for name in ("copy", "other")
    ]
    assert [row["return_mean"] for row in results(folder)] == ["7"]


def test_only_files_that_there_are_are_named(folder, capsys):
    for end, names in ((100, "results.csv results.png"), (200, "results.csv")):
        write(folder, evaluations=[(50, 7), (end, 7)])
        assert command.run(plan(folder)) == 0
        line = next(x for x in capsys.readouterr().out.splitlines() if x.startswith("results "))
        assert line == f"results {', '.join(str(folder / name) for name in names.split())}"


def test_only_the_runs_that_are_asked_for_count_in_the_summary(folder, capsys):
    for task, seed in (("a:b", 1), ("a:b", 2), ("c:d", 1)):
        write(folder, task, seed, [(100, seed)])
    assert command.run(plan(folder)) == 0
    output = capsys.readouterr().out
    assert "mean of 1 tasks: 1\n" in output and "results.png, of all runs there\n" in output
    assert len(results(folder)) == 3


def test_a_longer_run_without_an_evaluation_at_the_steps_is_named(folder, capsys):
    write(folder)
    write(folder, "c:d", evaluations=[(50, 7), (200, 9)])
    assert command.run(plan(folder, ("a:b", "c:d"))) == 0
    output, errors = capsys.readouterr()
    assert "mean of 1 tasks: 7" in output
    assert errors.splitlines() == [
        "c:d seed 1 has no evaluation near 100 steps, and is left out of the means: it was trained "
        "for more"
    ]


@pytest.mark.processes
def test_a_run_that_was_killed_after_its_last_evaluation_is_continued(folder, words):
    """It may lack its plot or film; the continued run makes them, and records its end."""
    path = write(folder, f"{TASKS}:quick")
    config = json.loads((path / "config.json").read_text())
    options = {"env": f"{TASKS}:quick", "steps": 100, "seed": 1, "run_dir": str(path)}
    (path / "config.json").write_text(json.dumps({**config, "options": options}))
    events.record(path, events.RUN, events.STARTED)
    assert command.run(plan(folder, (f"{TASKS}:quick",))) == 0
    assert [row["return_mean"] for row in results(folder)] == ["100", "200"]


def test_a_suite_goes_on_with_other_options_that_do_not_change_what_is_learned(tmp_path):
    write(tmp_path)
    RunDirectory(tmp_path).describe("suite", plan(tmp_path, n_step=5).identity, {})
    for keep in (2, 3):
        free = {"keep_checkpoints": keep, "track": ["wandb"] * keep, "env_timeout": 100.0 * keep}
        assert command.run(plan(tmp_path, n_step=5, **free)) == 0
    with pytest.raises(UsageError, match=r"other settings \(n_step was 5 and is now 3\)"):
        command.run(plan(tmp_path, n_step=3, keep_checkpoints=4))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "expected a suite (dmc14, dmc-hard, dmc-pixels) or tasks such as"),
        (["cartpole"], "or a task such as cartpole:swingup, got 'cartpole'"),
        (["dmc14", "cartpole:swingup"], "expected one suite or a list of tasks"),
        (["@quick", "@quick"], "expected each task once"),
        (["@quik"], "got 'quik'; did you mean"),
        (["@pictures"], "train from frames with --pixels"),
        (["dmc14", "--seed", "3"], "expected no --seed after 'rl-replicator suite'"),
        (["dmc14", "--config", "f.toml"], "expected no --config after 'rl-replicator suite', whi"),
        (["dmc14", "--seeds", "0"], "--seeds: expected at least 1, got 0"),
        (["dmc14", "--n-stp", "3"], "Unrecognized options: --n-stp, 3"),
        (["dmc14", "--anchors", "none.csv"], "--anchors: cannot read none.csv"),
    ],
)
def test_bad_input_is_named_before_anything_starts(tmp_path, monkeypatch, capsys, words, message):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(trainables, "load", lambda name: fake)
    words = [word.replace("@", f"{TASKS}:") for word in words]
    assert main.main(["suite", *words]) == 2
    text = " ".join(re.sub("[\u2500-\u257f]", " ", capsys.readouterr().err).split())
    assert message in text, text
    assert list(tmp_path.iterdir()) == []


def test_tasks_are_made_as_the_runs_make_them(tmp_path, monkeypatch):
    """The test above covers that a task with frames alone is refused without `--pixels`."""
    plans = []
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(trainables, "load", lambda name: fake)
    monkeypatch.setattr(command, "run", lambda plan: plans.append(plan) or 0)
    assert suite.run([f"{TASKS}:pictures", "--pixels"]) == 0
    assert plans[0].suite.tasks == (f"{TASKS}:pictures",)
