"""How a supervisor stops, restarts and reports nodes, with workers that do nothing."""

from __future__ import annotations

import signal
import sys
import threading
import time

import numpy as np
import pytest

import launchpad as lp
from launchpad import address_book as lp_address_book
from launchpad import errors
from launchpad import runtime as lp_runtime
from launchpad.engines import failures as lp_failures
from launchpad.engines import manager as lp_manager
from launchpad.engines import member as lp_member
from launchpad.engines import supervisor as lp_supervisor
from rl_replicator.processes import signals
from tests.waiting import wait_until


class _Worker:
    """Logs the calls it receives; the test reports its state to the supervisor."""

    silent_secs = 0.0
    is_stopped = False
    is_killable = True

    def __init__(self, name: str, log: list[str]):
        self._name = name
        self._log = log

    def start(self) -> None:
        self._log.append(f"start {self._name}")

    def notify_stop(self) -> None:
        self._log.append(f"stop {self._name}")

    def notify_ready(self) -> None:
        self._log.append(f"ready {self._name}")

    def release(self) -> None:
        self._log.append(f"release {self._name}")

    def kill(self) -> None:
        self._log.append(f"kill {self._name}")

    def send_address(self, key: str, address: str) -> None:
        self._log.append(f"address {self._name} {address}")

    def close(self) -> None:
        pass

    def end_frozen(self, secs: float) -> None:
        self._log.append(f"end {self._name} after {secs:g} s")


class _Program:
    """Two nodes and a store, under a supervisor with a termination notice of `notice` seconds."""

    def __init__(self, notice: float = 1.0):
        self.log: list[str] = []
        self.store = lp.ReverbNode(list)
        user = lp.PyNode(print, self.store.create_handle())
        nodes = {"user": user, "other": lp.PyNode(print), "store": self.store}
        self.members = {name: lp_member.Member(name, 0, node) for name, node in nodes.items()}
        self.supervisor = lp_supervisor.Supervisor(
            list(self.members.values()),
            lambda member, supervisor: _Worker(member.label, self.log),
            lp_address_book.AddressBook(),
            notice,
        )
        self.supervisor.start()
        self.wait_for("start store")
        for name in ("user", "other"):
            self.state(name, lp_runtime.RUNNING)
        self.state("store", lp_runtime.SERVING)

    def worker(self, name: str):
        worker = self.members[name].worker
        assert worker is not None
        return worker

    def state(self, name: str, state: str) -> None:
        self.supervisor.post_state(self.worker(name), state)

    def end(self, name: str, record: errors.ExceptionRecord | None = None) -> None:
        self.supervisor.post_ended(self.worker(name), record)

    def wait_for(self, entry: str, count: int = 1) -> None:
        _wait_for(self.log, entry, count)


def _wait_for(log: list[str], entry: str, count: int = 1) -> None:
    deadline = time.monotonic() + 60
    while log.count(entry) < count:
        assert time.monotonic() < deadline, f"no {entry!r} in {log}"
        time.sleep(0.01)


def _died() -> errors.ExceptionRecord:
    return errors.ExceptionRecord(errors.PROCESS_DIED, "killed", "")


def test_servers_outlive_runs_and_stores_outlive_all():
    program = _Program(notice=300)
    program.supervisor.post_stop()
    program.wait_for("stop store")
    program.state("user", lp_runtime.SERVING)
    time.sleep(0.3)
    assert "release user" not in program.log, "the other node still runs"
    program.end("other")
    program.wait_for("release user")
    assert "release store" not in program.log
    program.end("user")
    program.wait_for("release store")
    program.end("store")
    assert program.supervisor.done.wait(60)
    assert program.supervisor.failure is None
    assert not any(entry.startswith("kill") for entry in program.log)


def test_a_store_outlives_the_run_of_its_neighbour_in_a_colocation():
    program = _Program(notice=300)
    program.state("store", lp_runtime.RUNNING)
    program.supervisor.post_stop()
    program.wait_for("stop store")
    for name in ("user", "other"):
        program.end(name)
    time.sleep(0.3)
    assert "release store" not in program.log
    program.state("store", lp_runtime.SERVING)
    program.wait_for("release store")
    program.end("store")
    assert program.supervisor.done.wait(60) and program.supervisor.failure is None


