"""How a supervisor stops, restarts and reports nodes, with workers that do nothing."""

from __future__ import annotations

import dataclasses
import signal
import sys
import threading
import time

import numpy as np
import pytest

import launchpad as lp
from launchpad import errors
from launchpad import runtime as lp_runtime
from launchpad.engines import manager as lp_manager
from launchpad.engines import member as lp_member
from launchpad.engines import supervisor as lp_supervisor
from tests.waiting import wait_until


class _Worker(lp_member.Worker):
    """Logs the calls it receives; the test reports its state to the supervisor."""

    silent_secs = 0.0
    is_stopped = False

    def __init__(self, name: str, log: list[str]):
        self._name = name
        self._log = log

    def start(self) -> None:
        self._log.append(f"start {self._name}")

    def notify_stop(self) -> None:
        self._log.append(f"stop {self._name}")

    def release(self) -> None:
        self._log.append(f"release {self._name}")

    def kill(self) -> None:
        self._log.append(f"kill {self._name}")

    def send_address(self, key: str, address: str) -> None:
        self._log.append(f"address {self._name} {address}")

    def end_frozen(self, secs: float) -> None:
        self._log.append(f"end {self._name} after {secs:g} s")


class _Program:
    """A program under a supervisor; by default, two nodes and a store that all run."""

    def __init__(self, *members: lp_member.Member, notice: float = 300.0):
        self.log: list[str] = []
        self.members = {member.name: member for member in members or _two_and_a_store()}
        self.book: dict[str, str] = {}
        self.supervisor = lp_supervisor.Supervisor(
            list(self.members.values()), self.make, self.book, notice
        )
        self.supervisor.start()
        if not members:
            self.wait_for("start store")
            for name in ("user", "other"):
                self.state(name, lp_runtime.RUNNING)
            self.state("store", lp_runtime.SERVING)

    def make(self, member, supervisor):
        return _Worker(member.name, self.log)

    def worker(self, name: str):
        worker = self.members[name].worker
        assert worker is not None
        return worker

    def state(self, name: str, state: str) -> None:
        self.supervisor.post(self.worker(name), "state", state)

    def end(self, *names: str, record: errors.ExceptionRecord | None = None) -> None:
        for name in names:
            self.supervisor.post(self.worker(name), "ended", record)

    def publish(self, name: str, address: str) -> None:
        (key,) = (each.key for each in self.members[name].node.addresses)
        self.supervisor.post(self.worker(name), "publish", key, address)

    def wait_for(self, entry: str, count: int = 1) -> None:
        wait_until(lambda: self.log.count(entry) >= count)

    def finish(self) -> lp.NodeFailedError | None:
        """Ends all nodes that have not ended, as they do when they are asked to."""
        self.supervisor.post(None, "stop")
        deadline = time.monotonic() + 60
        while not self.supervisor.done.wait(0.02):
            assert time.monotonic() < deadline, self.log
            for name, member in self.members.items():
                asked = self.log.count(f"stop {name}")
                if asked and (not member.node.stops_last or f"release {name}" in self.log):
                    self.end(name)
        return self.supervisor.failure


def _two_and_a_store() -> list[lp_member.Member]:
    store = lp.ReverbNode(list)
    nodes = {"user": lp.PyNode(print, store.create_handle()), "other": lp.PyNode(print)}
    members = []
    for name, node in {**nodes, "store": store}.items():
        node.title = name
        members.append(lp_member.Member(name, 0, node))
    return members


def _team(size: int, **policy) -> list[lp_member.Member]:
    """Returns the members team/0, team/1, ... of a team that starts again together."""
    together = lp.RestartPolicy(**{"initial_backoff_secs": 0.0, "together": True, **policy})
    return [
        lp_member.Member("team", index, lp.PyNode(print), restart_policy=together)
        for index in range(size)
    ]


def _died() -> errors.ExceptionRecord:
    return errors.ExceptionRecord(errors.PROCESS_DIED, "killed", "")


_LOST = errors.ExceptionRecord.of(lp.CourierUnavailableError("the peer is gone"))


