"""The faults that `faults.py` draws from."""

from __future__ import annotations

import os
import random
import signal
import socket
import time
from collections.abc import Callable

import psutil

from bench.damaged_run import Run

_POLL = 0.1

Fault = Callable[[Run, random.Random], str]


def signal_role(number: signal.Signals, role: str | None = None) -> Fault:
    """Returns a fault that sends a signal to a role, or to a random one by default."""

    def damage(run: Run, draw: random.Random) -> str:
        roles = run.roles()
        name = role or draw.choice(sorted(roles))
        os.kill(roles[name], number)
        return f"{number.name} to {name}"

    return damage


def restart(number: signal.Signals, damage: Callable | None = None, what: str = "") -> Fault:
    """Returns a fault that ends the launcher, damages its files, and restarts the command."""

    def do(run: Run, draw: random.Random) -> str:
        run.process.send_signal(number)
        if run.wait_for_end(60) is None:
            return f"{number.name} to the launcher: DID NOT END"
        deadline = time.monotonic() + 20
        while run.left() and time.monotonic() < deadline:
            time.sleep(_POLL)
        text = f"{number.name} to the launcher{what}"
        if run.left():
            text += f": LEFT {len(run.left())} PROCESSES"
        if damage is not None:
            damage(run, draw)
        run.start()
        return text

    return do


def _spoil(change: Callable[[bytes, int], bytes]) -> Callable[[Run, random.Random], None]:
    def damage(run: Run, draw: random.Random) -> None:
        newest = run.newest()
        assert newest is not None
        files = sorted(p for p in newest.rglob("*") if p.is_file() and p.stat().st_size > 1)
        file = draw.choice(files)
        content = file.read_bytes()
        file.write_bytes(change(content, draw.randrange(len(content))))

    return damage


truncate = _spoil(lambda content, at: content[:at])
flip = _spoil(lambda content, at: content[:at] + bytes([content[at] ^ 4]) + content[at + 1 :])


def take_port(run: Run, draw: random.Random) -> str:
    """Kills a node that is a server, and binds its ports before its successor does."""
    roles = run.roles()
    servers = [name for name in sorted(roles) if name.split("/")[0] in ("counter", "replay")]
    name = draw.choice(servers)
    ports = {
        found.laddr.port
        for found in psutil.Process(roles[name]).net_connections("tcp")
        if found.status == psutil.CONN_LISTEN
    }
    os.kill(roles[name], signal.SIGKILL)
    taken = []
    for port in ports:
        deadline = time.monotonic() + 5
        while time.monotonic() < deadline:
            thief = socket.socket()
            thief.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                thief.bind(("127.0.0.1", port))
                thief.listen()
                taken.append(thief)
                break
            except OSError:
                thief.close()
    THIEVES.extend(taken)
    return f"SIGKILL to {name}, {len(taken)} of its {len(ports)} ports taken"


THIEVES: list[socket.socket] = []


def fill_disk(run: Run, draw: random.Random) -> str:
    """Fills the run's file system until the command ends, then frees it and restarts the run."""
    del draw
    filler = run.folder / "disk" / "filler"
    with filler.open("wb") as file:
        try:
            while True:
                file.write(bytes(1 << 16))
                file.flush()
        except OSError:
            pass
    status = run.wait_for_end(120)
    filler.unlink(missing_ok=True)
    if status is None:
        return "full disk: THE RUN WENT ON"
    run.start()
    return f"full disk: status {status}"


_ANY: dict[str, Fault] = {
    "kill": signal_role(signal.SIGKILL),
    "term": signal_role(signal.SIGTERM),
    "stop": signal_role(signal.SIGSTOP),
    "launcher": restart(signal.SIGKILL),
    "truncated": restart(signal.SIGKILL, truncate, ", newest checkpoint truncated"),
    "flipped": restart(signal.SIGKILL, flip, ", a bit of the newest checkpoint flipped"),
    "end": restart(signal.SIGTERM),
    "interrupt": restart(signal.SIGINT),
    "disk": fill_disk,
}
_LEARNER: dict[str, Fault] = {"kill-learner": signal_role(signal.SIGKILL, "learner/0")}
KINDS: dict[str, dict[str, Fault]] = {
    "actors": {**_ANY, "port": take_port},
    "learners": {**_ANY, "port": take_port},
    "ray": {"kill": _ANY["kill"], "end": _ANY["end"]},
    "defaults": _LEARNER,
    "job": _ANY,
}
