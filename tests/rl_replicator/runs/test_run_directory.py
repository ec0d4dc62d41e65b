"""The directory of a run and its lock."""

import contextlib
import errno
import fcntl
import os
from pathlib import Path

import pytest

from rl_replicator.errors import UsageError
from rl_replicator.runs import run_directory
from rl_replicator.runs.run_directory import RunDirectory, choose


def test_a_look_at_the_lock_does_not_refuse_a_run(tmp_path, monkeypatch):
    run, sleep = RunDirectory(tmp_path), run_directory.time.sleep
    lock = os.open(tmp_path / ".lock", os.O_RDWR | os.O_CREAT)
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
        assert (tmp_path / ".lock").stat().st_mode & 0o777 == 0o600, "others could lock it, too"
        (number,) = (n for n in os.listdir("/proc/self/fd") if _target(n) == path)
        copy = os.dup(int(number))  # As in a child process.
    assert not run.is_live
    os.close(copy)


def test_a_file_system_without_locks_is_refused(tmp_path, monkeypatch):
    def flock(lock, operation):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", flock)
    expected = "locks .flock. for .*No locks available; choose a --run-dir on another"
    with pytest.raises(UsageError, match=expected), RunDirectory(tmp_path / "run").locked():
        pass


def test_settings_that_only_the_code_or_the_run_has(tmp_path):
    run = RunDirectory(tmp_path)
    run.describe("agent", {"config": {"a": 1, "gone": 2}}, {})
    match = r"\(config.b was absent and is now 0.0; config.gone was 2 and is now absent\); use its"
    with (
        pytest.raises(UsageError, match=match),
        run.opened("agent", {"config": {"a": 1, "b": 0.0}}),
    ):
        pass


def new(root):
    return choose(root, "task", "agent", {}, None, resume=False)


def test_runs_that_start_together_have_directories_of_their_own(tmp_path):
    root = tmp_path / "runs" / "agent"
    with new(root) as one, new(root) as two:
        assert [run.path.name for run in (one, two)] == ["task-1", "task-2"]
        for run in (one, two):
            with run.opened("agent", {}) as exists:
                assert not exists


def test_runs_on_a_disk_that_is_not_there(tmp_path):
    (tmp_path / "runs").symlink_to(tmp_path / "not-mounted")
    with pytest.raises(UsageError, match="cannot write"), new(tmp_path / "runs"):
        pass


def test_a_run_that_is_refused_leaves_nothing(tmp_path):
    with pytest.raises(UsageError, match="refused"), new(tmp_path / "runs"):
        raise UsageError("refused")
    assert not any(tmp_path.iterdir())
    with pytest.raises(UsageError, match="failed"), new(tmp_path / "runs") as run:
        run.describe("agent", {}, {})
        raise UsageError("failed")
    assert run.exists


@contextlib.contextmanager
def no_superuser():
    """Drops the privileges of root, who may read all files."""
    user = os.geteuid()
    if user == 0:
        os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(user)


def test_what_cannot_be_read_hides_no_other_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # Relative paths, as other users may not enter its parents.
    tmp_path.chmod(0o755)
    for name in ("broken", "good", "secret"):
        (tmp_path / name).mkdir()
        RunDirectory(Path(name)).describe("agent", {"name": name}, {})
    (tmp_path / "broken" / "config.json").write_text("{")
    os.utime(tmp_path / "good" / "config.json", (0, 0))  # Older than the broken one.
    secret = tmp_path / "secret"
    secret.chmod(0)
    with no_superuser():
        found = [run.path.name for run in run_directory.runs(Path())]
        with choose(Path(), "x", "agent", {"name": "good"}, None, resume=True) as run:
            assert run.path == Path("good")
        with pytest.raises(UsageError, match="cannot read the run directory secret: .*Permission"):
            RunDirectory(Path("secret")).exists  # noqa: B018 - the property raises.
        assert run_directory.runs(Path("secret")) == []
    assert found == ["broken", "good"]


def _target(number):
    try:
        return os.readlink(Path("/proc/self/fd") / number)
    except FileNotFoundError:  # The descriptor of the listed folder.
        return None