def _raised(text: str) -> errors.ExceptionRecord:
    return errors.ExceptionRecord.of(ValueError(text))


def test_servers_outlive_runs_and_stores_outlive_all():
    program = _Program()
    program.state("store", lp_runtime.RUNNING)  # A neighbour in its colocation has work to do.
    manager = lp_manager.ProgramManager(program.supervisor, is_test=True)
    assert not manager.wait(labels_to_wait_for=[], timeout=0.1), (
        "no label stands for all, as in upstream"
    )
    manager.stop()
    program.wait_for("stop store")
    program.state("user", lp_runtime.SERVING)
    time.sleep(0.3)
    assert "release user" not in program.log, "the other node still runs"
    program.end("other", "user")
    time.sleep(0.3)
    assert "release store" not in program.log
    program.state("store", lp_runtime.SERVING)
    program.wait_for("release store")
    assert program.finish() is None
    assert not any(entry.startswith("kill") for entry in program.log)


def test_a_store_whose_neighbour_does_not_end_is_released_and_killed_in_time(monkeypatch):
    monkeypatch.setattr(lp_supervisor, "_LAST_SECS", 0.1)
    program = _Program(notice=1.0)
    program.state("store", lp_runtime.RUNNING)
    began = time.monotonic()
    program.supervisor.post(None, "stop")
    program.end("user", "other")
    program.wait_for("release store")
    assert time.monotonic() - began >= 0.7
    program.wait_for("kill store")
    assert time.monotonic() - began >= 1.0
    program.end("store", record=_died())
    assert program.finish() is None


def test_a_server_without_work_of_its_own_ends_with_the_program():
    program = _Program()
    manager = lp_manager.ProgramManager(program.supervisor, is_test=True)
    assert not manager.wait(return_on_first_completed=True, timeout=np.float32(0.3))
    with pytest.raises(
        ValueError, match=r"expected groups out of \['other', 'store', 'user'\], got"
    ):
        manager.wait(["missing"])
    program.state("user", lp_runtime.SERVING)  # It has done its work.
    assert manager.wait(return_on_first_completed=True, timeout=np.int64(60))
    assert manager.wait(labels_to_wait_for=["user"], timeout=60)
    assert not manager.wait(labels_to_wait_for=["user", "store", "other"], timeout=0.3)
    program.end("other")
    time.sleep(0.3)
    assert "stop store" not in program.log, "nobody waits for the end"
    assert not manager.wait(labels_to_wait_for=["store"], timeout=0.3)
    program.wait_for("stop store")
    program.wait_for("release user")
    assert program.finish() is None
    assert manager.wait(labels_to_wait_for=["store"], timeout=60)


def test_a_failure_is_no_end_that_was_waited_for():
    program = _Program()
    manager = lp_manager.ProgramManager(program.supervisor, is_test=True)
    program.end("user", record=_raised("it is broken"))
    program.wait_for("stop other")
    assert not manager.wait(timeout=0.3, labels_to_wait_for=["user"]), "the others save"
    assert not manager.wait(timeout=0.3, return_on_first_completed=True)
    program.finish()
    with pytest.raises(lp.NodeFailedError, match="ValueError: it is broken"):
        manager.wait(timeout=60, return_on_first_completed=True)
    assert manager.is_done
    assert manager.wait(raise_error=False, timeout=60, labels_to_wait_for=["user"])


def test_what_does_not_end_is_released_killed_and_left_in_time(caplog):
    program = _Program(notice=1)
    started = time.monotonic()
    program.supervisor.post(None, "stop")
    program.wait_for("release user")
    assert time.monotonic() - started > 0.6
    program.wait_for("kill user")
    assert time.monotonic() - started > 0.98
    assert program.supervisor.done.wait(60)
    assert "killed after 1 s: user, other" in caplog.text
    assert "left behind: user, other" in caplog.text
    phases = ("stop user", "release user", "kill user", "release store", "kill store")
    order = [program.log.index(phase) for phase in phases]
    assert order == sorted(order)


