"""`rl-replicator suite`, with runs that end immediately, fail, or wait for Ctrl-C."""

import csv
import errno
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import imageio.v3 as imageio
import pytest

ROOT = Path(__file__).parents[3]
TASKS = "tests.agents.suites.fake_agent"
_GROUPS = f"""[rl_replicator.trainables]
fake = {TASKS}:fake
[rl_replicator.commands]
suite = agents.cli.suite
"""


@pytest.fixture
def start(tmp_path):
    """Starts `rl-replicator suite WORDS` with the fake agent; kills leftovers of a failed test."""
    info = tmp_path / "site" / "tests_of_suites-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: tests-of-suites\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(_GROUPS)
    processes = []

    def start(*words):
        process = subprocess.Popen(
            [sys.executable, "-m", "rl_replicator.cli.main", "suite"]
            + [word.replace("@", f"{TASKS}:") for word in words]
            + ["--agent", "fake", "--run-dir", "suite"],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path / "site"), str(ROOT)])},
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
    output, errors = process.communicate(timeout=250)
    return process.returncode, output, errors


def started(tmp_path):
    path = tmp_path / "suite" / "started.txt"
    return [tuple(line.split()) for line in path.read_text().splitlines()] if path.exists() else []


def results(tmp_path):
    with (tmp_path / "suite" / "results.csv").open() as file:
        return list(csv.DictReader(file))


@pytest.mark.processes
@pytest.mark.timeout(900)
def test_a_failed_run_does_not_end_the_others_and_what_is_done_is_skipped(tmp_path, start):
    status, output, errors = finish(start("@broken", "@quick", "--seeds", "2", "--steps", "100"))
    assert status == 1, errors
    assert [run[:2] for run in started(tmp_path)] == [
        ("broken", "1"),
        ("quick", "1"),
        ("broken", "2"),
        ("quick", "2"),
    ]
    assert (
        f"{TASKS}:broken seed 1 failed, ended with status 2: rl-replicator: error: this one"
        in errors
    )
    assert "2 of 4 runs done, 2 failed" in output
    table = [line.split() for line in output.splitlines()]
    assert [f"{TASKS}:quick", "200", "400", "300"] in table
    assert [f"{TASKS}:broken", "failed", "failed"] in table
    assert "mean of 1 tasks: 300 [200, 400]" in output
    rows = results(tmp_path)
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
    assert (mean["measure"], mean["value"], mean["tasks"], mean["runs"]) == (
        "mean",
        "300",
        "1",
        "2",
    )

    # Repeated: only failed runs are started; the results keep runs that are no longer named.
    (tmp_path / "suite" / "started.txt").unlink()
    status, output, _ = finish(start("@quick", "--steps", "100", "--seeds", "2"))
    assert (status, started(tmp_path)) == (0, []) and "2 of 2 runs done" in output
    status, _, _ = finish(start("@quick", "--steps", "200", "--parallel", "3"))
    assert status == 0
    assert started(tmp_path) == [("quick", "1", "1")]  # With --parallel 3, on one processor.
    assert [row["seed"] for row in results(tmp_path)] == ["1", "1", "2", "2"]

    # Other hyper-parameters would mix with those of the existing runs.
    status, _, errors = finish(start("@quick", "--steps", "200", "--n-step", "3"))
    assert status == 2 and "n_step was 5 and is now 3" in errors and len(errors.splitlines()) == 1


@pytest.mark.processes
@pytest.mark.timeout(900)
def test_ctrl_c_ends_the_runs_cleanly_and_the_suite_continues(tmp_path, start):
    process = start("@endless", "@quick", "--steps", "100")
    directory = tmp_path / "suite" / f"{TASKS}-endless-seed1"
    deadline = time.monotonic() + 250
    while not (directory / "is_ready").exists():
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    status, output, errors = finish(process)
    assert (status, errors) == (130, "")
    assert (directory / "saved").exists()  # It was asked to end, and not killed.
    assert "0 of 2 runs done" in output and "the same command continues the suite" in output
    assert [run[:2] for run in started(tmp_path)] == [("endless", "1")]
    assert [row["environment_steps"] for row in results(tmp_path)] == ["50"]


