"""Nodes and launchers that die, freeze, or receive signals from other processes."""

from __future__ import annotations

import atexit
import os
import pathlib
import signal
import subprocess
import threading
import time

import pytest

import launchpad as lp
from launchpad import errors
from launchpad.engines import channel
from launchpad.engines import supervisor as lp_supervisor
from rl_replicator.processes import guard
from tests.launchpad import programs
from tests.suite.leftovers import is_alive
from tests.waiting import wait_until


class _Parent:
    """Starts a process that inherits its output, and writes the process ids of both."""

    def __init__(self, path):
        self._child = subprocess.Popen(["sleep", "1000"])
        with pathlib.Path(path).open("a") as file:
            file.write(f"{os.getpid()} {self._child.pid}\n")

    def run(self):
        lp.wait_for_stop()


@pytest.mark.processes
def test_a_node_comes_back_and_its_children_go(tmp_path, monkeypatch):
    """When killed, terminated by another process, or frozen; the program continues each time."""
    path = tmp_path / "pids"
    path.touch()
    program = lp.Program("family")
    program.add_node(lp.PyClassNode(_Parent, str(path)), label="parent")
    # Safe on a busy machine: a node that merely gets no processor time does not count as stopped,
    # so only the longer limit of its policy applies to it.
    monkeypatch.setattr(lp_supervisor, "_STOPPED_SECS", 1.0)
    policy = lp.RestartPolicy(initial_backoff_secs=0.1)
    manager = lp.launch(program, "test_mp", restart_policies={"parent": policy})

    def incarnations(count):
        rows = [tuple(map(int, line.split())) for line in path.read_text().splitlines()]
        return rows if len(rows) >= count and len(rows[-1]) == 2 else None

    numbers = (signal.SIGKILL, signal.SIGTERM, signal.SIGSTOP)
    for count, number in enumerate(numbers, start=1):
        node, child = wait_until(lambda count=count: incarnations(count))[-1]
        assert is_alive(node) and is_alive(child)
        os.kill(node, number)
        wait_until(lambda: not is_alive(node) and not is_alive(child))  # noqa: B023
    (*_, (_, last)) = wait_until(lambda: incarnations(4))
    assert not manager.wait(timeout=0.5) and manager.signal_number is None
    manager.stop_and_wait()
    wait_until(lambda: not is_alive(last))


class _Stuck:
    """Kills itself from a thread, because its code does not return."""

    def __init__(self, path):
        self._path = pathlib.Path(path)
        self._kill = lp.make_node_killer()

    def run(self):
        with self._path.open("a") as file:
            file.write(f"{os.getpid()}\n")
        if len(self._path.read_text().split()) < 3:
            threading.Timer(0.1, self._kill, (ValueError("it is stuck"), 0.5)).start()
            time.sleep(1000)


@pytest.mark.processes
def test_a_stuck_node_is_started_again_in_a_process(tmp_path):
    """Its first two processes get stuck; each is restarted, although `on_exception` is False."""
    path = tmp_path / "pids"
    program = lp.Program("stuck")
    program.add_node(lp.PyClassNode(_Stuck, str(path)), label="stuck")
    policy = lp.RestartPolicy(initial_backoff_secs=0.1, reset_after_secs=60.0, on_exception=False)
    manager = lp.launch(program, "test_mp", restart_policies={"stuck": policy})
    assert manager.wait(timeout=100)
    assert len(set(path.read_text().split())) == 3
    assert [(restart.node, restart.reason) for restart in manager.restarts] == [
        ("stuck/0", "ProcessDied: it is stuck")
    ] * 2


def test_a_stuck_node_ends_a_program_of_threads(tmp_path):
    program = lp.make_program(lp.PyClassNode(_Stuck, str(tmp_path / "pids")))
    manager = lp.launch(program, "test_mt", termination_notice_secs=0.5)
    with pytest.raises(lp.NodeFailedError, match="node node/0 failed: ValueError: it is stuck"):
        manager.wait(timeout=100)


class _Lingering:
    """Fails while one of its threads continues, for which an interpreter would wait at exit."""

    def run(self):
        threading.Thread(target=threading.Event().wait, name="endless").start()
        raise ValueError("it has failed")


@pytest.mark.processes
def test_the_process_of_a_failed_node_ends_although_a_thread_goes_on(monkeypatch):
    monkeypatch.setattr(channel, "_FAILED_SECS", 0.5)
    program = lp.make_program(lp.PyClassNode(_Lingering))
    manager = lp.launch(program, "test_mp", termination_notice_secs=300)
    try:
        with pytest.raises(lp.NodeFailedError, match="ValueError: it has failed"):
            manager.wait(timeout=60)
    finally:
        manager.kill()


class _Saving:
    """Saves after run() and after the stop, in an exit handler or in a thread."""

    def __init__(self, path, begin):
        self._path = pathlib.Path(path)
        self._begin = begin

    def _save(self):
        lp.wait_for_stop()
        time.sleep(1.0)
        self._path.touch()

    def run(self):
        self._begin(self._save)