@pytest.mark.parametrize("how", ["wait", "exit"])
def test_the_launchers_stop_handlers_do_not_hold_up_the_end(how, monkeypatch):
    monkeypatch.setattr(lp_supervisor, "_HANDLERS_SECS", 0.1)
    may_end, ends = threading.Event(), []
    manager = lp.launch(lp.make_program(lp.PyNode(may_end.wait)), "test_mt")
    lp.register_stop_handler(lambda: manager.wait() if how == "wait" else sys.exit(1))
    lp.register_stop_handler(lambda: ends.append(how))
    may_end.set()
    assert manager.wait(60)
    wait_until(lambda: ends)


def test_the_root_is_named_although_its_victim_tells_first(monkeypatch):
    monkeypatch.setattr(lp_member, "_ROOT_WINDOW_SECS", 60.0)
    program = _Program()
    program.end("user", record=_LOST)
    program.end("other", record=_died())
    assert program.finish().label == "other"


def test_a_failure_is_named_while_the_others_are_still_ending(caplog):
    program = _Program()
    program.end("user", record=_raised("it is broken\nhere"))
    wait_until(lambda: "user failed: ValueError: it is broken; stopping" in caplog.text)
    assert not program.supervisor.done.is_set()
    program.finish()
    assert caplog.text.count("it is broken") == 1


def test_a_failure_after_a_signal_is_not_why_the_program_stops(caplog):
    program = _Program()
    program.supervisor.post(None, "signal", signal.SIGTERM)
    program.wait_for("stop user")
    program.end("user", record=_raised("no space"))
    assert program.finish().message == "no space"
    assert "no space" not in caplog.text


def test_a_lost_connection_alone_is_the_root(caplog):
    program = _Program()
    program.end("user", record=_LOST)
    program.state("other", lp_runtime.SERVING)  # No node is in its run() any more.
    program.wait_for("release other")
    program.end("other", record=_raised("after the release"))
    failure = program.finish()
    assert (failure.label, failure.message) == ("user", "the peer is gone")
    assert "other failed while stopping: ValueError: after the release" in caplog.text


@pytest.mark.parametrize("phase", ["release user", "kill user"])
def test_an_error_at_the_end_is_a_failure_but_a_lost_connection_is_none(phase, monkeypatch):
    """For example, a last save fails because the disk is full."""
    monkeypatch.setattr(lp_supervisor, "_KILL_SECS", 100.0)
    program = _Program(notice=1)
    program.supervisor.post(None, "stop")
    program.wait_for(phase)
    program.end("other", record=_LOST)
    program.end("user", record=_raised("no space"))
    failure = program.finish()
    assert (failure.label, failure.message) == ("user", "no space")


class _Unlucky(_Program):
    """Cannot start the second of its members the `bad`-th time, for example without files."""

    bad = 1
    num_starts = 0

    def make(self, member, supervisor):
        if member.index == 1:
            self.num_starts += 1
            if self.num_starts == self.bad:
                raise OSError("too many open files")
        return super().make(member, supervisor)


def test_nothing_is_started_after_a_node_that_cannot_be():
    program = _Unlucky(*(lp_member.Member("team", index, lp.PyNode(print)) for index in range(3)))
    program.wait_for("stop team/0")
    assert program.finish().index == 1
    assert program.log == ["start team/0", "stop team/0"]


def test_a_team_that_cannot_be_started_whole_is_started_later(caplog):
    class Later(_Unlucky):
        bad = 2

    program = Later(*_team(3, on_exception=True))
    program.wait_for("start team/2")
    program.end("team/0", record=_died())
    for name in ("team/1", "team/2"):
        program.wait_for(f"kill {name}")
        program.end(name, record=_died())
    program.wait_for("kill team/0")  # Member 1 could not be started after it.
    program.end("team/0", record=_died())
    for index in range(3):
        program.wait_for(f"start team/{index}", count=3 if index == 0 else 2)
    assert program.finish() is None
    assert "team/1 failed: OSError: too many open files; restart 2 of 10" in caplog.text


