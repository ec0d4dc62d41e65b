"""The guard, while a fork of this process holds its input open."""

import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from rl_replicator.processes import guard
from tests.suite.leftovers import is_alive

LAUNCHER = """
import os, subprocess, time
from rl_replicator.processes.guard import Guard
watched = subprocess.Popen(["sleep", "600"], start_new_session=True)
Guard().watch(watched.pid)
forked = os.fork()
if forked:
    print(watched.pid, forked, flush=True)
time.sleep(600)
"""


def start_guard():
    watchman = guard.Guard()
    watchman.watch(2**22)  # No process has this number.
    return watchman


@pytest.mark.processes
def test_it_ends_although_its_input_stays_open(monkeypatch):
    monkeypatch.setattr(guard, "_SECONDS_TO_END", 110.0)
    watchman = start_guard()
    copy = os.dup(watchman._process.stdin.fileno())
    closing = threading.Thread(target=watchman.close)
    closing.start()
    closing.join(100)
    has_closed = not closing.is_alive()
    os.close(copy)
    closing.join()
    assert has_closed


@pytest.mark.processes
def test_it_ends_although_it_is_frozen(monkeypatch):
    monkeypatch.setattr(guard, "_SECONDS_TO_END", 0.1)
    watchman = start_guard()
    os.kill(watchman._process.pid, signal.SIGSTOP)
    closing = threading.Thread(target=watchman.close, daemon=True)
    closing.start()
    closing.join(60)
    assert not closing.is_alive()


@pytest.mark.processes
@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="the kernel has no such descriptors")
def test_it_kills_when_its_process_dies_although_its_input_stays_open():
    launcher = subprocess.Popen([sys.executable, "-c", LAUNCHER], stdout=subprocess.PIPE, text=True)
    watched, forked = map(int, launcher.stdout.readline().split())
    launcher.kill()
    launcher.wait()
    deadline = time.monotonic() + 60
    while is_alive(watched) and time.monotonic() < deadline:
        time.sleep(0.02)
    was_killed = not is_alive(watched)
    os.kill(forked, signal.SIGKILL)
    launcher.stdout.close()
    assert was_killed
