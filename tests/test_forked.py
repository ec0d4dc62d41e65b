"""To their callers, programs in forks behave like new interpreters."""

import os
import pathlib
import signal
import subprocess
import sys
import time

import psutil
import pytest

from tests.suite import forked

ROOT = pathlib.Path(__file__).parents[1]


def start(*arguments, **options):
    return subprocess.Popen(
        [*forked.python(), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )


def test_its_surroundings_are_those_of_a_new_interpreter(tmp_path):
    text = """
import os, sys, tempfile
print(tempfile.gettempdir())
print(__name__, __file__ if "__file__" in globals() else None, sys.argv, sys.path[:2])
flags = sys.flags
print(flags.isolated, flags.ignore_environment, flags.no_user_site, flags.safe_path, flags.no_site)
print(os.getcwd(), os.environ["WORD"], "HOME" in os.environ, sys.stdin.read())
print("to the other stream", file=sys.stderr)
sys.exit(7)
"""
    (tmp_path / "program.py").write_text(text)
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__main__.py").write_text(text)
    environment = {"WORD": "hello", "PYTHONPATH": "/somewhere", "PATH": os.environ["PATH"]}
    environment["TMPDIR"] = str(tmp_path)
    for command in (["-c", text], ["program.py", "a"], ["-m", "package", "a", "-b"]):
        found = [
            subprocess.run(
                [*python, *command],
                cwd=tmp_path,
                env=environment,
                input="typed",
                capture_output=True,
                text=True,
            )
            for python in (forked.python(), (sys.executable,))
        ]
        fork, new = ((done.returncode, done.stdout, done.stderr) for done in found)
        assert fork == new and fork[0] == 7 and "hello" in fork[1]


def test_tensorflow_is_there_and_unused():
    """Its devices can still be configured."""
    code = """
import sys
assert "tensorflow" in sys.modules
import tensorflow as tf
(cpu,) = tf.config.list_physical_devices("CPU")
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 3)
print(len(tf.config.list_logical_devices()))
"""
    assert start("-c", code).communicate(timeout=60)[0] == "3\n"


def test_nothing_of_this_project_is_loaded():
    names = ("agents", "environments", "launchpad", "rl_replicator", "tests")
    process = start("-c", f"import sys; print([n for n in {names} if n in sys.modules])")
    assert process.communicate(timeout=60)[0] == "[]\n"


WAITING = """
import time
try:
    print("begun", flush=True)
    while True:  # Python handles a signal just before a sleep only after it.
        time.sleep(0.05)
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_signals_reach_it(number):
    process = start("-c", WAITING)
    assert process.stdout.readline() == "begun\n"
    program = psutil.Process(forked.program(process))
    process.send_signal(number)
    out, _ = process.communicate(timeout=60)
    if number == signal.SIGINT:
        assert (process.returncode, out) == (0, "interrupted\n")
    else:
        assert process.returncode == -number
    deadline = time.monotonic() + 30
    while program.is_running() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not program.is_running()


def test_processes_share_a_server(tmp_path, monkeypatch):
    """The server ends when the context does, and not before."""
    quick = "import fork_server\nfork_server.PRELOADED = ('numpy',)\n"
    monkeypatch.setattr(forked, "_SERVER", forked._SERVER.replace("import fork_server\n", quick))
    monkeypatch.setattr(forked, "_servers", [])
    with forked.shared(tmp_path / "forked") as variables:
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        parents = []
        for _ in range(2):  # Each process has not used the server before.
            monkeypatch.delenv(forked.client.ADDRESS, raising=False)
            parents.append(start("-c", "import os; print(os.getppid())").communicate(timeout=60)[0])
        (server,) = forked._servers
        assert parents == [f"{server.pid}\n"] * 2 and server.poll() is None
    assert server.wait(60) == 0
