"""The control channel between a launcher and a node, when one of them is stopped."""

from __future__ import annotations

import array
import fcntl
import socket
import termios
import threading
import time

import pytest

from launchpad.engines import channel as lp_channel

_LONG = "x" * 100_000


@pytest.fixture
def pair():
    """The sockets of launcher and node, with send buffers of minimum size."""
    launcher, node = socket.socketpair()
    for end in (launcher, node):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)  # The kernel uses its minimum.
    yield launcher, node
    launcher.close()
    node.close()


def _beat_until_full(channel: lp_channel.Channel) -> int:
    """Sends heartbeats that nobody reads; returns how many fitted before one was dropped."""
    for count in range(1000):
        before = _num_unread(channel)
        assert channel.send_or_drop("heartbeat")
        if _num_unread(channel) == before:
            return count
    raise AssertionError("expected a socket that fills up")


def _num_unread(channel: lp_channel.Channel) -> int:
    """Returns how much data the kernel holds that the peer has not read."""
    found = array.array("i", [0])
    fcntl.ioctl(channel._connection.fileno(), termios.TIOCOUTQ, found)
    return found[0]


def test_a_launcher_that_was_stopped_hears_of_all_that_happened_meanwhile(pair):
    """After a stop of any length, it finds the buffer full and the nodes still alive."""
    launcher, node = (lp_channel.Channel(end) for end in pair)
    count = _beat_until_full(node)
    assert count > 0
    for _ in range(100):
        assert node.send_or_drop("heartbeat"), "the launcher is stopped, and not gone"
    told = []

    def tell() -> None:
        told.append([node.send("state", "finished"), node.send("failed", _LONG)])

    telling = threading.Thread(target=tell, daemon=True)
    telling.start()
    time.sleep(lp_channel.LAUNCHER_PATIENCE_SECS + 1.0)
    assert not told, "a message waits for the launcher"
    begun = time.monotonic()
    assert node.send_or_drop("heartbeat")
    assert time.monotonic() - begun < 30, "a sign of life waits for nobody"
    received = [launcher.receive() for _ in range(count + 2)]
    assert received == [("heartbeat",)] * count + [("state", "finished"), ("failed", _LONG)]
    telling.join(60)
    assert told == [[True, True]]
    assert node.send_or_drop("heartbeat")
    assert launcher.receive() == ("heartbeat",)


def test_a_frozen_node_delays_its_launcher_once_and_loses_nothing(pair):
    launcher, node = lp_channel.Channel(pair[0], 0.2), lp_channel.Channel(pair[1])
    sent = [("address", str(number), _LONG if number == 7 else "host") for number in range(1000)]
    begun = time.monotonic()
    assert all(launcher.send(*message) for message in sent)
    assert time.monotonic() - begun < 60
    received: list[tuple] = []

    def read() -> None:
        while received[-1:] != [("stop",)]:
            received.append(node.receive())

    reading = threading.Thread(target=read, daemon=True)
    reading.start()
    deadline = time.monotonic() + 60
    while _num_unread(launcher) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert len(received) < len(sent)
    assert launcher.send("stop")
    reading.join(60)
    assert received == [*sent, ("stop",)]


def test_a_peer_that_is_gone_ends_every_wait(pair):
    node = lp_channel.Channel(pair[1])
    _beat_until_full(node)
    ended = []
    sending = threading.Thread(target=lambda: ended.append(node.send("stop")), daemon=True)
    sending.start()
    time.sleep(0.2)
    pair[0].close()
    sending.join(60)
    assert ended == [False]
    assert not node.send_or_drop("heartbeat") and not node.send("stop")
    assert node.receive() is None