def test_users_of_a_store_that_moved_start_again_with_their_team():
    user, other, store = _two_and_a_store()
    team = _team(3)
    team[0] = lp_member.Member("team", 0, lp.PyNode(print, store.node.create_handle()))
    team[0].restart_policy = team[1].restart_policy
    program = _Program(*team, user, other, store)
    program.wait_for("start store")
    program.state("store", lp_runtime.SERVING)
    for _ in range(2):  # A store that came back on its old port has not moved.
        program.publish("store", "host:1")
    program.wait_for("address store host:1", count=2)
    assert not any(entry.startswith("kill") for entry in program.log)
    program.end("team/2")  # It had finished before.
    program.publish("store", "host:2")
    for name in ("team/0", "team/1", "user"):
        program.wait_for(f"kill {name}")
        program.end(name, record=_died())
    for name in ("team/0", "team/1", "team/2", "user"):
        program.wait_for(f"start {name}", count=2)
    assert "kill other" not in program.log and "kill store" not in program.log
    assert program.finish() is None


def test_a_colocation_whose_own_store_moved_starts_once_more():
    """Its other parts may have read the address of before."""
    store = lp.ReverbNode(list)
    node = lp.MultiThreadingColocation([store, lp.PyNode(print, store.create_handle())])
    policy = lp.RestartPolicy(initial_backoff_secs=0.0)
    program = _Program(lp_member.Member("both", 0, node, restart_policy=policy))
    program.wait_for("start both/0")
    program.publish("both/0", "host:1")
    program.end("both/0", record=_died())
    program.wait_for("start both/0", count=2)
    program.publish("both/0", "host:2")
    program.wait_for("kill both/0")
    program.end("both/0", record=_died())
    program.wait_for("start both/0", count=3)
    program.publish("both/0", "host:2")
    program.state("both/0", lp_runtime.SERVING)
    assert program.finish() is None
    assert program.log.count("kill both/0") == 1


def test_a_process_that_can_start_no_thread_ends(caplog, monkeypatch):
    """As under a limit on threads or memory: whoever waits for the program hears of its end."""
    program = _Program()

    told = []

    class Launcher:
        def mark_stop_aware(self):
            told.append("aware")
            # At first, more than there are addresses.
            threading.stack_size(1 << 47 if len(told) == 1 else 0)

        def begin_stop(self):
            thread = threading.Thread(target=told.append, args=["stop"])
            thread.start()
            return thread

    program.supervisor.launcher = Launcher()
    monkeypatch.setattr(threading, "excepthook", lambda _: None)
    try:
        program.supervisor.post(None, "stop")
        program.end("user", "other", "store")
        assert program.supervisor.done.wait(60)
    finally:
        threading.stack_size(0)
    wait_until(lambda: told[-1] == "stop")  # By the end there is a thread.
    assert program.supervisor.failure is not None and "the supervisor failed" in caplog.text
    assert "kill user" in program.log


def test_a_planned_restart_is_dropped_at_the_stop():
    program = _Program()
    program.members["other"].restart_policy = lp.RestartPolicy(initial_backoff_secs=30)
    program.end("other", record=_died())
    time.sleep(0.2)
    assert program.finish() is None
    assert program.log.count("start other") == 1


def test_a_team_starts_again_as_one_and_at_new_addresses(caplog):
    team = _team(3, initial_backoff_secs=0.1)
    address = lp.Address("worker")
    team[0].node.allocate_address(address)
    program = _Program(*team)
    program.wait_for("start team/2")
    program.publish("team/0", "host:1")
    program.wait_for("address team/2 host:1")
    program.end("team/2")  # It had finished before.
    program.end("team/0", record=_died())
    program.wait_for("kill team/1")
    time.sleep(0.4)
    assert program.log.count("start team/0") == 1, "one of the others has not ended yet"
    # A failure of a node that is being replaced does not end the program: it lost its peer.
    program.supervisor.post(program.worker("team/1"), "failing", _LOST)
    program.end("team/1", record=_LOST)
    for name in program.members:
        program.wait_for(f"start {name}", count=2)
    assert address.key not in program.book
    program.state("team/0", lp_runtime.RUNNING)
    assert program.finish() is None
    assert "team/0 is up again after" in caplog.text
    assert "restart 1 of" in caplog.text and "restart 2 of" not in caplog.text


