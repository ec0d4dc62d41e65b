"""The launching process: signals, its death, and the environment and output of its nodes."""

from __future__ import annotations

import os
import pathlib
import re
import signal
import subprocess
import sys
import time

import psutil
import pytest

import launchpad as lp
from tests.launchpad import programs
from tests.waiting import run_python

_SCRIPT = pathlib.Path(__file__).with_name("launcher.py")
_ROOT = _SCRIPT.parents[2]
# What is logged every ten seconds on a machine that is slow to start processes.
_WAITS = re.compile(r"^.*: waiting for (?:Ray|the server of|the address of) .*\n", re.MULTILINE)


class _Launcher:
    """A child process that launches the program of launcher.py."""

    def __init__(self, engine: str, scenario: str, path: pathlib.Path):
        self.path = path
        self.process = subprocess.Popen(
            [sys.executable, str(_SCRIPT), engine, scenario, str(path)],
            env={**os.environ, "PYTHONPATH": str(_ROOT)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd="/",
        )

    def lines(self) -> list[str]:
        return self.path.read_text().splitlines() if self.path.exists() else []

    def wait_for_start(self, num_workers: int = 2) -> list[psutil.Process]:
        """Waits until all workers have written; returns the node processes."""
        deadline = time.monotonic() + 110
        while sum(line.startswith("started") for line in self.lines()) < num_workers:
            assert time.monotonic() < deadline and self.process.poll() is None
            time.sleep(0.02)
        return psutil.Process(self.process.pid).children(recursive=True)

    def finish(self) -> tuple[int, str]:
        """Returns its exit status and what it has printed, but for the waits for slow starts."""
        output, _ = self.process.communicate(timeout=100)
        return self.process.returncode, _WAITS.sub("", output)


@pytest.fixture
def launch_script(tmp_path):
    launchers = []

    def start(engine: str, scenario: str) -> _Launcher:
        launchers.append(_Launcher(engine, scenario, tmp_path / "notes"))
        return launchers[-1]

    yield start
    for launcher in launchers:
        if launcher.process.poll() is None:
            launcher.process.kill()
            launcher.process.wait()


def _all_gone(processes: list[psutil.Process], timeout: float) -> bool:
    """Returns whether all have ended; an orphan may remain as a zombie until init reaps it."""
    _, alive = psutil.wait_procs(processes, timeout=timeout)
    return all(process.status() == psutil.STATUS_ZOMBIE for process in alive)


@pytest.mark.parametrize("scenario", ["fail-first", "fail-polled"])
def test_the_end_of_the_script_waits_for_all_and_tells_a_failure(launch_script, scenario):
    launcher = launch_script("local_mt", scenario)
    status, output = launcher.finish()
    assert status == 1
    assert output.rstrip().splitlines()[-1].endswith("is broken")
    assert 'raise ValueError(f"worker {index} is broken")' in output
    assert "node worker/" in output
    assert launcher.lines().count("done") == (2 if scenario == "fail-first" else 0)


def test_classes_of_the_main_script_are_the_same_in_all_processes(launch_script):
    launcher = launch_script("local_mp", "catch")
    status, output = launcher.finish()
    assert (status, output) == (0, "")
    assert launcher.lines().count("caught: the note is empty") == 2
    # Previously, each call reset the class's counter.
    counts = [line.split()[1] for line in launcher.lines() if line.startswith("received:")]
    assert max(map(int, counts)) >= 6


def test_a_script_that_fails_stops_its_program(launch_script):
    launcher = launch_script("local_mt", "crash")
    status, output = launcher.finish()
    assert status == 1
    assert output.rstrip().splitlines()[-1] == "KeyError: 'the script has a fault'"


@pytest.mark.parametrize(
    ("engine", "number"),
    [("local_mt", signal.SIGHUP), ("local_mp", signal.SIGINT), ("ray", signal.SIGTERM)],
)
def test_a_signal_lets_nodes_save_and_ends_all(launch_script, engine, number):
    launcher = launch_script(engine, "save")
    nodes = launcher.wait_for_start()
    launcher.process.send_signal(number)
    status, output = launcher.finish()
    assert status == 0
    assert output.startswith(f"{number.name}: stopping")
    assert launcher.lines()[2:] == ["saved", "saved"]
    assert _all_gone(nodes, timeout=60)


def test_a_signal_stops_programs_that_other_threads_have_launched(launch_script):
    launcher = launch_script("local_mt", "save-twice")
    launcher.wait_for_start(4)
    launcher.process.send_signal(signal.SIGTERM)
    status, _ = launcher.finish()
    assert status == 0
    assert launcher.lines()[4:] == ["saved"] * 4


@pytest.mark.parametrize(
    ("scenario", "number"), [("graceful", signal.SIGINT), ("graceful-waiting", signal.SIGQUIT)]
)
def test_a_script_that_exits_gracefully_stops_its_programs(launch_script, scenario, number):
    launcher = launch_script("local_mt", scenario)
    launcher.wait_for_start(3)
    launcher.process.send_signal(number)
    status, output = launcher.finish()
    assert status == 0
    assert output.splitlines() == [f"{number.name} received, exiting", "the end"]


def test_a_second_ctrl_c_ends_at_once_even_threads(launch_script):
    launcher = launch_script("local_mt", "deaf")
    launcher.wait_for_start()
    launcher.process.send_signal(signal.SIGINT)
    while "SIGINT: stopping" not in (line := launcher.process.stdout.readline()):
        assert line, "it has ended"
    time.sleep(0.6)  # Two in quick succession count as one.
    assert launcher.process.poll() is None
    launcher.process.send_signal(signal.SIGINT)
    status, output = launcher.finish()  # The first alone kills after 300 s.
    assert status == 1 and "KeyboardInterrupt" in output


@pytest.mark.parametrize(("engine", "scenario"), [("local_mp", "parents"), ("ray", "deaf")])
def test_no_process_outlives_a_killed_launcher(launch_script, engine, scenario):
    launcher = launch_script(engine, scenario)
    nodes = launcher.wait_for_start()
    assert sum(process.name() == "sleep" for process in nodes) == 2 * (scenario == "parents")
    assert len(nodes) >= 3
    launcher.process.kill()
    assert _all_gone(nodes, timeout=60)


@pytest.mark.parametrize(
    ("engine", "told"),
    [
        ("local_mp", "ProcessDied: the process was killed by SIGKILL"),
        ("ray", "ProcessDied: Ray says: Worker unexpectedly exits"),
    ],
)
def test_a_killed_node_ends_the_program(launch_script, engine, told):
    launcher = launch_script(engine, "save")
    nodes = launcher.wait_for_start()
    victim = psutil.Process(int(launcher.lines()[0].split()[1]))
    victim.kill()
    status, output = launcher.finish()
    assert status == 1
    assert told in output.splitlines()[-1] and "node worker/" in output.splitlines()[-1]
    assert "saved" in launcher.lines()
    assert _all_gone(nodes, timeout=60)


def test_a_script_with_absl_flags():
    script = str(_SCRIPT.with_name("absl_main.py"))
    words = ("--lp_launch_type=local_mp", "--word=hello", "--mode=quiet")
    done = run_python(script, *words, PYTHONPATH=str(_ROOT))
    assert (done.returncode, done.stderr) == (0, "")
    lines = sorted(line.rpartition("] ")[2] for line in done.stdout.splitlines())
    assert lines == ["hello 2 True", "hello 2 True"]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("--word=hello -v --lp_termination_notice_secs 3", "3 1 hello"),
        ("-v --word=hello --number=four", "flag --number=four"),
        ("--number=4", "Flag --word must have a value"),
    ],
)
def test_a_script_that_does_not_parse_absl_flags(words, told):
    """absl.logging defines `-v`, which the script may use as an option of its own."""
    code = """
import absl.logging
from absl import flags
import launchpad as lp

flags.DEFINE_string("word", None, "A flag of the script.", required=True)
flags.DEFINE_integer("number", 1, "Another one.")

def node():
    found = flags.FLAGS
    print(found.lp_termination_notice_secs, found.number, found.word)

lp.launch(lp.make_program(lp.PyNode(node)))
"""
    done = run_python("-c", code, *words.split(), PYTHONPATH=str(_ROOT))
    assert told in done.stdout + done.stderr
    is_read = told.endswith("hello")
    assert ("this command line: Missing value for flag -v" in done.stderr) == (told[:3] == "3 1")
    assert done.returncode == (0 if is_read else 1)


def test_output_of_processes(monkeypatch, capfd, caplog):
    monkeypatch.setenv("LAUNCHPAD_LAUNCH_LOCAL_TERMINAL", "output_to_files")
    lp.launch(lp.make_program(lp.PyNode(programs.print_lines)), "test_mp").wait(timeout=60)
    out, err = capfd.readouterr()
    assert out == "[node/0] first line\n[node/0] second line\n"
    assert err == "[node/0] unfinished\n"
    assert "terminal='output_to_files': output goes to this terminal instead" in caplog.text
