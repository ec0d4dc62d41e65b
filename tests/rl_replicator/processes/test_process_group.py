"""Groups of small processes: their ends, and what the leaders have started."""

import os
import signal

import pytest

from rl_replicator.processes.process_group import UNKNOWN_STATUS, ProcessGroup
from tests.suite.leftovers import is_alive
from tests.waiting import wait_until


def start(tmp_path, script):
    """Starts a shell that runs `script`."""
    with (tmp_path / "output").open("wb") as output:
        return ProcessGroup.start(["sh", "-c", script], dict(os.environ), output)


@pytest.mark.processes
def test_a_pipe_whose_reader_has_ended_ends_its_writer(tmp_path):
    assert start(tmp_path, "kill -PIPE $$; exit 3").wait() == -signal.SIGPIPE
    assert start(tmp_path, "yes | head -1").wait() == 0
    assert (tmp_path / "output").read_text() == "y\n"


@pytest.mark.processes
def test_a_process_knows_that_it_is_supervised(tmp_path):
    assert start(tmp_path, 'test "$RL_REPLICATOR_SUPERVISED"').wait() == 0


@pytest.mark.processes
@pytest.mark.usefixtures("sigint_ignored")
def test_sigint_ends_what_a_process_that_ignores_it_starts(tmp_path):
    assert start(tmp_path, "kill -INT $$; exit 3").wait() == -signal.SIGINT


@pytest.mark.processes
@pytest.mark.parametrize(
    ("script", "code"), [("exit 0", 0), ("exit 3", 3), ("kill -KILL $$", -signal.SIGKILL)]
)
def test_the_end_of_the_leader(tmp_path, script, code):
    # A parent that ignores its children, as this process may inherit it, gets no statuses.
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        group = start(tmp_path, script)
    finally:
        signal.signal(signal.SIGCHLD, before)
    assert group.wait() == group.poll() == code
    group.send_signal(signal.SIGTERM)
    group.kill()  # Neither signals another process.
    assert group.wait() == code


@pytest.mark.processes
@pytest.mark.parametrize(("script", "code"), [("exit 3", 3), ("wait", -signal.SIGKILL)])
def test_what_the_leader_has_started_ends_with_it(tmp_path, script, code):
    group = start(tmp_path, f"sleep 1000 & echo $!; {script}")
    output = tmp_path / "output"
    child = int(wait_until(output.read_text))
    if code < 0:
        group.kill()
    assert group.wait() == code
    wait_until(lambda: not is_alive(child))


@pytest.mark.processes
def test_a_leader_that_a_signal_has_stopped(tmp_path):
    group = start(tmp_path, "sleep 1000")
    assert not group.is_stopped
    group.send_signal(signal.SIGSTOP)
    wait_until(lambda: group.is_stopped)
    group.send_signal(signal.SIGCONT)
    wait_until(lambda: not group.is_stopped)
    assert group.poll() is None
    group.kill()
    assert group.wait() == -signal.SIGKILL
    assert not group.is_stopped


@pytest.mark.processes
@pytest.mark.parametrize("name", ["wait", "poll"])
def test_a_status_that_is_lost_is_an_end(tmp_path, name):
    """Other code, such as a SIGCHLD handler, has already reaped the process."""
    group = start(tmp_path, "exit 0")
    os.waitpid(group.pid, 0)
    group.send_signal(signal.SIGTERM)
    assert getattr(group, name)() == UNKNOWN_STATUS
    assert group.poll() == UNKNOWN_STATUS


@pytest.mark.processes
def test_a_command_that_does_not_exist(tmp_path):
    with (tmp_path / "output").open("wb") as output:
        group = ProcessGroup.start(["no-such"], dict(os.environ), output)
    assert group.wait() == 2
    assert "expected an executable command, got 'no-such'" in (tmp_path / "output").read_text()