@pytest.mark.processes
@pytest.mark.parametrize("failures", [1, 99])
def test_results_that_cannot_be_written_end_no_runs(tmp_path, monkeypatch, caplog, failures):
    """In this process, with runs that end immediately."""
    from agents.suites import command
    from agents.suites.anchors import Anchors
    from agents.suites.tasks import Suite
    from rl_replicator.errors import UsageError

    class Plan(command.SuitePlan):
        def command(self, status):
            code = f"""
import pathlib
from tests.agents.suites.fake_agent import write_run
write_run(pathlib.Path({str(status.path)!r}), {status.run.task!r}, {status.run.seed}, [(100, 7)])
"""
            return [sys.executable, "-c", code]

    monkeypatch.chdir(ROOT)
    write, errors = command.results.write, [OSError("No space left on device")] * failures

    def write_or_fail(path, rows):
        if errors:
            raise errors.pop()
        write(path, rows)

    monkeypatch.setattr(command.results, "write", write_or_fail)
    suite = Suite("s", ("a:b",), ())
    plan = Plan(suite, 100, 2, tmp_path / "suite", "fake", 1, (), {}, Anchors({}))
    if failures == 1:
        assert command.run(plan) == 0
        assert [row["return_mean"] for row in results(tmp_path)] == ["7", "7"]
    else:
        with pytest.raises(UsageError, match=r"cannot write the results in .*: No space left"):
            command.run(plan)
    assert len([*(tmp_path / "suite").glob("*seed*")]) == 2
    assert caplog.text.count("before the next run ends: No space left") == min(failures, 2)


def test_a_neighbour_that_cannot_be_read_is_left_out(tmp_path, monkeypatch, capsys):
    """In this process, with a finished run."""
    from agents.suites import command
    from agents.suites.anchors import Anchors
    from agents.suites.tasks import Suite, SuiteRun
    from rl_replicator.runs.run_directory import RunDirectory
    from tests.agents.suites.fake_agent import write_run

    monkeypatch.chdir(ROOT)
    plan = command.SuitePlan(
        Suite("s", ("a:b",), ()), 100, 1, tmp_path / "suite", "fake", 1, (), {}, Anchors({})
    )
    with RunDirectory(plan.run_dir).opened("suite", plan.identity):
        RunDirectory(plan.run_dir).describe("suite", plan.identity, {})
    write_run(plan.run_dir / SuiteRun("a:b", 1).name, "a:b", 1, [(100, 7)])
    (plan.run_dir / "copy").mkdir()
    (plan.run_dir / "copy" / "config.json").write_text("{")
    assert command.run(plan) == 0
    assert [row["return_mean"] for row in results(tmp_path)] == ["7"]
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"left out {plan.run_dir / 'copy'}: expected a run's settings in")


def test_other_runs_in_its_folder_are_left_out(tmp_path, monkeypatch, capsys):
    """A copy, a run of another agent, and another agent's run in the place of a run."""
    import json

    from agents.suites import command
    from agents.suites.anchors import Anchors
    from agents.suites.tasks import Suite, SuiteRun
    from rl_replicator.runs.run_directory import RunDirectory
    from tests.agents.suites.fake_agent import write_run

    class Plan(command.SuitePlan):
        def command(self, status):
            return ["sh", "-c", "echo it has other settings; exit 2"]

    monkeypatch.chdir(ROOT)
    plan = Plan(Suite("s", ("a:b",), ()), 100, 2, tmp_path, "fake", 1, (), {}, Anchors({}))
    first, second = (tmp_path / SuiteRun("a:b", seed).name for seed in (1, 2))
    write_run(first, "a:b", 1, [(100, 7)])
    for path, seed in ((tmp_path / "copy", 1), (tmp_path / "other", 1), (second, 2)):
        write_run(path, "a:b", seed, [(100, 900)])
    for path in (tmp_path / "other", second):
        config = json.loads((path / "config.json").read_text())
        (path / "config.json").write_text(json.dumps({**config, "trainable": "sac"}))
    RunDirectory(tmp_path).describe("suite", plan.identity, {})  # It was run before.
    assert command.run(plan) == 1
    output, errors = capsys.readouterr()
    assert "mean of 1 tasks: 7" in output and "1 of 2 runs done, 1 failed" in output
    assert errors.splitlines()[:-1] == [
        f"left out {path}: it is not a run of this suite"
        for path in (second, tmp_path / "copy", tmp_path / "other")
    ]
    assert "a:b seed 2 failed, ended with status 2: it has other settings" in errors
    with (tmp_path / "results.csv").open() as file:
        assert [row["return_mean"] for row in csv.DictReader(file)] == ["7"]


