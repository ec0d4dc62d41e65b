"""Who listens on a port. `tests/rl_replicator/jobs/test_ports.py` tests who may connect to it."""

import os
import socket
import subprocess
import sys

import pytest

from rl_replicator.processes import ports

LISTENER = """
import socket, sys
server = socket.create_server(("127.0.0.1", 0))
print(server.getsockname()[1], flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("before", [None, "0", "1"])
@pytest.mark.parametrize("is_allowed", [False, True])
def test_permission_to_open_ports_ends_with_what_it_is_for(monkeypatch, before, is_allowed):
    monkeypatch.delenv(ports.OPEN_PORTS, raising=False)
    if before is not None:
        monkeypatch.setenv(ports.OPEN_PORTS, before)
    with pytest.raises(KeyError), ports.allowing_open_ports(is_allowed):
        assert os.environ.get(ports.OPEN_PORTS) == ("1" if is_allowed else before)
        raise KeyError
    assert os.environ.get(ports.OPEN_PORTS) == before


def test_listeners_of_other_processes_are_counted():
    command = [sys.executable, "-IS", "-c", LISTENER]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    with child, socket.create_server(("127.0.0.1", 0)) as own:
        assert ports.count_foreign(int(child.stdout.readline())) == 1
        assert ports.count_foreign(own.getsockname()[1]) == 0
        child.stdin.close()


def test_a_server_may_bind_a_chosen_port():
    chosen = [ports.choose("127.0.0.1") for _ in range(20)]
    assert len(set(chosen)) > 10
    with socket.socket() as server:
        server.bind(("127.0.0.1", chosen[0]))
        assert ports.choose("127.0.0.1", chosen[0]) != chosen[0]
    assert ports.choose("127.0.0.1", chosen[0]) == chosen[0]


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, "10.0.0.2,::1"),
        ({"no_proxy": "localhost,.lan,::1"}, "localhost,.lan,::1,10.0.0.2"),
        ({"no_proxy": "localhost", "no_grpc_proxy": "other"}, "other,10.0.0.2,::1"),
    ],
)
def test_connections_that_bypass_a_proxy(monkeypatch, variables, expected):
    for name in ("no_proxy", "no_grpc_proxy"):
        monkeypatch.setenv(name, "")  # Restores it after the test.
        monkeypatch.delenv(name)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    for _ in range(2):
        ports.bypass_proxy(["10.0.0.2", "10.0.0.2", "::1"])
        assert os.environ[ports._NO_PROXY] == expected
