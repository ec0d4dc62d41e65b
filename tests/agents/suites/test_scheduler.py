"""How errors of a suite itself affect its runs."""

import os

import pytest

from agents.suites.progress import RunStatus, State
from agents.suites.scheduler import Scheduler
from agents.suites.tasks import runs
from rl_replicator.errors import DiskError
from tests.rl_replicator.jobs.endless_run import endless_run


@pytest.mark.processes
def test_runs_save_after_an_error_of_the_suite(tmp_path):
    (one,) = runs(["a:b"], 1)
    status = RunStatus(one, tmp_path / "run")
    command, is_ready, has_saved = endless_run(tmp_path)

    def look():
        if is_ready():
            raise OSError("No space left on device")

    scheduler = Scheduler(lambda _: command, tmp_path / "logs", 1, lambda _: None, look)
    with pytest.raises(OSError, match="No space left"):
        scheduler.run([status])
    assert has_saved()


@pytest.mark.processes
def test_a_full_disk_ends_the_suite_and_fails_no_run(tmp_path):
    statuses = [RunStatus(one, tmp_path / one.name) for one in runs(["a:b"], 3)]
    words, _, has_saved = endless_run(tmp_path)
    wait = f"until [ -e {tmp_path / 'is_ready'} ]; do sleep 0.05; done"
    full = ["sh", "-c", f"{wait}; echo no space left; exit 74"]
    commands = {1: words, 2: full, 3: ["touch", tmp_path / "has_begun"]}
    scheduler = Scheduler(
        lambda status: commands[status.run.seed], tmp_path, 2, lambda _: None, lambda: None
    )
    told = r"a:b.* 2.* ended with status 74: no space left .*the same command continues the suite"
    with pytest.raises(DiskError, match=told):
        scheduler.run(statuses)
    assert State.FAILED not in [status.state for status in statuses]
    assert has_saved() and not (tmp_path / "has_begun").exists()


@pytest.mark.processes
@pytest.mark.usefixtures("sigint_ignored")
def test_an_ignored_ctrl_c_does_not_end_a_suite(tmp_path):
    (one,) = runs(["a:b"], 1)
    status = RunStatus(one, tmp_path / "run")
    command = ["sh", "-c", f"kill -INT {os.getpid()}"]
    scheduler = Scheduler(lambda _: command, tmp_path, 1, lambda _: None, lambda: None)
    assert scheduler.run([status]) is None
    assert status.state is State.DONE
