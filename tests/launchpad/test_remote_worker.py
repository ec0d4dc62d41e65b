"""What a launcher makes of a node's process: what it was told last, and how it ended."""

from __future__ import annotations

import socket
import threading
import time
import types

import pytest

import launchpad as lp
from launchpad import errors
from launchpad.launch import channel as lp_channel
from launchpad.launch import member as lp_member
from launchpad.launch import remote_worker

_DEATH = errors.ExceptionRecord(errors.PROCESS_DIED, "ended with status 1", "")


class _Worker(remote_worker.RemoteWorker):
    def start(self) -> None:
        pass

    def kill(self) -> None:
        pass


class _LateChannel(lp_channel.Channel):
    """Its reader gets no processor time before `may_read`."""

    def __init__(self, connection: socket.socket):
        super().__init__(connection)
        self.may_read = threading.Event()

    def receive(self):
        assert self.may_read.wait(60)
        return super().receive()


@pytest.mark.parametrize("is_inherited", [False, True])
def test_what_a_node_told_is_why_it_ended_however_late_it_is_read(monkeypatch, is_inherited):
    """Or a node that raised would be started again, as if it had died."""
    monkeypatch.setattr(remote_worker, "_ARRIVAL_SECS", 0.05)
    ended = []
    supervisor = types.SimpleNamespace(
        post_failing=lambda worker, record: None,
        post_ended=lambda worker, record: ended.append(record),
    )
    ours, nodes = socket.socketpair()
    channel = _LateChannel(ours)
    worker = _Worker(lp_member.Member("node", 0, lp.PyNode(print)), supervisor)
    worker.attach(channel)
    raised = errors.ExceptionRecord.of(ValueError("why it ended"))
    assert lp_channel.Channel(nodes).send("failed", raised)
    if not is_inherited:  # By a process that outlives the node.
        nodes.close()
    threading.Timer(0.3, channel.may_read.set).start()
    begun = time.monotonic()
    worker.report_end(_DEATH)
    assert ended == [raised]
    assert time.monotonic() - begun < 20
    nodes.close()
    worker.close()
