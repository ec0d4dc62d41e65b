"""Nodes that the tests launch, in a separate module so that processes can import them."""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import functools
import os
import pathlib
import signal
import threading
import time
from typing import Any, NamedTuple

import launchpad as lp
from launchpad import runtime as lp_runtime

SECRET = b"r" * 32


class Recorder:
    """Keeps entries of other nodes; with a path, also in a file that outlives the program."""

    def __init__(self, path: pathlib.Path | None = None):
        self._path = path
        self._lock = threading.Lock()
        self._entries: list[Any] = []

    def add(self, entry: Any) -> int:
        with self._lock:
            self._entries.append(entry)
            if self._path is not None:
                with self._path.open("a") as file:
                    file.write(f"{entry}\n")
            return len(self._entries)

    def entries(self) -> list[Any]:
        with self._lock:
            return list(self._entries)


class Pair(NamedTuple):
    first: Any
    second: Any


@dataclasses.dataclass(frozen=True)
class Config:
    recorder: Any
    name: str


class Producer:
    """Serves numbers; has no run()."""

    def __init__(self, factor: int):
        self._factor = factor

    def produce(self, number: int) -> int:
        return self._factor * number

    def __call__(self, text: str) -> str:
        return text * self._factor


def record_tree(tree: dict[str, Any]) -> None:
    """Calls the recorder found at each place of a nested argument."""
    tree["list"][0].add("list")
    tree["tuple"][1]["deep"].add("tuple")
    assert isinstance(tree["pair"], Pair)
    tree["pair"].second.add("namedtuple")
    tree["config"].recorder.add(tree["config"].name)
    assert tree["plain"] == {"a": [1, 2]}


class Failing:
    """Raises in its constructor, once the recorder has an entry.

    Like Acme's, its stop handler raises SystemExit in this thread, whatever that does then.
    """

    def __init__(self, recorder: Any):
        while not recorder.entries():
            time.sleep(0.02)
        thread = ctypes.c_long(threading.get_ident())
        interrupt = ctypes.pythonapi.PyThreadState_SetAsyncExc
        lp.register_stop_handler(functools.partial(interrupt, thread, ctypes.py_object(SystemExit)))
        raise ValueError("no such weather")


class UnpicklableError(Exception):
    """An exception with an attribute that cannot be pickled."""

    def __init__(self, one: int, two: int):
        super().__init__(f"{one} and {two}")
        self.lock = threading.Lock()


def raise_unpicklable(recorder: Any = None) -> None:
    """Raises an exception, as soon as the recorder says so."""
    while recorder is not None and "fail" not in recorder.entries():
        time.sleep(0.02)
    raise UnpicklableError(1, 2)


def work_until_interrupted(recorder: Any) -> None:
    """Never checks for a stop, like the loops of many agents."""
    while True:
        recorder.add("step")
        time.sleep(0.05)


def leave_on_stop(recorder: Any) -> None:
    """Waits for the stop, and calls the recorder after it."""
    lp.stop_event()  # From here on, it is not interrupted; the test stops the program only later.
    recorder.add("waiting")
    assert lp.wait_for_stop(100)
    time.sleep(0.3)
    recorder.add("left")


def save_for_long(path: pathlib.Path) -> None:
    """Saves for longer than the pause between two interrupts of a node."""
    recorder = Recorder(path)
    lp.stop_event()
    recorder.add("waiting")
    assert lp.wait_for_stop(100)
    time.sleep(2.0)
    recorder.add("saved")


def save_on_the_way_out(recorder: Any, path: pathlib.Path) -> None:
    """Never checks for a stop, and saves for longer than the pause between two interrupts."""
    try:
        work_until_interrupted(recorder)
    finally:
        time.sleep(2.0)
        path.touch()


def launch_inside(path: pathlib.Path) -> None:
    program = lp.Program("inner")
    program.add_node(lp.PyNode(save_for_long, path), label="inner")
    assert lp.launch(program, "local_mt", termination_notice_secs=100).wait()
    Recorder(path).add("inner has ended")


def stop_handlers(recorder: Any) -> None:
    """Registers two stop handlers and unregisters one; stops the program when others are ready."""
    called = threading.Event()

    def unwanted() -> None:
        recorder.add("unwanted")

    def wanted() -> None:
        recorder.add("handler")
        called.set()

    lp.register_stop_handler(wanted)
    lp.register_stop_handler(unwanted)
    lp.unregister_stop_handler(unwanted)
    while not {"waiting", "step"} <= set(recorder.entries()):
        time.sleep(0.02)
    lp.stop()
    assert called.wait(60)
    assert lp.stop_event().is_set()