def test_a_node_whose_policy_is_for_itself_starts_again_alone():
    team = _team(2)
    team[1].restart_policy = lp.RestartPolicy(initial_backoff_secs=0.0)
    program = _Program(*team)
    program.wait_for("start team/1")
    program.end("team/1", record=_died())
    program.wait_for("start team/1", count=2)
    assert "kill team/0" not in program.log
    program.end("team/0", record=_died())
    program.wait_for("kill team/1")
    program.end("team/1", record=_died())
    program.wait_for("start team/0", count=2)
    program.wait_for("start team/1", count=3)
    program.finish()


def test_the_address_of_a_node_that_was_started_again_is_its_new_one():
    program = _Program()
    program.members["store"].restart_policy = lp.RestartPolicy(initial_backoff_secs=0.0)
    before = program.worker("store")
    program.end("store", record=_died())
    program.wait_for("start store", count=2)
    program.publish("store", "host:2")
    (address,) = program.members["store"].node.addresses
    program.supervisor.post(before, "publish", address.key, "host:1")  # This report arrives late.
    program.supervisor.post(None, "publish", address.key, "host:3")
    program.wait_for("address other host:3")
    assert "address other host:2" in program.log and "address other host:1" not in program.log
    program.supervisor.post(None, "kill")
    assert program.supervisor.done.wait(60)


def test_time_in_which_a_node_was_stuck_is_no_life():
    """Otherwise a node that always gets stuck at the same place would be restarted forever."""
    member = lp_member.Member("actor", 0, lp.PyNode(print))
    member.restart_policy = lp.RestartPolicy(1, initial_backoff_secs=0.0, reset_after_secs=0.0)
    program = _Program(member)
    for count, stuck_secs in enumerate((0.0, 0.0, 300.0), start=1):
        program.wait_for("start actor/0", count)
        program.end("actor/0", record=dataclasses.replace(_died(), stuck_secs=stuck_secs))
    assert program.supervisor.done.wait(60) and program.finish().message == "killed"


def _watched() -> tuple[lp_supervisor.Supervisor, lp_member.Member, list[str]]:
    """Returns a supervisor that is not started, its only member and the log of its worker."""
    log: list[str] = []
    member = lp_member.Member("actor", 0, lp.PyNode(print))
    member.restart_policy = lp.RestartPolicy(frozen_after_secs=60.0)
    member.worker = _Worker("actor", log)
    return lp_supervisor.Supervisor([member], lambda *_: member.worker, {}, 1.0), member, log


def _check_for(supervisor: lp_supervisor.Supervisor, start: float, seconds: float = 0.1) -> None:
    """Lets a supervisor look for frozen nodes ten times per second."""
    for tenth in range(round(10 * seconds)):
        supervisor._end_frozen(start + tenth / 10)


def test_a_launcher_that_was_stopped_takes_no_node_for_a_frozen_one():
    """After Ctrl-Z or a suspension of the machine, silence counts from the resumption."""
    supervisor, member, log = _watched()
    _check_for(supervisor, 1000.0, 0.2)
    member.worker.silent_secs = 300.0
    _check_for(supervisor, 1300.1, 59.1)
    assert not log
    _check_for(supervisor, 1359.2, 2.9)
    assert log[0].startswith("end actor after 60")


def test_a_node_that_a_signal_has_stopped_is_not_given_the_time_of_a_busy_one():
    supervisor, member, log = _watched()
    _check_for(supervisor, 1000.0, 30.0)
    silences = ((False, 6.0), (True, 4.0))  # It may hold Python's lock; or it may resume.
    for member.worker.is_stopped, member.worker.silent_secs in silences:
        _check_for(supervisor, 1030.1)
    assert not log
    member.worker.silent_secs = 6.0
    _check_for(supervisor, 1030.2)
    assert log == ["end actor after 6 s"]
    member.restart_policy = lp.RestartPolicy(frozen_after_secs=None)
    _check_for(supervisor, 1030.3)
    assert len(log) == 1, "this node may be silent for ever"