@pytest.mark.processes
@pytest.mark.parametrize("is_full", [False, True])
def test_a_run_that_cannot_be_started_ends_a_suite_in_one_line(tmp_path, monkeypatch, is_full):
    from agents.suites import command
    from agents.suites.anchors import Anchors
    from agents.suites.tasks import Suite
    from rl_replicator.errors import DiskError, UsageError
    from rl_replicator.jobs.run_process import ProcessGroup
    from rl_replicator.runs.run_directory import RunDirectory

    def fail(*args):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    suite = Suite("s", ("a:b",), ())
    plan = command.SuitePlan(suite, 100, 1, tmp_path, "fake", 1, (), {}, Anchors({}))
    with RunDirectory(tmp_path).opened("suite", plan.identity):
        RunDirectory(tmp_path).describe("suite", plan.identity, {})
    if is_full:
        monkeypatch.setattr(ProcessGroup, "start", fail)
    else:
        (tmp_path / "logs").touch()
    with pytest.raises(UsageError) as error:
        command.run(plan)
    assert isinstance(error.value, DiskError) == is_full
    told = "No space left on device" if is_full else "File exists"
    assert re.fullmatch(
        rf"the suite in {tmp_path} has stopped: .*{told}.*; the same command continues it",
        str(error.value),
    )


def test_only_files_that_there_are_are_named(tmp_path, monkeypatch, capsys):
    from agents.suites import command
    from agents.suites.anchors import Anchors
    from agents.suites.tasks import Suite, SuiteRun
    from rl_replicator.runs.run_directory import RunDirectory
    from tests.agents.suites.fake_agent import write_run

    monkeypatch.chdir(ROOT)
    plan = command.SuitePlan(
        Suite("s", ("a:b",), ()), 100, 1, tmp_path, "fake", 1, (), {}, Anchors({})
    )
    run_dir = tmp_path / SuiteRun("a:b", 1).name
    RunDirectory(tmp_path).describe("suite", plan.identity, {})  # It was run before.
    for end, names in ((100, "results.csv results.png"), (200, "results.csv")):
        write_run(run_dir, "a:b", 1, [(50, 7), (end, 7)])
        assert command.run(plan) == 0
        line = next(x for x in capsys.readouterr().out.splitlines() if x.startswith("results "))
        assert line == f"results {', '.join(str(tmp_path / name) for name in names.split())}"


def test_only_the_runs_that_are_asked_for_count_in_the_summary(tmp_path, monkeypatch, capsys):
    from agents.suites import command
    from agents.suites.anchors import Anchors
    from agents.suites.tasks import Suite, SuiteRun
    from rl_replicator.runs.run_directory import RunDirectory
    from tests.agents.suites.fake_agent import write_run

    monkeypatch.chdir(ROOT)
    plan = command.SuitePlan(
        Suite("s", ("a:b",), ()), 100, 1, tmp_path, "fake", 1, (), {}, Anchors({})
    )
    for env, seed in (("a:b", 1), ("a:b", 2), ("c:d", 1)):
        write_run(tmp_path / SuiteRun(env, seed).name, env, seed, [(100, seed)])
    RunDirectory(tmp_path).describe("suite", plan.identity, {})  # It was run before.
    assert command.run(plan) == 0
    output = capsys.readouterr().out
    assert "mean of 1 tasks: 1\n" in output and "results.png, of all runs there\n" in output
    with (tmp_path / "results.csv").open() as file:
        assert len([*csv.DictReader(file)]) == 3


def test_a_longer_run_without_an_evaluation_at_the_steps_is_named(tmp_path, monkeypatch, capsys):
    from agents.suites import command
    from agents.suites.anchors import Anchors
    from agents.suites.tasks import Suite, SuiteRun
    from rl_replicator.runs.run_directory import RunDirectory
    from tests.agents.suites.fake_agent import write_run

    monkeypatch.chdir(ROOT)
    plan = command.SuitePlan(
        Suite("s", ("a:b", "c:d"), ()), 100, 1, tmp_path, "fake", 1, (), {}, Anchors({})
    )
    write_run(tmp_path / SuiteRun("a:b", 1).name, "a:b", 1, [(100, 7)])
    write_run(tmp_path / SuiteRun("c:d", 1).name, "c:d", 1, [(50, 7), (200, 9)])
    RunDirectory(tmp_path).describe("suite", plan.identity, {})  # It was run before.
    assert command.run(plan) == 0
    output, errors = capsys.readouterr()
    assert "mean of 1 tasks: 7" in output
    assert errors.splitlines() == [
        "c:d seed 1 has no evaluation near 100 steps, and is left out of the means: it was trained "
        "for more"
    ]


