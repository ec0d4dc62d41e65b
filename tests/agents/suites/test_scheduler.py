"""What a suite's own errors do to its runs."""

import os

import pytest

from agents.suites.progress import RunStatus, State
from agents.suites.scheduler import Scheduler
from agents.suites.tasks import runs
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
@pytest.mark.usefixtures("sigint_ignored")
def test_an_ignored_ctrl_c_does_not_end_a_suite(tmp_path):
    (one,) = runs(["a:b"], 1)
    status = RunStatus(one, tmp_path / "run")
    command = ["sh", "-c", f"kill -INT {os.getpid()}"]
    scheduler = Scheduler(lambda _: command, tmp_path, 1, lambda _: None, lambda: None)
    assert scheduler.run([status]) is None
    assert status.state is State.DONE
