"""The control channel between a launcher and a node, when one of them is stopped or ends."""

from __future__ import annotations

import socket
import threading
import time
import types

import pytest

import launchpad as lp
from launchpad import errors
from launchpad.engines import channel as lp_channel
from launchpad.engines import member as lp_member
from tests.waiting import wait_until

_DEATH = errors.ExceptionRecord(errors.PROCESS_DIED, "ended with status 1", "")
_RAISED = errors.ExceptionRecord.of(ValueError("why it ended"))


class _Worker(lp_channel.RemoteWorker):
    """`ended` has how it ended, as often as it was told."""

    def __init__(self):
        self.ended, self.told_by = [], None
        supervisor = types.SimpleNamespace(post=self._post)
        super().__init__(lp_member.Member("node", 0, lp.PyNode(print)), supervisor)

    def _post(self, worker, kind, record) -> None:
        if kind == "ended":
            self.told_by = threading.current_thread()
            self.ended.append(record)

    def start(self) -> None:
        pass

    def kill(self) -> None:
        # The thread that waits for the process notices immediately.
        threading.Thread(target=self.report_end, args=(_DEATH,)).start()


class _LateChannel(lp_channel.Channel):
    """A channel whose reader gets no processor time before `may_read` is set."""

    def __init__(self, connection: socket.socket):
        super().__init__(connection)
        self.may_read = threading.Event()

    def receive(self):
        assert self.may_read.wait(60)
        return super().receive()


@pytest.fixture
def pair(monkeypatch):
    """The sockets of launcher and node, with send buffers of minimum size."""
    monkeypatch.setattr(lp_channel, "_ARRIVAL_SECS", 0.05)
    launcher, node = socket.socketpair()
    for end in (launcher, node):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)  # The kernel uses its minimum.
    node.settimeout(60)
    yield launcher, node
    launcher.close()
    node.close()


def test_a_launcher_that_was_stopped_hears_of_all_that_happened_meanwhile(pair):
    launcher, node = (lp_channel.Channel(end) for end in pair)
    sent = [("state", str(number), "x" * 1000) for number in range(1000)]
    telling = threading.Thread(target=lambda: [node.send(*each) for each in sent], daemon=True)
    telling.start()
    time.sleep(0.2)
    assert telling.is_alive(), "a message waits for the launcher"
    assert [launcher.receive() for _ in sent] == sent
    pair[0].shutdown(socket.SHUT_RDWR)
    telling.join(60)
    assert not node.send("heartbeat") and node.receive() is None


def test_a_frozen_node_holds_up_nobody_and_gets_all_once_it_reads(pair):
    worker = _Worker()
    worker.send_address("early", "host:1")  # It is not attached yet.
    worker.attach(lp_channel.Channel(pair[0]))
    for number in range(1000):
        worker.send_address(str(number), "host" * 1000)
    worker.notify_stop()
    node, received = lp_channel.Channel(pair[1]), []
    while received[-1:] != [("stop",)]:
        received.append(node.receive())
    assert received[:2] == [("begin",), ("address", "early", "host:1")] and len(received) == 1003
    worker.close()


@pytest.mark.parametrize("is_inherited", [False, True])
def test_what_a_node_told_is_why_it_ended_however_late_it_is_read(pair, is_inherited):
    """Otherwise, a node that raised would be restarted as if its process had died."""
    channel, worker = _LateChannel(pair[0]), _Worker()
    worker.attach(channel)
    assert lp_channel.Channel(pair[1]).send("failed", _RAISED)
    if not is_inherited:  # Else a process that outlives the node holds the socket.
        pair[1].close()
    threading.Timer(0.3, channel.may_read.set).start()
    worker.report_end(_DEATH)
    assert worker.ended == [_RAISED]
    worker.close()


def test_giving_up_frozen_nodes_does_not_hold_up_the_supervisor(pair):
    """The connection of a lost machine stays open but silent; the time frozen is no life."""
    worker = _Worker()
    worker.attach(lp_channel.Channel(pair[0]))
    worker.end_frozen(61.0)
    wait_until(lambda: len(worker.ended) == 2)
    assert worker.told_by is not threading.current_thread(), "the caller has waited"
    assert worker.silent_secs == 0.0, "it would be killed again and again"
    assert [(each.message, each.stuck_secs) for each in worker.ended] == [
        ("no sign of life for 61 s; killed", 61.0)
    ] * 2
    worker.close()
