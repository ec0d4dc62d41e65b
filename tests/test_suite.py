"""The suite's watcher: crashes and hangs end the run, leftovers fail it, and the output names them.

The scratch suites import no TensorFlow.
"""

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

ROOT = Path(__file__).parents[1]
pytestmark = pytest.mark.processes

# Runs beside the test that fails: a long test with a child process.
NEIGHBOUR = """
import subprocess, time
from pathlib import Path

def test_neighbour():
    child = subprocess.Popen(["sleep", "600"], start_new_session=True)
    Path("neighbour.pid").write_text(str(child.pid))
    time.sleep(600)
"""
# Waits until the neighbour runs, so that the run cannot end before the neighbour has begun.
WAITING = """
import ctypes, os, time
from pathlib import Path
import pytest

def wait():
    while not (Path("neighbour.pid").exists() and Path("neighbour.pid").read_text()):
        time.sleep(0.05)
"""
FAULTS = {
    "exit": "def test_exits(): wait(); os._exit(0)",
    # PyDLL holds the GIL, so that no thread of this process can end the test.
    "native": "@pytest.mark.timeout(3)\ndef test_blocks(): wait(); ctypes.PyDLL(None).sleep(600)",
}


class Scratch:
    """A run of the watcher on a scratch suite in its own folder."""

    def __init__(self, folder, files, *arguments):
        self.folder = folder
        (folder / "pytest.ini").write_text("[pytest]\ntimeout = 600\ntimeout_method = thread\n")
        for name, text in files.items():
            (folder / name).write_text(text)
        with (folder / "output").open("w") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.suite", "-p", "no:cacheprovider", *arguments],
                cwd=folder,
                env={
                    **os.environ,
                    "PYTHONPATH": str(ROOT),
                    "PYTHONDONTWRITEBYTECODE": "1",
                },
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    def finish(self):
        """Waits for the end; returns the exit status and the output."""
        status = self.process.wait(timeout=110)
        return status, (self.folder / "output").read_text()

    def neighbour_is_alive(self):
        path = self.folder / "neighbour.pid"
        if not path.exists() or not path.read_text():
            return False  # On a busy machine, a limit may pass before the neighbour begins.
        pid = int(path.read_text())
        return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE

    def kill(self):
        self.process.kill()
        self.process.wait()


@pytest.fixture
def scratch(tmp_path):
    """Returns a function that starts a run: `start(files, *arguments)`."""
    started = []

    def start(files, *arguments):
        started.append(Scratch(tmp_path, files, *arguments))
        return started[-1]

    yield start
    for run in started:
        run.kill()


@pytest.fixture(scope="module")
def ended_early(tmp_path_factory):
    """Yields runs that the watcher ends, by name; concurrent, because they mostly wait."""
    runs = {}
    for name, fault in FAULTS.items():
        files = {"test_a.py": WAITING + fault, "test_b.py": NEIGHBOUR}
        folder = tmp_path_factory.mktemp(name)
        # The neighbour's child stays.
        runs[name] = Scratch(folder, files, "--workers", "2", "--grace", "1")
    yield runs
    for run in runs.values():
        run.kill()


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_ends_the_run(ended_early, fault):
    run = ended_early[fault]
    # Takes 3 to 7 s on an idle machine; without the watcher, at least as long as the neighbour.
    status, output = run.finish()
    assert status not in (0, 5)
    name = FAULTS[fault].partition("def ")[2].partition("(")[0]
    assert f"test_a.py::{name}" in output
    if "timeout" in FAULTS[fault]:
        assert f"in {name}" in output  # The stacks.
    assert not run.neighbour_is_alive()


def test_the_deadline_ends_the_run(scratch):
    for seconds in (8, 16, 32):  # On a busy machine, a deadline may pass before the test begins.
        options = ("--workers", "2", "--deadline", str(seconds))
        run = scratch({"test_b.py": NEIGHBOUR}, *options)
        status, output = run.finish()
        assert status == 124
        assert f"suite: the run passed its deadline of {seconds} s" in output
        assert not run.neighbour_is_alive()
        if "in test_neighbour" in output:  # The stacks.
            return
    pytest.fail(output)


def test_leftovers_fail_the_run(scratch, tmp_path):
    test = f"""
import os, subprocess, sys
from pathlib import Path

def test_leaves_things():
    code = "import time, socket; s = socket.create_server(('127.0.0.1', 0)); "
    code += "print(flush=True); time.sleep(600)"
    child = subprocess.Popen(
        [sys.executable, "-c", code], start_new_session=True, stdout=subprocess.PIPE
    )
    child.stdout.readline()  # It listens.
    Path("/dev/shm/suite-test-{tmp_path.parent.name}-{os.getpid()}").touch()
"""
    left = Path(f"/dev/shm/suite-test-{tmp_path.parent.name}-{os.getpid()}")
    try:
        status, output = scratch({"test_a.py": test}, "--workers", "1", "--grace", "2").finish()
    finally:
        left.unlink(missing_ok=True)
    assert status == 1 and "1 passed" in output
    assert "started in test_a.py::test_leaves_things (call), listens on [" in output
    assert f"left behind: shared memory {left}" in output
