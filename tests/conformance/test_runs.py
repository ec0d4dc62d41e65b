"""A run of an agent and one of a learner live the same life: killed, stopped, continued, ended."""

import errno
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest
import tensorflow  # noqa: F401 - so that conftest splits its CPU before the first run

from rl_replicator.checkpoints import Checkpointer
from rl_replicator.cli import main
from rl_replicator.runs import events, metrics
from tests.suite import forked

ROOT = Path(__file__).parents[2]
SPIRALS = ROOT / "docs" / "examples" / "spirals_learner.py"
AGENT = [
    *("d4pg", "--env", "tests.agents.runs.slow_target:make", "--no-video"),
    *("--agent.policy-layers", "32", "32", "--agent.critic-layers", "32", "32"),
    *("--agent.global-batch-size", "32", "--agent.steps-per-call", "4"),
    *("--agent.value-min", "0", "--agent.value-max", "20", "--agent.replay.min-size", "200"),
    *("--agent.replay.samples-per-insert", "16"),
    *("--evaluation.every", "400", "--evaluation.episodes", "1"),
]
LEARNER = ["spirals_learner:make_learner", "--layers", "8", "8"]
# The words of a command, the steps of a short run, a setting that may not change, and a signal.
KINDS = {
    "agent": (AGENT, 400, ("--seed", "2"), signal.SIGTERM),
    "learner": (LEARNER, 30, ("--layers", "8", "9"), signal.SIGINT),
}


@pytest.fixture(params=KINDS)
def kind(request, tmp_path, monkeypatch):
    shutil.copy(SPIRALS, tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return KINDS[request.param]


@pytest.fixture
def start(tmp_path):
    """Starts a command; kills what a failed test has left running."""
    processes = []

    def start(*words):
        process = subprocess.Popen(
            [*forked.python(), "-m", "rl_replicator.cli.main", *words],
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(tmp_path)])},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        processes.append(process)
        return process

    yield start
    for process in processes:
        process.kill()
        process.wait()


def saved_step(run):
    latest = Checkpointer(run / "checkpoints").latest()
    return -1 if latest is None else latest.step


def wait_until_saved(run, process, above):
    """Waits until there is a checkpoint of a step above a number, and returns the step."""
    while (step := saved_step(run)) <= above:
        assert process.poll() is None, process.stdout.read()
        time.sleep(0.05)
    return step


@pytest.mark.processes
@pytest.mark.timeout(600)
def test_a_run_is_killed_stopped_and_continued(kind, start, tmp_path):
    words, *_, number = kind
    run = tmp_path / "my run"
    words = ("train", *words, "--steps", "1000000", "--checkpoint-seconds", "0.2")
    process = start(*words, "--run-dir", str(run))
    step = wait_until_saved(run, process, above=0)
    os.kill(forked.program(process), signal.SIGKILL)
    process.communicate()

    process = start("train", "--run-dir", str(run))  # As it was started.
    step = wait_until_saved(run, process, above=step)
    second = start("train", "--run-dir", str(run))
    output, _ = second.communicate(timeout=120)
    assert second.returncode == 2 and "another process trains" in output
    process.send_signal(number)
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 128 + number, output
    assert f"continuing in {run}\n" in output and "stopped and saved" in output
    assert "; continue with: rl-replicator train --run-dir '" in output
    assert saved_step(run) >= step

    told = events.read(run)
    assert [event.event for event in told] == ["started", "continued", "stopped"]
    assert events.faults(told) == told[1:2]  # The kill.


def files(run):
    return {path: path.read_bytes() for path in sorted(run.rglob("*")) if path.is_file()}


@pytest.mark.timeout(240)
def test_a_run_ends_once(kind, tmp_path, capsys, monkeypatch):
    words, steps, change, _ = kind
    run = tmp_path / "run"

    def train(steps, *more):
        return main.main(["train", *words, "--steps", str(steps), "--run-dir", str(run), *more])

    assert train(steps) == 0
    before = files(run)
    capsys.readouterr()
    assert train(steps) == 0
    assert capsys.readouterr().out.startswith(f"finished: all {steps} ")
    assert train(steps - 1) == 2 and f"at least {steps}" in capsys.readouterr().err
    assert train(2 * steps, *change) == 2 and "with other settings" in capsys.readouterr().err
    assert files(run) == before
    told = run / "events.csv"  # Killed after its last step, before its end was recorded.
    told.write_text("".join(told.read_text().splitlines(keepends=True)[:-1]))
    added = []
    add_files = "rl_replicator.runs.run.trackers.add_files"
    monkeypatch.setattr(add_files, lambda run, without=None: added.append(run.path))
    assert [train(steps), train(steps)] == [0, 0]
    assert added == [run] and events.is_finished(events.read(run))
    monkeypatch.undo()
    monkeypatch.syspath_prepend(tmp_path)
    assert train(steps + steps // 2) == 0
    assert [event.event for event in events.read(run)][-2:] == ["continued", "finished"]


@pytest.mark.timeout(240)
def test_a_full_disk_ends_a_run_in_one_line(kind, tmp_path, capsys, monkeypatch):
    words, steps, *_ = kind

    def fail(*args):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(metrics._Table, "write", fail)
    run = str(tmp_path / "run")
    assert main.main(["train", *words, "--steps", str(steps), "--run-dir", run]) == 74
    line = capsys.readouterr().err.splitlines()[-1]
    assert "cannot write the metrics of the run: [Errno 28]" in line
    assert line.endswith("; free some space, then continue with the same --run-dir")