def test_a_store_whose_neighbour_does_not_end_is_released_and_killed_in_time(monkeypatch):
    monkeypatch.setattr(lp_supervisor, "_LAST_SECS", 0.1)
    program = _Program(notice=1.0)
    program.state("store", lp_runtime.RUNNING)
    began = time.monotonic()
    program.supervisor.post_stop()
    for name in ("user", "other"):
        program.end(name)
    program.wait_for("release store")
    assert time.monotonic() - began >= 0.7
    program.wait_for("kill store")
    assert time.monotonic() - began >= 1.0
    program.end("store", _died())
    assert program.supervisor.done.wait(60) and program.supervisor.failure is None


def test_a_server_without_work_of_its_own_ends_with_the_program():
    program = _Program(notice=60)
    manager = lp_manager.ProgramManager(program.supervisor, is_test=True)
    assert not manager.wait(return_on_first_completed=True, timeout=0.3)
    program.state("user", lp_runtime.SERVING)  # It has done its work.
    assert manager.wait(return_on_first_completed=True, timeout=60)
    assert manager.wait(labels_to_wait_for=["user"], timeout=60)
    assert not manager.wait(labels_to_wait_for=["user", "store", "other"], timeout=0.3)
    program.end("other")
    time.sleep(0.3)
    assert "stop store" not in program.log, "nobody waits for the end"
    assert not manager.wait(labels_to_wait_for=["store"], timeout=0.3)
    program.wait_for("stop store")
    for name in ("user", "store"):
        program.wait_for(f"release {name}")
        program.end(name)
    assert manager.wait(labels_to_wait_for=["store"], timeout=60)


@pytest.mark.parametrize(
    "what", [{"labels_to_wait_for": ["user"]}, {"return_on_first_completed": True}]
)
def test_a_failure_is_no_end_that_was_waited_for(what):
    program = _Program(notice=300)
    manager = lp_manager.ProgramManager(program.supervisor, is_test=True)
    program.end("user", errors.ExceptionRecord.of(ValueError("it is broken")))
    program.wait_for("stop other")
    assert not manager.wait(timeout=0.3, **what), "the others have not saved yet"
    program.end("other")
    program.wait_for("release store")
    program.end("store")
    with pytest.raises(lp.NodeFailedError, match="ValueError: it is broken"):
        manager.wait(timeout=60, **what)
    assert manager.is_done
    assert manager.wait(raise_error=False, **what)


@pytest.mark.parametrize("secs", [0.1, np.float32(0.1), np.int64(0)])
def test_a_wait_takes_every_kind_of_number(secs):
    manager = lp_manager.ProgramManager(_Program().supervisor, is_test=True)
    assert manager.wait(secs) is False
    manager.kill()
    assert manager.wait(60)


def test_what_does_not_end_is_released_killed_and_left_in_time(caplog):
    program = _Program(notice=1)
    started = time.monotonic()
    program.supervisor.post_stop()
    program.wait_for("release user")
    assert time.monotonic() - started > 0.6
    program.wait_for("kill user")
    assert time.monotonic() - started > 0.98
    assert program.supervisor.done.wait(60)
    assert "killed after 1 s: user/0, other/0" in caplog.text
    assert "left behind: user/0, other/0" in caplog.text
    phases = ("stop user", "release user", "kill user", "release store", "kill store")
    order = [program.log.index(phase) for phase in phases]
    assert order == sorted(order)


def test_a_terminal_that_is_closed_stops_a_program_and_kills_nothing():
    """The kernel sends SIGHUP to its processes, and the shell may send it again."""
    program = _Program(notice=300)
    for _ in range(2):
        program.supervisor.post_signal(signal.SIGHUP)
    program.wait_for("stop store")
    for name in ("user", "other", "store"):
        program.end(name)
    assert program.supervisor.done.wait(60)
    assert program.supervisor.signal_number == signal.SIGHUP
    assert not program.supervisor.was_killed


def test_a_signal_to_a_job_and_its_supervisor_kills_no_node(monkeypatch):
    monkeypatch.setenv(signals.SUPERVISED, "1")
    program = _Program(notice=300)
    for number in (signal.SIGTERM, signal.SIGINT):
        program.supervisor.post_signal(number)
    program.wait_for("stop store")
    for name in ("user", "other", "store"):
        program.end(name)
    assert program.supervisor.done.wait(60)
    assert not program.supervisor.was_killed


@pytest.mark.parametrize("how", ["wait", "exit"])
def test_the_launchers_stop_handlers_do_not_hold_up_the_end(how, monkeypatch):
    """Previously, if the program ended by itself, they ran in the thread that ends it."""
    monkeypatch.setattr(lp_supervisor, "_HANDLERS_SECS", 0.1)
    may_end, ends = threading.Event(), []
    manager = lp.launch(lp.make_program(lp.PyNode(may_end.wait)), "test_mt")
    lp.register_stop_handler(lambda: manager.wait() if how == "wait" else sys.exit(1))
    lp.register_stop_handler(lambda: ends.append(how))
    may_end.set()
    assert manager._supervisor.done.wait(60)
    wait_until(lambda: ends)


def test_the_root_is_named_although_its_victim_tells_first(monkeypatch):
    monkeypatch.setattr(lp_failures, "_ROOT_WINDOW_SECS", 60.0)
    program = _Program(notice=60)
    lost = errors.ExceptionRecord.of(lp.CourierUnavailableError("the peer is gone"))
    assert lost.is_collateral
    program.end("user", lost)
    program.end("other", _died())
    program.wait_for("release store")
    program.end("store")
    assert program.supervisor.done.wait(60)
    assert program.supervisor.failure.label == "other"


def test_a_failure_is_named_while_the_others_are_still_ending(caplog):
    program = _Program(notice=300)
    program.end("user", errors.ExceptionRecord.of(ValueError("it is broken\nhere")))
    deadline = time.monotonic() + 60
    while "user/0 failed: ValueError: it is broken; stopping" not in caplog.text:
        assert time.monotonic() < deadline, caplog.text
        time.sleep(0.01)
    assert not program.supervisor.done.is_set()
    program.end("other")
    program.wait_for("release store")
    program.end("store")
    assert program.supervisor.done.wait(60)
    assert caplog.text.count("it is broken") == 1


def test_a_failure_after_a_signal_is_not_why_the_program_stops(caplog, monkeypatch):
    monkeypatch.setattr(lp_failures, "_ROOT_WINDOW_SECS", 0.0)
    program = _Program(notice=300)
    program.supervisor.post_signal(signal.SIGTERM)
    program.wait_for("stop user")
    program.end("user", errors.ExceptionRecord.of(OSError("no space")))
    program.end("other")
    program.wait_for("release store")
    program.end("store")
    assert program.supervisor.done.wait(60)
    assert program.supervisor.failure.message == "no space"
    assert "no space" not in caplog.text


def test_a_lost_connection_alone_is_the_root(caplog):
    program = _Program(notice=60)
    program.end("user", errors.ExceptionRecord.of(lp.CourierUnavailableError("gone")))
    program.state("other", lp_runtime.SERVING)  # No node is in its run() any more.
    program.wait_for("release other")
    program.end("other", errors.ExceptionRecord.of(ValueError("after the release")))
    program.wait_for("release store")
    program.end("store")
    assert program.supervisor.done.wait(60)
    assert (program.supervisor.failure.label, program.supervisor.failure.message) == (
        "user",
        "gone",
    )
    assert "other/0 failed while stopping: ValueError: after the release" in caplog.text


@pytest.mark.parametrize("phase", ["release user", "kill user"])
def test_an_error_at_the_end_is_a_failure_but_a_lost_connection_is_none(phase, monkeypatch):
    """For example, a last save fails because the disk is full."""
    monkeypatch.setattr(lp_supervisor, "_KILL_SECS", 100.0)
    program = _Program(notice=1)
    program.supervisor.post_stop()
    program.wait_for(phase)
    program.end("other", errors.ExceptionRecord.of(lp.CourierUnavailableError("gone")))
    program.end("user", errors.ExceptionRecord.of(OSError("no space")))
    program.wait_for("release store")
    program.end("store")
    assert program.supervisor.done.wait(60)
    assert program.supervisor.failure is not None
    assert (program.supervisor.failure.label, program.supervisor.failure.message) == (
        "user",
        "no space",
    )


def test_nothing_is_started_after_a_node_that_cannot_be():
    log: list[str] = []
    members = [lp_member.Member(name, 0, lp.PyNode(print)) for name in ("a", "b", "c")]

    def make(member, supervisor):
        if member.label == "b":
            raise OSError("too many open files")
        return _Worker(member.label, log)

    supervisor = lp_supervisor.Supervisor(members, make, lp_address_book.AddressBook(), 300)
    supervisor.start()
    _wait_for(log, "stop a")
    supervisor.post_ended(members[0].worker, None)
    assert supervisor.done.wait(60)
    assert supervisor.failure is not None and supervisor.failure.label == "b"
    assert log == ["start a", "stop a"]


def test_a_team_that_cannot_be_started_whole_is_started_later(monkeypatch):
    log: list[str] = []
    policy = lp.RestartPolicy(together=True, on_exception=True)
    members = [
        lp_member.Member("team", index, lp.PyNode(print), restart_policy=policy)
        for index in range(3)
    ]
    failures = [OSError("too many open files")]

    def make(member, supervisor):
        if member.index == 1 and "start 0" in log[3:] and failures:
            raise failures.pop()
        return _Worker(str(member.index), log)

    supervisor = lp_supervisor.Supervisor(members, make, lp_address_book.AddressBook(), 300)
    supervisor.start()
    _wait_for(log, "start 2")
    supervisor.post_ended(members[0].worker, _died())
    for index in (1, 2):
        _wait_for(log, f"kill {index}")
        supervisor.post_ended(members[index].worker, _died())
    _wait_for(log, "kill 0")  # Member 1 could not be started after it.
    supervisor.post_ended(members[0].worker, _died())
    for index in range(3):
        _wait_for(log, f"start {index}", count=3 if index == 0 else 2)
    supervisor.post_stop()
    for member in members:
        _wait_for(log, f"stop {member.index}")
        supervisor.post_ended(member.worker, None)
    assert supervisor.done.wait(60)
    assert supervisor.failure is None


def test_users_of_a_store_that_moved_start_again():
    program = _Program(notice=5)
    key = program.store.reverb_address.key
    for _ in range(2):  # A store that came back on its old port has not moved.
        program.supervisor.post_publish(program.worker("store"), key, "host:1")
    program.wait_for("address store host:1", count=2)
    assert not any(entry.startswith("kill") for entry in program.log)
    program.supervisor.post_publish(program.worker("store"), key, "host:2")
    program.wait_for("kill user")
    program.end("user", _died())
    program.wait_for("start user", count=2)
    assert "kill other" not in program.log and "kill store" not in program.log
    program.supervisor.post_stop()
    program.wait_for("stop store")
    for name in ("user", "other", "store"):
        program.end(name)
    assert program.supervisor.done.wait(60)
    assert program.supervisor.failure is None


def test_a_node_that_ends_without_a_word_holds_up_nobody_who_waits_until_all_are_ready():
    """For example, an object without a run(), in a thread."""
    log: list[str] = []
    members = [lp_member.Member(name, 0, lp.PyNode(print)) for name in ("short", "long")]
    supervisor = lp_supervisor.Supervisor(
        members,
        lambda member, _: _Worker(member.label, log),
        lp_address_book.AddressBook(),
        termination_notice_secs=300,
    )
    supervisor.start()
    _wait_for(log, "start long")
    supervisor.post_state(members[1].worker, lp_runtime.RUNNING)
    assert not supervisor.ready.wait(0.3)
    supervisor.post_ended(members[0].worker, None)
    assert supervisor.ready.wait(60)
    _wait_for(log, "ready long")
    assert "ready short" not in log
    supervisor.post_kill()
    assert supervisor.done.wait(60)


def test_a_planned_restart_is_dropped_at_the_stop():
    program = _Program(notice=5)
    program.members["other"].restart_policy = lp.RestartPolicy(initial_backoff_secs=30)
    program.end("other", _died())
    time.sleep(0.2)
    program.supervisor.post_stop()
    program.wait_for("stop user")
    program.end("user")
    program.wait_for("release store")
    program.end("store")
    assert program.supervisor.done.wait(60)
    assert program.supervisor.failure is None
    assert program.log.count("start other") == 1


def test_a_team_starts_again_as_one_and_at_new_addresses(caplog):
    log: list[str] = []
    address = lp.Address("worker")
    members = [lp_member.Member("team", index, lp.PyNode(print)) for index in range(3)]
    members[0].node.allocate_address(address)
    for member in members:
        member.restart_policy = lp.RestartPolicy(initial_backoff_secs=0.1, together=True)
    book = lp_address_book.AddressBook()
    supervisor = lp_supervisor.Supervisor(
        members, lambda member, _: _Worker(member.name, log), book, termination_notice_secs=5
    )
    supervisor.start()
    _wait_for(log, "start team/2")
    supervisor.post_publish(members[0].worker, address.key, "host:1")
    _wait_for(log, "address team/2 host:1")
    supervisor.post_ended(members[2].worker, None)  # It had finished before.
    supervisor.post_ended(members[0].worker, _died())
    _wait_for(log, "kill team/1")
    time.sleep(0.4)
    assert log.count("start team/0") == 1, "one of the others has not ended yet"
    lost = errors.ExceptionRecord.of(lp.CourierUnavailableError("the peer is gone"))
    supervisor.post_ended(members[1].worker, lost)
    for name in ("team/0", "team/1", "team/2"):
        _wait_for(log, f"start {name}", count=2)
    assert book.get(address.key) is None
    supervisor.post_state(members[0].worker, lp_runtime.RUNNING)
    assert members[0].restarts.count == 1
    assert members[1].restarts is None and members[2].restarts is None
    supervisor.post_stop()
    for member in members:
        supervisor.post_ended(member.worker, None)
    assert supervisor.done.wait(60)
    assert supervisor.failure is None
    assert "team/0 is up again after" in caplog.text


def test_a_node_whose_policy_is_for_itself_starts_again_alone():
    log: list[str] = []
    members = [lp_member.Member("team", index, lp.PyNode(print)) for index in range(2)]
    for member, together in zip(members, (True, False), strict=True):
        member.restart_policy = lp.RestartPolicy(initial_backoff_secs=0.0, together=together)
    supervisor = lp_supervisor.Supervisor(
        members, lambda member, _: _Worker(member.name, log), lp_address_book.AddressBook(), 300
    )
    supervisor.start()
    _wait_for(log, "start team/1")
    supervisor.post_ended(members[1].worker, _died())
    _wait_for(log, "start team/1", count=2)
    assert "kill team/0" not in log
    supervisor.post_ended(members[0].worker, _died())
    _wait_for(log, "kill team/1")
    supervisor.post_ended(members[1].worker, _died())
    for member in members:
        _wait_for(log, f"start {member.name}", count=3 if member.index else 2)
    supervisor.post_kill()
    assert supervisor.done.wait(60)


def _team_of_two_that_starts_again(policy, notice):
    """Returns a supervisor, a team and a log; team/0 has died and team/1 was killed for that."""
    log: list[str] = []
    team = [lp_member.Member("team", index, lp.PyNode(print)) for index in range(2)]
    for member in team:
        member.restart_policy = policy
    supervisor = lp_supervisor.Supervisor(
        team,
        lambda member, _: _Worker(member.name, log),
        lp_address_book.AddressBook(),
        termination_notice_secs=notice,
    )
    supervisor.start()
    _wait_for(log, "start team/1")
    supervisor.post_ended(team[0].worker, _died())
    _wait_for(log, "kill team/1")
    return supervisor, team, log


def test_a_failure_of_a_member_that_is_being_replaced_does_not_end_the_program():
    policy = lp.RestartPolicy(initial_backoff_secs=0.0, on_exception=False, together=True)
    supervisor, team, log = _team_of_two_that_starts_again(policy, notice=5)
    lost = errors.ExceptionRecord.of(lp.CourierUnavailableError("the peer is gone"))
    supervisor.post_failing(team[1].worker, lost)  # It lost its peer before it was killed.
    supervisor.post_ended(team[1].worker, lost)
    for member in team:
        _wait_for(log, f"start {member.name}", count=2)
    supervisor.post_stop()
    for member in team:
        supervisor.post_ended(member.worker, None)
    assert supervisor.done.wait(60)
    assert supervisor.failure is None


def test_a_stop_while_a_team_starts_again_is_no_failure():
    policy = lp.RestartPolicy(initial_backoff_secs=0.0, together=True)
    supervisor, team, _ = _team_of_two_that_starts_again(policy, notice=300)
    supervisor.post_stop()
    supervisor.post_ended(team[1].worker, _died())
    assert supervisor.done.wait(60)
    assert supervisor.failure is None


