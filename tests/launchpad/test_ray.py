"""Behaviour specific to the Ray engine."""

from __future__ import annotations

import contextlib
import os
import pathlib
import signal
import socket
import subprocess
import sys
import sysconfig
import threading
import time
import types

import psutil
import pytest

import launchpad as lp
from launchpad.engines import channel as lp_channel
from launchpad.engines import member as lp_member
from launchpad.engines.ray import cluster, control, engine, guard
from rl_replicator.processes import ports
from tests.launchpad import programs
from tests.waiting import run_python, wait_until

_MACHINE = "0f" * 28


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.2"])
def test_a_switchboard_hears_only_those_with_secret_and_key(host):
    """On one machine, at a socket of the user; between machines, at a port with certificates."""
    before = set(threading.enumerate())
    board, calls = control.Switchboard(host, b"t" * 32), []
    (listening,) = [t for t in threading.enumerate() if t.name == "control" and t not in before]
    key = board.expect(lambda *told: calls.append(told))
    try:
        for secret, shown in ((b"x" * 32, key), (b"t" * 32, b"k" * 16)):
            if secret != b"x" * 32 or host != "127.0.0.1":
                with pytest.raises(ConnectionError, match="is not the launcher of this program"):
                    control.call(board.address, secret, shown, _MACHINE)
        if host != "127.0.0.1":  # The key is of no use without a certificate.
            name, _, port = board.address.rpartition(":")
            with socket.create_connection((name, int(port)), 60) as plain:
                plain.sendall(key + bytes(32))
                with contextlib.suppress(OSError):
                    assert plain.recv(1) != b"\1"
        assert calls == []
        node = control.call(board.address, b"t" * 32, key, _MACHINE)
        wait_until(lambda: calls)
        channel, *told = calls[0]
        assert told == [os.getpid(), _MACHINE]
        node.send("state", "running")
        assert channel.receive() == ("state", "running")
        channel.close()
        assert node.receive() is None
        node.close()
    finally:
        board.close()
    with pytest.raises(ConnectionError):
        control.call(board.address, b"t" * 32, key, _MACHINE)
    listening.join(60)
    assert not listening.is_alive()


def test_a_node_talks_to_its_launcher_alone():
    """It does not talk to a process that has taken the port of a dead launcher."""
    heard = []

    def impersonate(listener):
        for _ in range(2):
            connection, _ = listener.accept()
            with connection, contextlib.suppress(OSError):
                connection.settimeout(10)
                heard.append(connection.recv(1000))
                connection.sendall(b"\1" * 32)
                heard.append(connection.recv(1000))

    with socket.create_server(("127.0.0.1", 0)) as listener:
        impostor = threading.Thread(target=impersonate, args=(listener,))
        impostor.start()
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        with pytest.raises(ConnectionError, match="is not the launcher of this program"):
            control.call(address, b"t" * 32, b"k" * 16, _MACHINE)
        impostor.join()
    assert not any(b"k" * 8 in each for each in heard)


@pytest.mark.parametrize("address", ["auto", "ray://host:10001", "host:", "[::1]:6379"])
def test_addresses_that_are_not_understood(address):
    with pytest.raises(ValueError, match="expected 'host:port'"):
        cluster.acquire(address)


