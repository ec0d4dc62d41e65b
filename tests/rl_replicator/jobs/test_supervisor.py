"""The supervisor with small programs instead of training."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rl_replicator.jobs import supervisor
from tests.suite.leftovers import is_alive

ROOT = Path(__file__).parents[3]
SUPERVISOR = (sys.executable, "-m", "rl_replicator.jobs")
# Counts the starts of each task in a file; tests append code for what the tasks do then.
PROGRAM = """
import json, os, pathlib, signal, socket, subprocess, sys, time
task = json.loads(os.environ["TF_CONFIG"])["task"]
name = f"{task['type']} {task['index']}"
file = pathlib.Path(sys.argv[1]) / name
starts = len(file.read_text().split()) + 1 if file.exists() else 1
new = file.with_name("." + name)  # Others look for the file: it must never be empty.
new.write_text((file.read_text() if file.exists() else "") + f"{os.getpid()}\\n")
new.replace(file)
print("start", starts)
def die(): os.kill(os.getpid(), signal.SIGKILL)
def freeze(): os.kill(os.getpid(), signal.SIGSTOP)
def wait(seconds=300): time.sleep(seconds)
def has_started(name):
    other = file.parent / name
    return other.exists() and len(other.read_text().split()) >= starts
def ready():
    new.write_text(str(os.getpid()))
    new.replace(file.with_name(f"{name} is ready"))
def deaf():
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    ready()
    wait()
def listen():
    address = json.loads(os.environ["TF_CONFIG"])["cluster"][task["type"]][task["index"]]
    server = socket.create_server(("", int(address.split(":")[1])))
    print("listens")
"""


@pytest.fixture
def run(tmp_path):
    """Returns a function that starts a job whose tasks run `PROGRAM` and then `code`."""
    running = []

    def start(code, *options, environment=None, command=SUPERVISOR):
        script = tmp_path / "program.py"
        script.write_text(PROGRAM + code)
        process = subprocess.Popen(
            [*command, *options, "--", sys.executable, str(script), str(tmp_path)],
            cwd=ROOT,
            env={**os.environ, **(environment or {})},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        running.append(process)
        return process

    yield start
    for process in running:
        if process.poll() is None:
            process.kill()
            process.wait()


def finished(process, timeout=100):
    output, _ = process.communicate(timeout=timeout)
    return process.returncode, output


def pids(folder, *names, timeout=60):
    """The process ids of the newest starts, once all the named tasks have started."""
    deadline = time.monotonic() + timeout
    while not all((folder / name).exists() and (folder / name).read_text() for name in names):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return [int((folder / name).read_text().split()[-1]) for name in names]


def starts(folder, name):
    return len((folder / name).read_text().split())


def all_gone(numbers):
    return not any(map(is_alive, numbers))


@pytest.mark.processes
def test_a_job_that_succeeds(run, tmp_path):
    status, output = finished(run("listen()", "--workers", "2"))
    assert status == 0
    lines = output.splitlines()
    for name in ("worker 0", "worker 1"):
        mine = [line for line in lines if line.startswith(name)]
        assert mine == [f"{name} | start 1", f"{name} | listens"]
    assert starts(tmp_path, "worker 0") == starts(tmp_path, "worker 1") == 1


@pytest.mark.processes
def test_all_are_started_again_when_one_ends_badly_but_not_for_ever(run, tmp_path):
    """Also the one that is frozen."""
    code = """
if name == "worker 1":
    while not has_started("worker 0"): time.sleep(0.02)  # Or that would begin again at 1.
    sys.exit(75) if starts == 2 else die()
freeze()
"""
    status, output = finished(run(code, "--workers", "2", "--max-restarts", "2"))
    assert status == 137, output
    assert starts(tmp_path, "worker 0") == starts(tmp_path, "worker 1") == 3
    for told in ("was killed by SIGKILL; restart 1 of 2 in 1 s", "another process; restart 2 of 2"):
        assert re.search(rf"supervisor \| worker 1 failed: .*{told}", output)
    assert "worker 1 was killed by SIGKILL; not restarting" in output


@pytest.mark.processes
def test_a_stopped_task_is_started_again(run, tmp_path):
    status, output = finished(run("if starts < 2: freeze()", "--workers", "1"))
    assert status == 0, output
    assert starts(tmp_path, "worker 0") == 2
    assert "ProcessDied: no sign of life for 5 s; killed; restart 1 of 5" in output


@pytest.mark.processes
def test_the_cause_is_named_and_not_who_lost_it(run):
    code = """
if task["index"]: sys.exit(3)
while not (other := file.with_name("worker 1")).exists(): time.sleep(0.02)
stat = pathlib.Path(f"/proc/{other.read_text().split()[-1]}/stat")
try:
    while stat.read_text().rpartition(")")[2].split()[0] not in "ZX": time.sleep(0.02)
except OSError: pass  # Nothing is left of it.
sys.exit(75)
"""
    status, output = finished(run(code, "--workers", "2", "--max-restarts", "0"))
    assert status == 3
    assert "worker 1 ended with status 3; not restarting" in output


@pytest.mark.processes
@pytest.mark.parametrize("expected", [2, 74])
def test_wrong_arguments_and_a_full_disk_are_not_tried_again(run, tmp_path, expected):
    code = f"if name == 'worker 1': sys.exit({expected})\nwait()"
    status, output = finished(run(code, "--workers", "2"))
    assert status == expected
    assert f"worker 1 ended with status {expected} (see its error); not restarting" in output
    assert starts(tmp_path, "worker 1") == 1


def ready(folder, *names):
    """Waits until the named tasks are `ready`; returns their process ids."""
    return pids(folder, *(f"{name} is ready" for name in names))


@pytest.mark.processes
def test_a_terminal_that_is_closed_gives_the_tasks_time_to_save(run, tmp_path):
    code = """