def _in_a_thread(save):
    threading.Thread(target=save, name="saver").start()


@pytest.mark.processes
def test_a_node_that_ended_well_saves_at_its_leisure(tmp_path, caplog):
    """Its exit handlers and threads have time until the end of the notice; then it is killed."""
    begins = {"handler": atexit.register, "thread": _in_a_thread}
    nodes = [lp.PyClassNode(_Saving, str(tmp_path / name), begins[name]) for name in begins]
    program = lp.make_program(*nodes)
    other = lp.make_program(lp.PyNode(_in_a_thread, programs.block_for_ever))
    saving = lp.launch(program, "test_mp", termination_notice_secs=300)
    endless = lp.launch(other, "test_mp", termination_notice_secs=1)
    assert endless.wait(timeout=100), "that is not a failure"
    assert "killed after 1 s: node/0" in caplog.text
    assert saving.wait(timeout=100)
    assert (tmp_path / "handler").exists() and (tmp_path / "thread").exists()


class _Interrupting:
    """Sends SIGINT to itself, and then to a process that it has started."""

    def __init__(self, path):
        self._path = pathlib.Path(path)

    def run(self):
        os.kill(os.getpid(), signal.SIGINT)
        child = subprocess.Popen(["sleep", "1000"])
        child.send_signal(signal.SIGINT)
        try:
            self._path.write_text(str(child.wait(60)))
        finally:
            child.kill()


@pytest.mark.processes
def test_a_process_that_a_node_has_started_can_be_interrupted(tmp_path):
    path = tmp_path / "status"
    program = lp.make_program(lp.PyClassNode(_Interrupting, str(path)))
    assert lp.launch(program, "test_mp").wait(timeout=100)
    assert path.read_text() == str(-signal.SIGINT)


class _Early:
    """Creates a file in its constructor, which could as well start processes."""

    def __init__(self, path):
        pathlib.Path(path).touch()

    def run(self):
        pass


@pytest.mark.processes
def test_a_node_begins_when_the_guard_knows_it(tmp_path, monkeypatch):
    """Otherwise, processes that it starts would outlive a launcher that is killed in between."""
    begun = tmp_path / "begun"
    watch = guard.Guard.watch
    found = []

    def slow_watch(self, group):
        time.sleep(0.5)
        found.append(begun.exists())
        watch(self, group)

    monkeypatch.setattr(guard.Guard, "watch", slow_watch)
    program = lp.make_program(lp.PyClassNode(_Early, str(begun)))
    assert lp.launch(program, "test_mp").wait(timeout=100)
    assert found == [False] and begun.exists()


class _Mutual:
    """Looks up another node's address in its constructor."""

    def __init__(self, other):
        self._other = other.address

    def where(self):
        return self._other


def test_nodes_find_each_other_while_they_are_constructed():
    program = lp.Program("mutual")
    first, second = (lp.CourierNode(_Mutual, None) for _ in range(2))
    handles = [program.add_node(node, label="mutual") for node in (first, second)]
    first.configure(handles[1])
    second.configure(handles[0])
    manager = lp.launch(program, "test_mp")
    clients = [manager.resolve(handle) for handle in handles]
    assert [client.where() for client in clients] == [clients[1].address, clients[0].address]
    manager.stop_and_wait()


class _Slow:
    """Its constructor calls a server until a stop ends the server."""

    def __init__(self, server):
        while True:
            server.nothing()
            time.sleep(0.05)


class _Server:
    def nothing(self):
        return None


def test_a_stop_during_the_start_is_no_failure():
    program = lp.Program("slow")
    server = program.add_node(lp.CourierNode(_Server), label="server")
    program.add_node(lp.CourierNode(_Slow, server), label="slow")
    manager = lp.launch(program, "test_mt")
    assert manager.resolve(server).nothing() is None
    time.sleep(0.3)
    manager.stop_and_wait()  # Raises NodeFailedError for a failure.
    assert manager.is_done


def test_a_stop_while_nodes_begin_and_end_is_no_failure():
    """It may interrupt them before and after their code."""
    for number in range(10):
        program = lp.make_program(*(lp.PyNode(int) for _ in range(4)))
        manager = lp.launch(program, "test_mp")
        manager.wait(timeout=0.01 * number)
        manager.stop_and_wait()


def test_what_ray_raises_for_a_lost_process_counts_as_its_death():
    ray = pytest.importorskip("ray")
    from launchpad.engines.ray import engine

    lost = (
        ray.exceptions.OutOfMemoryError("too much memory"),
        ray.exceptions.WorkerCrashedError(),
        ray.exceptions.LocalRayletDiedError(),
    )
    told = [engine._death(error).type_name for error in (*lost, ValueError("own"))]
    assert told == [errors.PROCESS_DIED] * 3 + ["ValueError"]