def test_a_cluster_that_is_not_there(monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:9")
    monkeypatch.setattr(cluster, "_shared", None)
    with pytest.raises(ConnectionError, match="no Ray cluster answers at 127"):
        cluster._join("127.0.0.1:9", contextlib.ExitStack())
    monkeypatch.delenv("RAY_ADDRESS")
    with pytest.raises(ValueError, match="RAY_ADDRESS is not set"):
        cluster.acquire("env")


_ONE_AFTER_THE_OTHER = """
import os, socket, types
import ray
from launchpad.engines.ray import cluster
from ray import _raylet
from ray._private import services, worker

def settings():
    token = _raylet.AuthenticationTokenLoader.instance().get_raw_token(ignore_auth_mode=True)
    mode = _raylet.get_authentication_mode() == _raylet.AuthenticationMode.TOKEN
    is_loopback = services.get_node_ip_address() == cluster.LOOPBACK
    return mode, token == cluster._TOKEN or token, is_loopback

class Session:
    def __init__(self, **options):
        said.append(settings())

    def close(self):
        pass

def init(**options):
    tries.append(options)
    if len(tries) == 1:
        raise Exception("The current node timed out during startup.")

said, tries = [], []
real, cluster._Session = cluster._Session, Session
services.node_ip_address_from_perspective = lambda address: "10.0.0.1"
with socket.create_server((cluster.LOOPBACK, 0)) as listener:
    there = f"{cluster.LOOPBACK}:{listener.getsockname()[1]}"
    for address, secret in [(None, ""), (there, ""), (there, "theirs"), (None, "theirs")]:
        os.environ["RAY_AUTH_TOKEN"] = secret
        before = dict(os.environ)
        cluster.release(cluster.acquire(address))
        assert {**before, **os.environ} == before, os.environ
        assert settings() == (False, secret, False), settings()  # For connections of the user.
# A busy machine may be too slow for Ray's 30 s: it is started once more.
cluster._Session, ray.init, ray.shutdown = real, init, lambda: None
worker._global_node = types.SimpleNamespace()
cluster.release(cluster.acquire(None))
print(said, len(tries))
"""


def test_every_connection_has_its_own_token_and_network(tmp_path, monkeypatch):
    """Regardless of what Ray has read for an earlier connection of the same process."""
    for name in ("AUTH_MODE", "AUTH_TOKEN_PATH", "ENABLE_WINDOWS_OR_OSX_CLUSTER"):
        monkeypatch.delenv(f"RAY_{name}", raising=False)
    environment = {"HOME": str(tmp_path), "RAY_DEDUP_LOGS": "0"}
    environment |= {"RAY_COLOR_PREFIX": "0", "RAY_RUNTIME_ENV_IGNORE_GITIGNORE": "1"}
    done = run_python("-c", _ONE_AFTER_THE_OTHER, **environment)
    own, other = "(True, True, True)", "(False, '', False), (True, 'theirs', False)"
    assert done.stdout.strip() == f"[{own}, {other}, {own}] 2", done.stderr


def test_own_code_in_the_directory_of_an_environment_is_shipped(tmp_path, monkeypatch):
    paths = {**sysconfig.get_paths(), "data": str(tmp_path)}
    monkeypatch.setattr(sysconfig, "get_paths", lambda *_: paths)
    own, installed = tmp_path / "lp_own.py", tmp_path / "site-packages" / "lp_installed.py"
    installed.parent.mkdir()  # A user's site-packages, for example.
    for file in (own, installed):
        file.touch()
        module = types.ModuleType(file.stem)
        module.__file__ = str(file)
        monkeypatch.setitem(sys.modules, file.stem, module)
    assert str(own) in cluster.own_modules()
    assert str(installed) not in cluster.own_modules()
    places = {pathlib.Path(path).name for path in cluster.own_modules()}
    assert {"launchpad", "tests"} <= places and not places & {"grpc", "pytest", "json", "ray"}


def test_a_ray_of_ones_own_asks_for_its_token_and_stays_on_loopback(ray_connection):
    import ray

    host, _, port = ray.get_runtime_context().gcs_address.rpartition(":")
    assert host == "127.0.0.1"
    assert os.environ["RAY_AUTH_MODE"] == "token"
    code = (
        "from ray._raylet import GcsClient\n"
        f"GcsClient(address='127.0.0.1:{port}').internal_kv_keys(b'', namespace=None, timeout=50)"
    )
    done = run_python("-c", code, RAY_AUTH_TOKEN="wrong")
    assert done.returncode != 0
    assert "InvalidAuthToken" in done.stderr


class _Named:
    """Appends its process id to a file."""

    def __init__(self, path):
        with pathlib.Path(path).open("a") as file:
            file.write(f"{os.getpid()}\n")

    def run(self):
        lp.wait_for_stop()


# Another account takes a port as soon as it is free, and keeps what is sent there.
_TAKER = """
import concurrent.futures, contextlib, os, socket, sys, time
import grpc

class Keeper(grpc.GenericRpcHandler):
    def service(self, details):
        print("received", details.method, details.invocation_metadata, flush=True)

server = grpc.server(concurrent.futures.ThreadPoolExecutor(1), handlers=(Keeper(),))
os.setgroups([]), os.setgid(65534), os.setuid(65534)
print("ready", flush=True)
while True:
    with contextlib.suppress(OSError), socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(("127.0.0.1", int(sys.argv[1])))
        break
    time.sleep(0.01)
assert server.add_insecure_port(f"127.0.0.1:{sys.argv[1]}")
server.start()
print("taken", flush=True)
time.sleep(1000)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another account")
def test_another_account_receives_nothing_at_the_port_of_a_dead_node(ray_connection, tmp_path):
    """Ray's calls hold its token, with which anyone can run code."""
    path = tmp_path / "pids"
    program = lp.Program("test")
    program.add_node(lp.PyClassNode(_Named, str(path)), label="named")
    policy = lp.RestartPolicy(initial_backoff_secs=0.1)
    manager = lp.launch(program, "ray", restart_policies={"named": policy})
    pids = wait_until(lambda: path.exists() and path.read_text().split())
    (port,) = (
        each.laddr.port
        for each in psutil.Process(int(pids[0])).net_connections("tcp")
        if each.status == psutil.CONN_LISTEN
    )
    taker = subprocess.Popen(
        [sys.executable, "-c", _TAKER, str(port)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert taker.stdout.readline() == "ready\n"
        os.kill(int(pids[0]), signal.SIGKILL)
        assert taker.stdout.readline() == "taken\n"
        wait_until(lambda: len(path.read_text().split()) == 2)
        time.sleep(2.0)  # Long enough for clients that connect again.
    finally:
        manager.stop_and_wait()
        taker.kill()
    assert taker.stdout.read() == ""


def test_nodes_have_the_priority_of_their_program(ray_connection):
    """Ray's default niceness is 15, with which other processes leave them hardly any CPU time."""
    import ray

    assert ray.get(ray.remote(lambda: os.nice(0)).remote()) == os.nice(0)


def test_lines_carry_the_name_of_their_node(ray_connection, capfd):
    program, _ = programs.recorder_program()
    program.add_node(lp.PyNode(programs.print_lines), label="printer")
    assert lp.launch(program, "ray").wait(timeout=60)
    said = []
    wait_until(lambda: said.append(capfd.readouterr().out) or "second line" in "".join(said))
    lines = [line for line in "".join(said).splitlines() if line.startswith("(printer/0 pid=")]
    assert [line.partition(") ")[2] for line in lines] == ["first line", "second line"]


def test_a_node_whose_error_does_not_arrive_has_failed(ray_connection, monkeypatch):
    """Its exit status shows that it has failed."""

    def receive(channel, receive=lp_channel.Channel.receive):
        while (message := receive(channel)) is not None and message[0] == "failed":
            pass
        return message

    monkeypatch.setattr(lp_channel.Channel, "receive", receive)
    program = lp.Program("test")
    program.add_node(lp.PyNode(programs.raise_unpicklable), label="odd")
    with pytest.raises(lp.NodeFailedError, match="odd/0 failed.* the process ended with status 1"):
        lp.launch(program, "ray").wait(timeout=60)


def test_a_node_whose_machine_falls_silent_is_given_up(ray_connection):
    """On this machine, its end is told by Ray alone."""
    ended, lost = [], set()
    supervisor = types.SimpleNamespace(
        post=lambda worker, _, record: ended.append((worker, record))
    )
    workers = []
    for label, of_cluster in (("here", None), ("there", lost)):
        member = lp_member.Member(label, 0, lp.PyNode(print))
        workers.append(engine.RayWorker(member, supervisor, None, None, None, of_cluster))
        near, far = socket.socketpair()
        workers[-1].attach(lp_channel.Channel(near))
        far.close()
    wait_until(lambda: ended)
    time.sleep(0.3)
    assert [worker.name for worker, _ in ended] == ["there/0"]
    told = "its machine was silent for 12 s (it gets nodes again once Ray on it is started anew)"
    assert ended[0][1].message == told and len(lost) == 1
    for worker in workers:
        worker.close()


def test_a_stopped_process_of_this_machine_is_seen():
    """It is killed after ten seconds, not after a minute."""
    member = lp_member.Member("node", 0, lp.PyNode(print))
    workers = [engine.RayWorker(member, None, None, None, None, lost) for lost in (None, set())]
    with subprocess.Popen(["sleep", "1000"]) as process:
        try:
            for worker in workers:
                assert not worker.is_stopped
                worker.pid = process.pid
            assert not workers[0].is_stopped
            process.send_signal(signal.SIGSTOP)
            wait_until(lambda: workers[0].is_stopped)
            assert not workers[1].is_stopped, "on a cluster, the number may be another machine's"
        finally:
            process.kill()


@pytest.mark.parametrize("is_dead", [True, False])
def test_the_guard_ends_what_a_dead_launcher_left(tmp_path, is_dead):
    code = "import sys; file = open(sys.argv[1], 'w'); print(flush=True); sys.stdin.read()"
    with (
        (tmp_path / "own").open("w"),  # The launcher itself is not killed.
        subprocess.Popen(
            [sys.executable, "-c", code, str(tmp_path / "log")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        ) as writer,
        subprocess.Popen(
            [sys.executable, "-I", "-S", guard.__file__, str(tmp_path), str(os.getpid())],
            stdin=subprocess.PIPE,
        ) as watcher,
    ):
        writer.stdout.readline()
        state = pathlib.Path(f"/proc/{watcher.pid}/status")
        wait_until(lambda: "SigBlk:\t0000000000004001" in state.read_text())
        watcher.terminate()  # As a service manager does, which signals all processes of a job.
        assert writer.poll() is None
        watcher.communicate(b"" if is_dead else guard.DONE, timeout=60)
        assert watcher.returncode == 0
        writer.stdin.close()
        assert writer.wait(timeout=60) == (-signal.SIGKILL if is_dead else 0)
    assert not tmp_path.exists()


_NODE_ON_ANOTHER_HOST = """
import sys, threading, time
from launchpad.engines.ray import control
from rl_replicator.processes import ports

ports.SILENCE_SECONDS = float(sys.argv[2])
channel = control.call(sys.argv[1], b"t" * 32, bytes.fromhex(sys.argv[3]), "00" * 28)

def beat():
    while channel.send("heartbeat"):
        time.sleep(0.1)

threading.Thread(target=beat, daemon=True).start()
while channel.receive() is not None:
    pass
"""


def test_both_sides_of_a_link_that_is_cut_give_up(other_host, monkeypatch):
    name, here, cut = other_host
    monkeypatch.setattr(ports, "SILENCE_SECONDS", 3.0)
    board = control.Switchboard(here, b"t" * 32)
    calls = []
    key = board.expect(lambda channel, *told: calls.append(channel))
    command = ["ip", "netns", "exec", name, sys.executable, "-c", _NODE_ON_ANOTHER_HOST]
    node = subprocess.Popen([*command, board.address, "3", key.hex()])
    try:
        wait_until(lambda: calls)
        (channel,) = calls
        assert channel.receive() == ("heartbeat",)
        began = time.monotonic()
        cut()
        while channel.receive() is not None:  # This side sends nothing; the node does.
            pass
        assert node.wait(60) == 0
        assert 2 < time.monotonic() - began < 60
        channel.close()
    finally:
        node.kill()
        node.wait()
        board.close()