def test_a_run_that_was_killed_at_its_end_is_given_to_train_again(tmp_path, monkeypatch):
    """Unless it was trained for more steps, which `train` refuses."""
    from agents.suites import command
    from agents.suites.anchors import Anchors
    from agents.suites.progress import State
    from agents.suites.tasks import Suite, SuiteRun
    from rl_replicator.runs import events
    from rl_replicator.runs.run_directory import RunDirectory
    from tests.agents.suites.fake_agent import write_run

    tasks = ("killed:a", "finished:a", "longer:a")
    plan = command.SuitePlan(
        Suite("s", tasks, ()), 100, 1, tmp_path, "fake", 1, (), {}, Anchors({})
    )
    for task, steps in zip(tasks, (100, 100, 200), strict=True):
        path = tmp_path / SuiteRun(task, 1).name
        write_run(path, task, 1, [(100, 7)])
        one = RunDirectory(path)
        one.describe("fake", one.config()["identity"], {"env": task, "steps": steps})
        events.record(path, events.RUN, events.STARTED)
    events.record(tmp_path / SuiteRun("finished:a", 1).name, events.RUN, events.FINISHED)
    waiting = []

    def run(scheduler, statuses):
        waiting.extend(one.run.task for one in statuses if one.state is State.WAITING)

    monkeypatch.setattr(command.Scheduler, "run", run)
    RunDirectory(tmp_path).describe("suite", plan.identity, {})  # It was run before.
    assert command.run(plan) == 0
    assert waiting == ["killed:a"]


def test_a_suite_goes_on_with_other_options_that_do_not_change_what_is_learned(tmp_path):
    from agents.suites import command
    from agents.suites.anchors import Anchors
    from agents.suites.tasks import Suite, SuiteRun
    from rl_replicator.errors import UsageError
    from rl_replicator.runs.run_directory import RunDirectory
    from tests.agents.suites.fake_agent import write_run

    def plan(**options):
        suite = Suite("s", ("a:b",), ())
        return command.SuitePlan(suite, 100, 1, tmp_path, "fake", 1, (), options, Anchors({}))

    write_run(tmp_path / SuiteRun("a:b", 1).name, "a:b", 1, [(100, 7)])
    # An earlier version stored no free options.
    RunDirectory(tmp_path).describe("suite", plan(n_step=5).identity, {})
    for keep in (2, 3):
        free = {"keep_checkpoints": keep, "track": ["wandb"] * keep, "env_timeout": 100.0 * keep}
        assert command.run(plan(n_step=5, **free)) == 0
    with pytest.raises(UsageError, match=r"other settings \(n_step was 5 and is now 3\)"):
        command.run(plan(n_step=3, keep_checkpoints=4))


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
    from rl_replicator.cli import main, trainables
    from tests.agents.suites.fake_agent import fake

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(trainables, "load", lambda name: fake)
    words = [word.replace("@", f"{TASKS}:") for word in words]
    assert main.main(["suite", *words]) == 2
    text = " ".join(re.sub("[\u2500-\u257f]", " ", capsys.readouterr().err).split())
    assert message in text, text
    assert list(tmp_path.iterdir()) == []


def test_tasks_are_made_as_the_runs_make_them(tmp_path, monkeypatch):
    """The test above covers that a task with frames alone is refused without `--pixels`."""
    from agents.cli import suite
    from agents.suites import command
    from rl_replicator.cli import trainables
    from tests.agents.suites.fake_agent import fake

    plans = []
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(trainables, "load", lambda name: fake)
    monkeypatch.setattr(command, "run", lambda plan: plans.append(plan) or 0)
    assert suite.run([f"{TASKS}:pictures", "--pixels"]) == 0
    assert plans[0].suite.tasks == (f"{TASKS}:pictures",)
