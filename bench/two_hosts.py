"""Runs one program on two Ray hosts, which are two network namespaces of this machine.

    sudo .venv/bin/python bench/two_hosts.py kill
    sudo .venv/bin/python bench/two_hosts.py cut
    sudo .venv/bin/python bench/two_hosts.py interrupt 20
    sudo .venv/bin/python bench/two_hosts.py run rl-replicator train d4pg --env cartpole:swingup \
        --steps 4000 --actors 4 --replicas multi_worker:2 --launch ray --address 10.77.41.1:6379

Each namespace has its own address and reaches the other through a veth pair; `ray start` runs in
both, with token authentication. The launcher runs in the first, and connects to the cluster by its
address. It prints where the actors run and from where they imported their code. Then `kill` kills
all processes of the second host, `cut` makes the link between the hosts drop every packet, and
`interrupt SECONDS` does so for that time: no connection is closed, and no error is sent. It prints
how long the program takes to recover. After `kill` and `cut`, the nodes of the second host, the
learner or actors, must be restarted on the first, and after `cut` their old processes must end by
themselves. `run` runs a command of this project in the first namespace, and prints which nodes, or
which trials of a sweep or suite, are on which host.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import re
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from typing import Any

HOSTS = {"lp-a": "10.77.41.1", "lp-b": "10.77.41.2"}
ADDRESS = "10.77.41.1:6379"
_NUM_ACTORS = 4
_START_SECS = 180.0
_RECOVERY_SECS = 300.0
_NOBODY = "02:00:00:00:00:99"
_SILENT_SECS = 2.0  # An actor that is not heard for so long does not live.

_PROGRAM = '''
import threading, time, uuid
import ray
import launchpad as lp

class Learner:
    """Remembers when it has heard each actor, and from where."""

    def __init__(self):
        self._lock, self._heard = threading.Lock(), {}

    def add(self, actor, host, file):
        with self._lock:
            self._heard[actor] = (time.monotonic(), host, file)

    def heard(self, seconds):
        """Returns host and file of each actor that was heard within some seconds."""
        with self._lock:
            since = time.monotonic() - seconds
            return [found[1:] for found in self._heard.values() if found[0] >= since]

class Actor:
    """Sends its name, its host and the file that this class came from, again and again."""

    def __init__(self, learner):
        self._learner, self._name = learner, uuid.uuid4().hex

    def run(self):
        host = ray.util.get_node_ip_address()
        while not lp.wait_for_stop(0.05):
            self._learner.add(self._name, host, __file__)
'''


def _run(command: str) -> None:
    subprocess.run(command.split(), check=True)


def _make_hosts() -> None:
    first, second = HOSTS
    for name in HOSTS:
        _run(f"ip netns add {name}")
    _run(f"ip link add {first} netns {first} type veth peer name {second} netns {second}")
    for name, address in HOSTS.items():
        _run(f"ip -n {name} address add {address}/24 dev {name}")
        _run(f"ip -n {name} link set {name} up")
        _run(f"ip -n {name} link set lo up")


def _end_host(name: str) -> None:
    """Kills all processes in a namespace."""
    pids = subprocess.run(["ip", "netns", "pids", name], capture_output=True, check=True)
    for pid in pids.stdout.split():
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(pid), signal.SIGKILL)


def _remove_hosts() -> None:
    for name in HOSTS:
        with contextlib.suppress(subprocess.CalledProcessError):
            _end_host(name)
            _run(f"ip netns delete {name}")


def _start_ray(host: str, environment: dict[str, str], directory: str) -> subprocess.Popen[bytes]:
    is_head = ADDRESS.startswith(HOSTS[host])
    port = ADDRESS.partition(":")[2]
    role = (
        ["--head", f"--port={port}", "--include-dashboard=false", f"--temp-dir={directory}"]
        if is_head
        else [f"--address={ADDRESS}"]
    )
    ray = str(pathlib.Path(sys.executable).with_name("ray"))
    command = ["ip", "netns", "exec", host, ray, "start", "--block", *role]
    command += [f"--node-ip-address={HOSTS[host]}", "--num-cpus=2"]
    return subprocess.Popen(
        command, env=environment, stdout=subprocess.DEVNULL, start_new_session=True
    )


def _await_hosts(number: int, environment: dict[str, str]) -> None:
    """Waits until `number` hosts have joined the cluster."""
    code = (
        f"import ray; ray.init('{ADDRESS}', logging_level='ERROR');"
        f"assert sum(node['Alive'] for node in ray.nodes()) == {number}"
    )
    command = ["ip", "netns", "exec", "lp-a", sys.executable, "-c", code]
    deadline = time.monotonic() + _START_SECS
    while subprocess.run(command, env=environment, capture_output=True).returncode:
        assert time.monotonic() < deadline, f"{number} Rays have not started in {_START_SECS:g} s"


def _set_link(is_up: bool) -> None:
    """Lets packets through, or sends them to a hardware address that no interface has."""
    first, second = HOSTS
    for host, peer in ((first, second), (second, first)):
        if is_up:
            _run(f"ip -n {host} neighbor delete {HOSTS[peer]} dev {host}")
        else:
            nobody = f"{HOSTS[peer]} lladdr {_NOBODY} nud permanent dev {host}"
            _run(f"ip -n {host} neighbor replace {nobody}")


def _launch(fault: str, seconds: float) -> None:
    """Launches the program. Called in the first namespace."""
    import two_hosts_program  # Written by _main; not on the path of Ray's workers.

    import launchpad as lp

    program = lp.Program("two-hosts")
    learner = program.add_node(lp.CourierNode(two_hosts_program.Learner), label="learner")
    with program.group("actor"):
        for _ in range(_NUM_ACTORS):
            program.add_node(lp.PyClassNode(two_hosts_program.Actor, learner))
    policy = lp.RestartPolicy()
    started = time.monotonic()
    manager = lp.launch(
        program, "ray", address=ADDRESS, restart_policies={"actor": policy, "learner": policy}
    )
    try:
        client = manager.resolve(learner)
        _await_actors(client, list(HOSTS.values()), started)
        _show_hosts(client)
        if fault == "interrupt":
            _interrupt(client, seconds)
        else:
            _lose_second_host(client, fault)
    finally:
        stopped = time.monotonic()
        manager.stop()
    manager.wait()
    print(f"the program stopped in {time.monotonic() - stopped:.1f} s")


def _show_hosts(client: Any) -> None:
    """Prints where the actors are."""
    time.sleep(_SILENT_SECS)
    heard = client.heard(_SILENT_SECS)
    for host, file in sorted(set(heard)):
        print(f"{heard.count((host, file))} actors on {host}; their code came from {file}")
    hosts = {host for host, _ in heard}
    # Ray spreads the nodes as well as it can while it starts.
    assert HOSTS["lp-b"] in hosts, f"expected nodes on the second host, got {hosts}"


def _lose_second_host(client: Any, fault: str) -> None:
    """Kills the second host or cuts its link, and waits until all nodes are on the first."""
    lost = time.monotonic()
    if fault == "kill":
        _end_host("lp-b")
        print("killed the second host", flush=True)
    else:
        print(f"on the second host: {', '.join(_nodes('lp-b'))}")
        _set_link(is_up=False)
        print("cut the link for good", flush=True)
    _await_actors(client, [HOSTS["lp-a"]], lost)
    print(f"after {time.monotonic() - lost:.1f} s the learner and all actors live on the first")
    while left := _nodes("lp-b"):
        assert time.monotonic() - lost < _RECOVERY_SECS, f"{left} still run on the second host"
        time.sleep(1)
    print(f"after {time.monotonic() - lost:.1f} s no node is left on the second host")


def _interrupt(client: Any, seconds: float) -> None:
    """Cuts the link for some seconds, and waits until all actors send again."""
    print(f"on the second host: {', '.join(_nodes('lp-b'))}")
    _set_link(is_up=False)
    print(f"cut the link for {seconds:g} s", flush=True)
    time.sleep(seconds)
    _set_link(is_up=True)
    _await_actors(client, list(HOSTS.values()), time.monotonic())
    print(f"on the second host: {', '.join(_nodes('lp-b'))}")


def _await_actors(client: Any, hosts: list[str], since: float) -> None:
    """Waits until all actors send from these hosts, and prints how long that took."""
    while (alive := _count_actors(client, hosts)) < _NUM_ACTORS:
        waited = time.monotonic() - since
        assert waited < _RECOVERY_SECS, f"only {alive} actors live after {waited:.0f} s"
        time.sleep(0.2)
    print(f"all actors were heard {time.monotonic() - since:.1f} s later", flush=True)


def _count_actors(client: Any, hosts: list[str]) -> int:
    """Returns how many actors have been heard from these hosts lately."""
    import launchpad as lp

    try:
        return sum(host in hosts for host, _ in client.heard(_SILENT_SECS))
    except lp.CourierUnavailableError:  # The learner was on the lost host.
        return 0


def _follow(command: list[str], environment: dict[str, str]) -> int:
    """Runs a command in the first namespace, and prints the nodes of the hosts when they change."""
    path = [str(pathlib.Path(sys.executable).with_name(command[0])), *command[1:]]
    before: dict[str, list[str]] = {}
    with subprocess.Popen(["ip", "netns", "exec", "lp-a", *path], env=environment) as launcher:
        try:
            while launcher.poll() is None:
                nodes = {address: _nodes(name) for name, address in HOSTS.items()}
                if nodes != before:
                    print(f"on the hosts: {nodes}", flush=True)
                before = nodes
                time.sleep(1)
        except KeyboardInterrupt:  # The command gets it, too.
            launcher.wait()
    return launcher.returncode


def _nodes(host: str) -> list[str]:
    """Returns the names of the nodes and trials in a namespace: Ray puts them into titles."""
    pids = subprocess.run(["ip", "netns", "pids", host], capture_output=True, check=True)
    found = []
    for pid in pids.stdout.decode().split():
        with contextlib.suppress(OSError):  # The process has ended.
            title = pathlib.Path("/proc", pid, "cmdline").read_text()
            found += re.findall(r"^ray::.*?((?:counter|replay|learner|actor|evaluator)/\d+)", title)
            found += re.findall(r"^ray::(\w*[Tt]rial\w*)", title)
    return sorted(found)


def _main() -> None:
    mode, *words = sys.argv[1:] or ["kill"]
    if mode == "launch":
        _launch(words[0], float(words[1]) if words[1:] else 0.0)
        return
    assert mode in ("kill", "cut", "interrupt", "run"), __doc__
    directory = tempfile.mkdtemp(prefix="lp-hosts-")
    code = pathlib.Path(directory, "code")
    code.mkdir()
    code.joinpath("two_hosts_program.py").write_text(_PROGRAM)
    environment = {
        **os.environ,
        # For TensorFlow's servers. The namespaces reach no other host.
        "RL_REPLICATOR_OPEN_PORTS": "1" if "multi_worker" in " ".join(words) else "0",
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": secrets.token_hex(32),
    }
    rays: list[subprocess.Popen[bytes]] = []
    try:
        _make_hosts()
        for host in HOSTS:
            rays.append(_start_ray(host, environment, directory))
            _await_hosts(len(rays), environment)
        command = ["ip", "netns", "exec", "lp-a", sys.executable, __file__, "launch", mode, *words]
        root = str(pathlib.Path(__file__).resolve().parents[1])
        environment["PYTHONPATH"] = os.pathsep.join([str(code), root])
        if mode == "run":
            sys.exit(_follow(words, environment))
        else:
            subprocess.run(command, env=environment, check=True, timeout=600)
    finally:
        _remove_hosts()
        for ray in rays:
            ray.wait()
        shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    _main()