def save(*_):
    time.sleep(0.5)
    (file.parent / f"{name} has saved").touch()
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
ready()
wait()"""
    process = run(code, "--workers", "2")
    tasks = ready(tmp_path, "worker 0", "worker 1")
    process.send_signal(signal.SIGHUP)
    while "SIGHUP: stopping" not in (line := process.stdout.readline()):
        assert line, "it has ended"
    process.send_signal(signal.SIGHUP)  # Sent by the kernel, and then by the shell.
    status, text = finished(process)
    assert status == 128 + signal.SIGHUP and "killed" not in text
    assert all((tmp_path / f"worker {i} has saved").exists() for i in (0, 1))
    assert all_gone(tasks)


@pytest.mark.processes
def test_parameter_servers_are_there_while_the_chief_saves(run, tmp_path):
    code = """
def end(*_):
    if task["type"] == "chief":
        time.sleep(0.5)
        is_first = not (file.parent / "ps 0 ends").exists()
        (file.parent / "saved").write_text("whole" if is_first else "without variables")
    (file.parent / f"{name} ends").touch()
    sys.exit(0)
signal.signal(signal.SIGTERM, end)
ready()
wait()"""
    process = run(code, "--workers", "1", "--parameter-servers", "1")
    tasks = ready(tmp_path, "chief 0", "worker 0", "ps 0")
    process.send_signal(signal.SIGTERM)
    status, text = finished(process)
    assert status == 128 + signal.SIGTERM and "killed" not in text
    assert (tmp_path / "saved").read_text() == "whole" and (tmp_path / "ps 0 ends").exists()
    assert all_gone(tasks)


@pytest.mark.processes
def test_a_second_signal_kills_at_once(run, tmp_path):
    process = run("deaf()", "--workers", "2")
    tasks = ready(tmp_path, "worker 0", "worker 1")
    process.send_signal(signal.SIGINT)
    while "SIGINT: stopping" not in (line := process.stdout.readline()):
        assert line, "it has ended"
    time.sleep(0.6)  # Two in quick succession count as one.
    process.send_signal(signal.SIGINT)
    status, text = finished(process)
    assert status == 128 + signal.SIGINT
    assert "supervisor | SIGINT again: killing all nodes" in text
    assert all_gone(tasks)


@pytest.mark.processes
def test_parameter_servers_end_with_the_chief_and_workers_are_replaced(run, tmp_path):
    code = """
if task["type"] == "worker" and starts == 1: die()
if task["type"] != "chief":
    listen()
    (file.parent / f"{name} listens {starts}").touch()
    wait()
def is_back(worker): return (file.parent / f"{worker} listens 2").exists()
while not (is_back("worker 0") and is_back("worker 1")): time.sleep(0.05)
"""
    options = ("--workers", "2", "--parameter-servers", "1", "--max-restarts", "1")
    process = run(code, *options)
    status, output = finished(process)
    assert status == 0, output
    names = ("chief 0", "worker 0", "worker 1", "ps 0")
    assert [starts(tmp_path, name) for name in names] == [1, 2, 2, 1]
    for worker in ("worker 0", "worker 1"):  # The failures of one do not count for the other.
        assert f"{worker} failed: ProcessDied: was killed by SIGKILL; restart 1 of 1" in output
    assert "worker 1 | listens" in output  # On its old port.
    assert all_gone(pids(tmp_path, *names))


@pytest.mark.processes
def test_a_parameter_server_takes_the_whole_job_with_it(run, tmp_path):
    code = """
if starts == 1 and task["type"] != "ps": wait()
while not (has_started("chief 0") and has_started("worker 0")): time.sleep(0.05)
if starts == 1: die()
"""
    status, output = finished(run(code, "--workers", "1", "--parameter-servers", "1"))
    assert status == 0, output
    assert starts(tmp_path, "chief 0") == starts(tmp_path, "worker 0") == 2


@pytest.mark.processes
def test_one_of_several_machines(run, tmp_path):
    config = {
        "cluster": {"worker": ["10.0.0.1:2222", "10.0.0.2:2222"]},
        "task": {"type": "worker", "index": 1},
    }
    process = run("if starts < 2: die()", environment={"TF_CONFIG": json.dumps(config)})
    status, output = finished(process)
    assert status == 0 and starts(tmp_path, "worker 1") == 2
    assert "worker 1 | start 2" in output


@pytest.mark.parametrize(
    ("options", "config", "message"),
    [
        ("", None, "expected --workers, or TF_CONFIG in the environment, got neither"),
        ("--parameter-servers 1", None, "expected --workers with --parameter-servers"),
        ("--workers 1", "{}", "expected either --workers or TF_CONFIG"),
        ("", "{", "expected TF_CONFIG such as"),
        ("--workers 0", None, "expected a number from 1, got '0'"),
    ],
)
def test_misuse(monkeypatch, capsys, options, config, message):
    monkeypatch.setenv("TF_CONFIG", config or "")
    try:
        status = supervisor.main([*options.split(), "--", "true"])
    except SystemExit as error:  # Of argparse.
        status = error.code
    assert status == 2 and message in capsys.readouterr().err


@pytest.mark.processes
@pytest.mark.usefixtures("sigint_ignored")
def test_an_ignored_ctrl_c_does_not_end_a_job():
    program = ["sh", "-c", f"kill -INT {os.getpid()}"]
    assert supervisor.main(["--workers", "1", "--", *program]) == 0
    assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN
