"""How a launcher interprets a node's process: its last messages, and how it ended."""

from __future__ import annotations

import pickle
import socket
import threading
import time
import types

import pytest

import launchpad as lp
from launchpad import errors
from launchpad.engines import channel as lp_channel
from launchpad.engines import child as lp_child
from launchpad.engines import failures, remote_worker
from launchpad.engines import member as lp_member
from tests.waiting import wait_until

_DEATH = errors.ExceptionRecord(errors.PROCESS_DIED, "ended with status 1", "")


class _Worker(remote_worker.RemoteWorker):
    def start(self) -> None:
        pass

    def kill(self) -> None:
        pass


class _LateChannel(lp_channel.Channel):
    """A channel whose reader gets no processor time before `may_read` is set."""

    def __init__(self, connection: socket.socket):
        super().__init__(connection)
        self.may_read = threading.Event()

    def receive(self):
        assert self.may_read.wait(60)
        return super().receive()


def _supervisor(ended):
    """Returns a supervisor that appends to `ended` how workers ended."""
    return types.SimpleNamespace(
        post_failing=lambda worker, record: None,
        post_ended=lambda worker, record: ended.append(record),
    )


@pytest.mark.parametrize("is_inherited", [False, True])
def test_what_a_node_told_is_why_it_ended_however_late_it_is_read(monkeypatch, is_inherited):
    """Otherwise, a node that raised would be restarted as if its process had died."""
    monkeypatch.setattr(remote_worker, "_ARRIVAL_SECS", 0.05)
    ended = []
    ours, nodes = socket.socketpair()
    channel = _LateChannel(ours)
    worker = _Worker(lp_member.Member("node", 0, lp.PyNode(print)), _supervisor(ended))
    worker.attach(channel)
    raised = errors.ExceptionRecord.of(ValueError("why it ended"))
    assert lp_channel.Channel(nodes).send("failed", raised)
    if not is_inherited:  # Else a process that outlives the node holds the socket.
        nodes.close()
    threading.Timer(0.3, channel.may_read.set).start()
    begun = time.monotonic()
    worker.report_end(_DEATH)
    assert ended == [raised]
    assert time.monotonic() - begun < 20
    nodes.close()
    worker.close()


def test_what_a_node_told_counts_although_it_ends_while_it_is_attached():
    """On Ray, a node's connection and its end are handled by two threads."""

    class LateWorker(_Worker):
        def _thread(self, *args):
            time.sleep(0.3)  # The thread that attaches gets no processor time.
            return super()._thread(*args)

    ended = []
    ours, nodes = socket.socketpair()
    nodes.settimeout(30)
    node = lp_channel.Channel(nodes)
    worker = LateWorker(lp_member.Member("node", 0, lp.PyNode(print)), _supervisor(ended))
    attaching = threading.Thread(target=worker.attach, args=(lp_channel.Channel(ours),))
    attaching.start()
    assert node.receive() == ("begin",)
    raised = errors.ExceptionRecord.of(ValueError("why it ended"))
    assert node.send("failed", raised)
    node.close()
    worker.report_end(None)
    assert ended == [raised]
    attaching.join()
    worker.close()


def test_the_time_in_which_a_node_was_frozen_is_no_life():
    """Otherwise, a node that freezes after each start would be restarted forever."""
    member = lp_member.Member("node", 0, lp.PyNode(print))
    member.restart_policy = lp.RestartPolicy(max_restarts=2, frozen_after_secs=400.0)
    pauses, ended = [], []
    for now in (405.0, 810.0, 1215.0):
        ended.clear()
        worker = _Worker(member, _supervisor(ended))
        worker.end_frozen(401.0)
        wait_until(lambda: ended)
        (record,) = ended
        assert record.message == "no sign of life for 401 s; killed"
        pauses.append(failures.count_restart(member, record, now))
        member.started_at = now
    assert pauses == [0.5, 1.0, None]


def test_giving_up_frozen_nodes_does_not_hold_up_the_supervisor():
    """The connections of a lost machine stay open but silent."""
    ended, kills, workers = [], [], []
    pairs = [socket.socketpair() for _ in range(4)]
    for ours, _ in pairs:
        workers.append(_Worker(lp_member.Member("node", 0, lp.PyNode(print)), _supervisor(ended)))
        workers[-1].kill = lambda: kills.append(1)
        workers[-1].attach(lp_channel.Channel(ours))
    begun = time.monotonic()
    for _ in range(3):  # Repeatedly, as before the supervisor learns of their end.
        for worker in workers:
            worker.end_frozen(61.0)
    assert time.monotonic() - begun < 0.9 * remote_worker._ARRIVAL_SECS
    wait_until(lambda: len(ended) == 4)
    assert [record.stuck_secs for record in ended] == [61.0] * 4 and len(kills) == 4
    for worker, (_, nodes) in zip(workers, pairs, strict=True):
        nodes.close()
        worker.close()


def test_what_is_told_of_a_frozen_process_is_not_how_it_was_killed():
    """The thread that waits for the process notices immediately that it was killed."""

    class Watched(_Worker):
        def kill(self) -> None:
            self.report_end(_DEATH)

    ended = []
    Watched(lp_member.Member("node", 0, lp.PyNode(print)), _supervisor(ended)).end_frozen(61.0)
    wait_until(lambda: ended)
    assert [record.message for record in ended] == ["no sign of life for 61 s; killed"]


def test_a_node_asks_whether_its_launcher_runs():
    ours, nodes = socket.socketpair()
    nodes.settimeout(30)
    node = lp_channel.Channel(nodes)
    worker = _Worker(lp_member.Member("node", 0, lp.PyNode(print)), types.SimpleNamespace())
    worker.attach(lp_channel.Channel(ours))
    assert node.receive() == ("begin",)
    assert node.send("ping")
    assert node.receive() == ("pong",)
    node.close()
    worker.close()


def test_a_node_that_reads_again_gets_all_it_was_told():
    ours, nodes = socket.socketpair()
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)  # The kernel uses its minimum.
    nodes.settimeout(0.2)
    node = lp_channel.Channel(nodes)
    worker = _Worker(lp_member.Member("node", 0, lp.PyNode(print)), types.SimpleNamespace())
    worker.attach(lp_channel.Channel(ours, patience_secs=0.1))
    address = "host" * 100_000
    worker.send_address("key", address)
    assert node.receive() == ("begin",)
    received = None
    deadline = time.monotonic() + 60
    data = bytearray()
    while received is None and time.monotonic() < deadline:
        node.send("heartbeat")
        try:
            data += nodes.recv(1 << 20)
        except TimeoutError:
            continue
        if len(data) > len(address):
            received = pickle.loads(data[4:])
    assert received == ("address", "key", address)
    node.close()
    worker.close()


@pytest.mark.parametrize("is_told_to_stop", [False, True])
def test_a_stranger_s_sigterm_waits_for_a_launcher_that_gets_no_time(monkeypatch, is_told_to_stop):
    """The launcher may have received SIGTERM as well, as all processes of a service do."""
    monkeypatch.setattr(lp_child, "_LAUNCHER_SECS", 0.1)
    sent, died = [], []
    node = types.SimpleNamespace(
        runtime=types.SimpleNamespace(stop_event=threading.Event()),
        _channel=types.SimpleNamespace(send=sent.append),
        _launcher_runs=threading.Event(),
        _die=died.append,
    )
    obeying = threading.Thread(target=lp_child.Child._obey_stranger, args=(node,))
    obeying.start()
    obeying.join(0.5)
    assert obeying.is_alive() and sent == ["ping"]
    (node.runtime.stop_event if is_told_to_stop else node._launcher_runs).set()
    obeying.join(30)
    assert not obeying.is_alive()
    assert [record.message for record in died] == [lp_child._BY_SIGTERM][is_told_to_stop:]
