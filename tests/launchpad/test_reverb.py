"""A program with a real Reverb table."""

from __future__ import annotations

import os
import subprocess
import sys

import psutil
import pytest

import launchpad as lp
from tests.launchpad import programs
from tests.suite import sockets
from tests.waiting import run_python


def _tables():
    import reverb

    return [
        reverb.Table(
            "queue",
            sampler=reverb.selectors.Fifo(),
            remover=reverb.selectors.Fifo(),
            max_size=100,
            rate_limiter=reverb.rate_limiters.MinSize(1),
        )
    ]


def _write_until_the_end(client, recorder) -> None:
    lp.stop_event()  # From here on, it is not interrupted.
    for number in range(5):
        client.insert([float(number)], {"queue": 1.0})
    sample = next(iter(client.sample("queue", 1)))
    recorder.add(float(sample[0].data[0]))
    assert lp.wait_for_stop(100)
    # The table outlives the stop until its writers have left.
    client.insert([5.0], {"queue": 1.0})
    recorder.add(client.server_info()["queue"].current_size)


def test_a_table_serves_until_its_writers_have_left(tmp_path, monkeypatch):
    # Nodes of a program must not use a proxy; nothing listens at this one.
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    for name in ("no_proxy", "no_grpc_proxy"):
        monkeypatch.setenv(name, "")  # Restores it after the test.
        monkeypatch.delenv(name)
    program, recorder = programs.recorder_program(tmp_path / "entries")
    replay = program.add_node(lp.ReverbNode(_tables), label="replay")
    program.add_node(lp.PyNode(_write_until_the_end, replay, recorder), label="writer")
    manager = lp.launch(program, "test_mp", termination_notice_secs=100)
    client = manager.resolve(recorder)
    while not client.entries():
        assert not manager.wait(timeout=0.1)
    for address, port in sockets.listening(psutil.Process()):
        is_open = any(sockets.accepts(outer, port) for outer in sockets.outer_addresses())
        assert not is_open, (address, port)
    manager.stop()
    assert manager.wait(timeout=60)
    assert (tmp_path / "entries").read_text() == "0.0\n6\n"


_LAUNCH = """
import launchpad as lp
for node in (lp.PyNode(int), lp.MultiThreadingColocation([lp.ReverbNode(list)])):
    try:
        lp.launch(lp.make_program(node), "local_mt").wait()
        print("runs")
    except ConnectionError as error:
        print(error)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root")
def test_a_machine_without_loopback_is_told_at_once():
    command = ["unshare", "--net", sys.executable, "-c", _LAUNCH]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    first, second = done.stdout.splitlines()
    assert first == "runs", "a program without Reverb needs no network"
    assert (
        second.startswith("expected a loopback interface, got ") and "ip link set lo up" in second
    )


_OPEN_WRITERS = """
import gc
import numpy as np
import reverb
import launchpad as lp

gc.disable()  # What the nodes leave is destroyed at the end.
kept = []

class Actor:
    def __init__(self, client):
        self.writers = [client.writer(2), client.trajectory_writer(num_keep_alive_refs=1)]
        self.cycle = self

    def run(self):
        stop, (old, new) = lp.stop_event(), self.writers
        while not stop.wait(0.01):
            old.append([np.float32(1)])
            old.create_item("queue", 1, 1.0)
            new.append([np.float32(1)])
            new.create_item("queue", 1.0, [new.history[0][-1:]])
            lp.stop()

class Keeping(Actor):
    def __init__(self, client):
        super().__init__(client)
        kept.append(self)

class Flushing(Actor):
    # As adders of Acme do.
    def run(self):
        writer = self.writers[1]
        for row in range(2):
            writer.append([np.float32(row)])
            writer.create_item("full", 1.0, [writer.history[0][-1:]])

    def __del__(self):
        self.writers[1].flush(0, timeout_ms=100)
        self.writers[1].close()

program = lp.Program("writers")
tables = lambda: [reverb.Table.queue("queue", 1000), reverb.Table.queue("full", 1)]
replay = program.add_node(lp.ReverbNode(tables), label="replay")
for kind in (Actor, Keeping, Flushing):
    program.add_node(lp.PyClassNode(kind, replay), label="actor")
lp.launch(program, "local_mt").wait()
print("ended", flush=True)
"""


def test_writers_that_nodes_in_threads_leave_open_do_not_hold_up_the_exit():
    """The interpreter's last collection destroys them, and they tried to reach the server."""
    done = run_python("-c", _OPEN_WRITERS)
    assert (done.returncode, done.stdout) == (0, "ended\n"), done.stderr
    assert "Exception ignored" not in done.stderr
