"""The faults that `faults.py` draws from."""

from __future__ import annotations

import contextlib
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
        run.damaged.add(newest)
        files = sorted(p for p in newest.rglob("*") if p.is_file() and p.stat().st_size > 1)
        file = draw.choice(files)
        content = file.read_bytes()
        file.write_bytes(change(content, draw.randrange(len(content))))

    return damage


truncate = _spoil(lambda content, at: content[:at])
flip = _spoil(lambda content, at: content[:at] + bytes([content[at] ^ 4]) + content[at + 1 :])


def damage_live(change: Callable[[Run, random.Random], None], role: str) -> Fault:
    """Returns a fault that damages the newest checkpoint of a live run, and kills who restores it.

    Args:
      change: damages a file of the newest checkpoint.
      role: the node that is restarted from it.
    """

    def damage(run: Run, draw: random.Random) -> str:
        change(run, draw)
        return f"newest checkpoint damaged, {signal_role(signal.SIGKILL, role)(run, draw)}"

    return damage


def empty(run: Run, draw: random.Random) -> None:
    """Deletes all files in a folder of the newest checkpoint."""
    newest = run.newest()
    assert newest is not None
    run.damaged.add(newest)
    for file in draw.choice(sorted(path for path in newest.iterdir() if path.is_dir())).iterdir():
        file.unlink()


def signal_pair(run: Run, draw: random.Random) -> str:
    """Kills two roles at once."""
    roles = run.roles()
    names = draw.sample(sorted(roles), 2)
    for name in names:
        os.kill(roles[name], signal.SIGKILL)
    return f"SIGKILL to {names[0]}, to {names[1]}"


def kill_again(run: Run, draw: random.Random) -> str:
    """Kills a role, and its successor as soon as there is one."""
    name, pid = draw.choice(sorted(run.roles().items()))
    os.kill(pid, signal.SIGKILL)
    deadline = time.monotonic() + 60
    while (successor := run.roles().get(name, pid)) == pid and time.monotonic() < deadline:
        time.sleep(_POLL / 10)
    os.kill(successor, signal.SIGKILL)
    return f"SIGKILL twice to {name}"


def kill_while_saving(run: Run, draw: random.Random) -> str:
    """Kills a role while a checkpoint is written."""
    deadline = time.monotonic() + 120
    while not any((run.run_dir / "checkpoints").glob(".*")) and time.monotonic() < deadline:
        time.sleep(_POLL / 100)
    return f"while saving, {signal_role(signal.SIGKILL)(run, draw)}"


def signal_fork_server(number: signal.Signals) -> Fault:
    """Returns a fault that signals the fork server, and kills a node that it must fork again."""

    def damage(run: Run, draw: random.Random) -> str:
        server = run.fork_server()
        os.kill(server, number)
        return f"{number.name} to the fork server, {signal_role(signal.SIGKILL)(run, draw)}"

    return damage


def take_port(run: Run, draw: random.Random) -> str:
    """Kills the replay, and binds its ports before its successor does."""
    del draw
    roles, name = run.roles(), "replay/0"
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
    with contextlib.suppress(OSError), filler.open("wb") as file:
        while True:
            file.write(bytes(1 << 16))
            file.flush()
    status = run.wait_for_end(120)
    filler.unlink(missing_ok=True)
    if status is None:
        return "full disk: THE RUN WENT ON"
    run.start()
    return f"full disk: status {status}"


_SIGNALS: dict[str, Fault] = {
    "kill": signal_role(signal.SIGKILL),
    "term": signal_role(signal.SIGTERM),
    "stop": signal_role(signal.SIGSTOP),
    "pair": signal_pair,
    "again": kill_again,
    "saving": kill_while_saving,
    "launcher": restart(signal.SIGKILL),
    "end": restart(signal.SIGTERM),
    "interrupt": restart(signal.SIGINT),
}
_ANY: dict[str, Fault] = {
    **_SIGNALS,
    "truncated": restart(signal.SIGKILL, truncate, ", newest checkpoint truncated"),
    "flipped": restart(signal.SIGKILL, flip, ", a bit of the newest checkpoint flipped"),
    "disk": fill_disk,
}
_LIVE: dict[str, Fault] = {
    "flipped-live": damage_live(flip, "replay/0"),
    "emptied-live": damage_live(empty, "counter/0"),
}
_PROCESSES: dict[str, Fault] = {
    **_ANY,
    **_LIVE,
    "port": take_port,
    "kill-fork-server": signal_fork_server(signal.SIGKILL),
    "stop-fork-server": signal_fork_server(signal.SIGSTOP),
}
KINDS: dict[str, dict[str, Fault]] = {
    "actors": _PROCESSES,
    "learners": _PROCESSES,
    "ray": {**_SIGNALS, **_LIVE},
    "defaults": {**_PROCESSES, "kill-learner": signal_role(signal.SIGKILL, "learner/0")},
    "job": _ANY,
}
