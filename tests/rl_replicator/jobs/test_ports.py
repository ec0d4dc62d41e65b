"""The ports of a job: who can connect to TensorFlow's servers."""

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from rl_replicator.jobs import ports
from rl_replicator.processes.ports import OpenPortError
from tests.suite import forked, sockets

ROOT = Path(__file__).parents[3]
# Parameter servers and their workers serve until the chief ends.
PROGRAM = """
import os, time
import rl_replicator as rr
print("pid", os.getpid())
rr.make(NAME)
print("up")
time.sleep(200)
"""


@pytest.mark.processes
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("options", "name", "num_servers"),
    [
        (["--workers", "2"], "multi_worker", 2),
        (["--workers", "1", "--parameter-servers", "1"], "multi_worker_async", 3),
    ],
)
def test_only_this_machine_can_connect_to_tensorflows_servers(tmp_path, options, name, num_servers):
    (tmp_path / "program.py").write_text(PROGRAM.replace("NAME", repr(name)))
    command = [sys.executable, "-m", "rl_replicator.jobs", *options, "--", *forked.python()]
    job = subprocess.Popen(
        [*command, str(tmp_path / "program.py")],
        cwd=ROOT,
        # The processes of a job must not use a proxy; nothing answers at this one.
        env={**os.environ, "PYTHONPATH": str(ROOT), "http_proxy": "http://127.0.0.1:9"},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        pids, is_up = [], False
        for line in job.stdout:
            words = line.split()
            if "pid" in words:
                pids.append(int(words[-1]))
            is_up |= "up" in words
            if is_up and len(pids) == num_servers:
                break
        listeners = {pid: sockets.listening(psutil.Process(pid)) for pid in pids}
    except BaseException:
        job.kill()
        raise
    try:
        assert len(pids) == num_servers and all(listeners.values()), listeners
        for _, port in set().union(*listeners.values()):
            assert sockets.accepts("127.0.0.1", port)
            for outer in sockets.outer_addresses():
                # A server is closed to others soon after it has begun to listen, and the chief may
                # be up before another task has done that.
                deadline = time.monotonic() + 30
                while sockets.accepts(outer, port) and time.monotonic() < deadline:
                    time.sleep(0.1)
                assert not sockets.accepts(outer, port), (outer, port)
    finally:
        job.terminate()
        job.communicate(timeout=60)


@pytest.fixture
def listener():
    with socket.create_server(("", 0)) as server:
        yield server


@pytest.fixture
def outer_interface(monkeypatch):
    """A network interface to other machines, whatever this machine has."""
    monkeypatch.setattr(socket, "if_nameindex", lambda: [(1, "lo"), (2, "net0")])


@pytest.mark.usefixtures("outer_interface")
def test_a_job_on_several_machines_needs_permission(monkeypatch, caplog):
    with socket.create_server(("", 0)) as server:
        port = server.getsockname()[1]
    addresses = [f"127.0.0.1:{port}", "10.0.0.2:2222"]
    monkeypatch.delenv("RL_REPLICATOR_OPEN_PORTS", raising=False)
    found = f"TensorFlow's port {port} is open on net0: anyone who reaches this machine there can"
    with pytest.raises(
        OpenPortError, match=f"expected --open-ports, because {found} read and write"
    ):
        ports.check_may_listen(addresses[0], addresses)
    ports.check_may_listen(addresses[0], [addresses[0], "localhost:2222"])
    assert not caplog.records
    monkeypatch.setenv("RL_REPLICATOR_OPEN_PORTS", "1")
    ports.check_may_listen(addresses[0], addresses)
    (record,) = caplog.records
    assert record.getMessage().startswith(found)


def test_a_machine_that_nobody_reaches_needs_no_permission(monkeypatch, caplog):
    monkeypatch.delenv("RL_REPLICATOR_OPEN_PORTS", raising=False)
    monkeypatch.setattr(socket, "if_nameindex", lambda: [(1, "lo")])
    with socket.create_server(("", 0)) as server:
        port = server.getsockname()[1]
    ports.check_may_listen(f"127.0.0.1:{port}", ["10.0.0.1:1", "10.0.0.2:2222"])
    assert not caplog.records


def test_a_job_on_several_machines_is_reachable(listener):
    port = listener.getsockname()[1]
    addresses = [f"127.0.0.1:{port}", "a-host-name:2222"]
    assert not ports.confine_if_local(addresses[0], addresses)
    for outer in sockets.outer_addresses():
        if ":" not in outer:
            assert sockets.accepts(outer, port)


def test_the_port_of_a_job_on_this_machine_is_confined(listener):
    port = listener.getsockname()[1]
    addresses = [f"localhost:{port}", "[::1]:2222", "127.0.0.2:3"]
    assert ports.confine_if_local(addresses[0], addresses)
    assert sockets.accepts("127.0.0.1", port)
    assert not any(sockets.accepts(outer, port) for outer in sockets.outer_addresses())


@pytest.mark.usefixtures("outer_interface")
def test_a_port_that_cannot_be_confined_needs_permission(listener, monkeypatch, caplog):
    port = listener.getsockname()[1]
    address = f"127.0.0.1:{port}"
    monkeypatch.delenv("RL_REPLICATOR_OPEN_PORTS", raising=False)
    with pytest.raises(
        OpenPortError, match=f"port {port} is open on net0: .*could not be confined"
    ):
        ports.confine_if_local(address, [address], device="nowhere0")
    monkeypatch.setenv("RL_REPLICATOR_OPEN_PORTS", "1")
    assert not ports.confine_if_local(address, [address], device="nowhere0")
    (record,) = caplog.records
    assert f"port {port} is open on net0" in record.getMessage()
    assert sockets.accepts("127.0.0.1", port)