def test_a_store_that_moved_restarts_the_whole_team_of_its_client():
    log: list[str] = []
    store = lp.ReverbNode(list)
    key = store.reverb_address.key
    nodes = [lp.PyNode(print, store.create_handle()), lp.PyNode(print), lp.PyNode(print)]
    team = [lp_member.Member("team", index, node) for index, node in enumerate(nodes)]
    for member in team:
        member.restart_policy = lp.RestartPolicy(together=True)
    members = [*team, lp_member.Member("store", 0, store)]
    supervisor = lp_supervisor.Supervisor(
        members,
        lambda member, _: _Worker(member.name, log),
        lp_address_book.AddressBook(),
        termination_notice_secs=5,
    )
    supervisor.start()
    _wait_for(log, "start store/0")
    supervisor.post_publish(members[-1].worker, key, "host:1")
    _wait_for(log, "address team/2 host:1")
    supervisor.post_ended(team[2].worker, None)  # It had finished before.
    supervisor.post_publish(members[-1].worker, key, "host:2")
    _wait_for(log, "kill team/1")
    for member in team[:2]:
        supervisor.post_ended(member.worker, _died())
    for member in team:
        _wait_for(log, f"start {member.name}", count=2)
    supervisor.post_kill()
    assert supervisor.done.wait(60)
    assert [log.count(f"kill {member.name}") for member in team[:2]] == [2, 2]


def test_the_address_of_a_node_that_was_started_again_is_its_new_one():
    program = _Program(notice=5)
    program.members["store"].restart_policy = lp.RestartPolicy(initial_backoff_secs=0.0)
    key = program.store.reverb_address.key
    before = program.worker("store")
    program.end("store", _died())
    program.wait_for("start store", count=2)
    program.supervisor.post_publish(program.worker("store"), key, "host:2")
    program.supervisor.post_publish(before, key, "host:1")  # This report arrives late.
    program.supervisor.post_publish(None, key, "host:3")
    program.wait_for("address other host:3")
    assert "address other host:2" in program.log and "address other host:1" not in program.log
    program.supervisor.post_kill()
    assert program.supervisor.done.wait(60)


def test_a_launcher_that_was_stopped_takes_no_node_for_a_frozen_one():
    """After Ctrl-Z or a suspension of the machine, silence counts from the resumption."""
    log: list[str] = []
    member = lp_member.Member("actor", 0, lp.PyNode(print))
    member.restart_policy = lp.RestartPolicy(frozen_after_secs=60.0)
    member.worker = worker = _Worker("actor", log)
    supervisor = lp_supervisor.Supervisor(
        [member], lambda *_: worker, lp_address_book.AddressBook(), 1.0
    )
    for now in (1000.0, 1000.1):
        supervisor._end_frozen(now)
    worker.silent_secs = 300.0
    supervisor._end_frozen(1300.1)  # It checks ten times per second unless it is stopped.
    assert not log
    for tenth in range(590):
        supervisor._end_frozen(1300.2 + tenth / 10)
    assert not log
    for tenth in range(590, 620):
        supervisor._end_frozen(1300.2 + tenth / 10)
    assert log[0].startswith("end actor after 60")


def test_a_node_that_a_signal_has_stopped_is_not_given_the_time_of_a_busy_one():
    log: list[str] = []
    member = lp_member.Member("actor", 0, lp.PyNode(print))
    member.restart_policy = lp.RestartPolicy(frozen_after_secs=60.0)
    member.worker = worker = _Worker("actor", log)
    supervisor = lp_supervisor.Supervisor(
        [member], lambda *_: worker, lp_address_book.AddressBook(), 1.0
    )
    for tenth in range(300):
        supervisor._end_frozen(1000.0 + tenth / 10)
    worker.silent_secs = 11.0
    supervisor._end_frozen(1030.0)
    assert not log, "it may hold Python's lock"
    worker.is_stopped, worker.silent_secs = True, 9.0
    supervisor._end_frozen(1030.1)
    assert not log
    worker.silent_secs = 11.0
    supervisor._end_frozen(1030.2)
    assert log == ["end actor after 11 s"]
    member.restart_policy = lp.RestartPolicy(frozen_after_secs=None)
    supervisor._end_frozen(1030.3)
    assert len(log) == 1, "this node may be silent for ever"


def test_a_node_that_hangs_in_its_constructor_is_named_again_and_again(caplog):
    log: list[str] = []
    member = lp_member.Member("actor", 0, lp.PyNode(print))
    supervisor = lp_supervisor.Supervisor(
        [member], lambda *_: _Worker("actor", log), lp_address_book.AddressBook(), 1.0
    )
    supervisor._start(member)
    for secs in (100, 130, 250, 270):
        supervisor._name_slow_starts(member.started_at + secs)
    assert [record.getMessage() for record in caplog.records] == [
        "actor/0: its constructor has not returned for 130 s",
        "actor/0: its constructor has not returned for 270 s",
    ]
    member.state = lp_runtime.RUNNING
    supervisor._name_slow_starts(member.started_at + 1000)
    assert len(caplog.records) == 2 and log == ["start actor"]