def ignore_stop(recorder: Any) -> None:
    """Asks for the stop event, but never checks it."""
    lp.stop_event()
    recorder.add("deaf")
    while True:
        with contextlib.suppress(SystemExit):
            time.sleep(0.05)


def print_lines() -> None:
    print("first line\nsecond line")
    os.write(2, b"unfinished")


def serve_port(address: lp.Address, recorder: Any) -> None:
    """Serves a port that the engine chose."""
    import socket

    port = lp.get_port_from_address(address.resolve())
    with socket.socket() as server:
        server.bind(("127.0.0.1", port))
        server.listen()
        connection, _ = server.accept()
        with connection:
            recorder.add(connection.recv(5))


def use_port(address: lp.Address) -> None:
    import socket

    host, _, port = address.resolve().rpartition(":")
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        with socket.socket() as client:
            if client.connect_ex((host, int(port))) == 0:
                client.sendall(b"hello")
                return
        time.sleep(0.05)
    raise AssertionError("nobody listens")


class Service:
    """The methods that the tests of remote calls need."""

    def __init__(self) -> None:
        self.value = 7  # Not served, because it is no method.
        self._released = threading.Event()

    @property
    def costly(self) -> Any:
        raise AssertionError("a property was computed to serve the object")

    @functools.cached_property
    def dear(self) -> Any:
        raise AssertionError("a property was computed to serve the object")

    def echo(self, *args: Any, **kwargs: Any) -> Any:
        return (args, kwargs)

    def same(self, value: Any) -> Any:
        return value

    def fail(self, text: str) -> None:
        raise KeyError(text)

    def fail_unpicklable(self) -> None:
        raise UnpicklableError(1, 2)

    def block(self, seconds: float) -> bool:
        return self._released.wait(seconds)

    def release(self) -> None:
        self._released.set()


def node_runtime(
    host: str = "127.0.0.1", book: dict[str, str] | None = None
) -> lp_runtime.NodeRuntime:
    """Returns the runtime of a node on the machine with this address; all have one program."""
    kind = lp.LaunchType.TEST_MULTI_THREADING
    info = lp_runtime.ProgramInfo("id", SECRET, kind, host, {})
    book = {} if book is None else book
    return lp_runtime.NodeRuntime("node", 0, info, book, lambda *told: None)


def recorder_program(path: pathlib.Path | None = None) -> tuple[lp.Program, Any]:
    """Returns a program with a recorder, and the recorder's handle."""
    program = lp.Program("test")
    return program, program.add_node(lp.CourierNode(Recorder, path), label="recorder")


class Fragile:
    """Dies once in each of the given ways."""

    def __init__(self, ways: list[str], recorder: Any):
        self._ways = ways
        self._recorder = recorder

    def life(self) -> int:
        return sum(entry == "born" for entry in self._recorder.entries())

    def run(self) -> None:
        lives = self._recorder.add("born")
        if lives > len(self._ways):
            lp.wait_for_stop()
        elif self._ways[lives - 1] == "signal":
            os.kill(os.getpid(), signal.SIGKILL)
        else:
            raise OSError(f"death number {lives}")


class Source:
    """Counts how often it is called."""

    def __init__(self) -> None:
        self._calls = 0
        self._lock = threading.Lock()

    def get_variables(self, names: list[str]) -> dict[str, Any]:
        with self._lock:
            self._calls += 1
            return dict.fromkeys(names, self._calls)

    def calls(self) -> int:
        return self._calls

    def fail(self) -> None:
        raise KeyError("from the source")


def tell_pid(recorder: Any, name: str) -> None:
    recorder.add((name, os.getpid()))


def fail_beside_others() -> None:
    raise ValueError("one part is broken")


def call_server(address: str, recorder: Any) -> None:
    """Calls a server outside the program."""
    recorder.add(lp.CourierClient(address).double(21))


def block_for_ever() -> None:
    """Blocks without executing Python code, so that a stop cannot interrupt it."""
    threading.Event().wait()


def record_environment(names: list[str], recorder: Any) -> None:
    import lp_demo_module

    recorder.add([*map(os.environ.get, names), lp_demo_module.__file__])
