"""The lock of a run."""

import fcntl
import os
from pathlib import Path

import pytest

from rl_replicator.errors import UsageError
from rl_replicator.runs import run_directory
from rl_replicator.runs.run_directory import RunDirectory


def test_a_look_at_the_lock_does_not_refuse_a_run(tmp_path, monkeypatch):
    run = RunDirectory(tmp_path)
    with run.locked():
        assert run.is_live
    sleep, lock = run_directory.time.sleep, os.open(tmp_path / ".lock", os.O_RDWR)
    fcntl.flock(lock, fcntl.LOCK_SH)

    def look_away(seconds):
        fcntl.flock(lock, fcntl.LOCK_UN)
        sleep(seconds)

    monkeypatch.setattr(run_directory.time, "sleep", look_away)
    with run.locked():
        assert run.is_live
        with pytest.raises(UsageError, match="another process trains in"), run.locked():
            pass
    os.close(lock)


def test_a_run_has_ended_whatever_it_has_forked(tmp_path):
    run = RunDirectory(tmp_path)
    with run.locked():
        path = str((tmp_path / ".lock").resolve())
        (number,) = (n for n in os.listdir("/proc/self/fd") if _target(n) == path)
        copy = os.dup(int(number))  # As in a child process.
    assert not run.is_live
    os.close(copy)


def _target(number):
    try:
        return os.readlink(Path("/proc/self/fd") / number)
    except FileNotFoundError:  # That of the directory that was listed.
        return None
