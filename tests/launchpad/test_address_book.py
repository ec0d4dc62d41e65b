"""The addresses of a program, including those of interrupted and restarted nodes."""

import contextlib
import ctypes
import dataclasses
import socket
import threading
import time

from launchpad import runtime as lp_runtime
from launchpad.address_book import AddressBook
from launchpad.launch_type import LaunchType


def interrupt(thread):
    """Raises SystemExit in a thread, as a stop does in the threads of nodes."""
    exception = ctypes.py_object(SystemExit)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), exception)


def test_interrupted_threads_leave_it_usable():
    book = AddressBook({"there": "host:1"})
    for _ in range(200):
        has_begun = threading.Event()

        def ask(has_begun=has_begun):
            with contextlib.suppress(SystemExit):
                has_begun.set()
                while True:
                    book.get("there")
                    book.wait_for("missing", 0.0)
                    book.watch("other", lambda address: False)
                    book.forget("nothing")

        thread = threading.Thread(target=ask, daemon=True)
        thread.start()
        assert has_begun.wait(30)
        time.sleep(1e-3)
        for _ in range(10):  # Python discards an exception raised in a callback or a finalizer.
            interrupt(thread)
            thread.join(3)
            if not thread.is_alive():
                break
        assert not thread.is_alive(), "an interrupted thread has kept the lock"
    book.publish("there", "host:2")
    assert book.get("there") == "host:2"


def test_waiting_ends_with_the_address_or_the_time():
    book = AddressBook()
    assert book.wait_for("key", 0.05) is None
    found = []
    thread = threading.Thread(target=lambda: found.append(book.wait_for("key", 60)))
    thread.start()
    time.sleep(0.05)
    book.publish("other", "host:1")
    book.publish("key", "host:2")
    thread.join(30)
    assert found == ["host:2"] and book.wait_for("key", 0.0) == "host:2"


def test_a_watcher_is_called_until_it_returns_false():
    book, seen = AddressBook(), []
    book.watch("key", lambda address: seen.append(address) or len(seen) < 2)
    for number in range(3):
        book.publish("key", f"host:{number}")
    assert seen == ["host:0", "host:1"]


def test_a_node_that_was_started_again_takes_its_old_address_only_if_it_can():
    info = lp_runtime.ProgramInfo("id", b"", LaunchType.TEST_MULTI_THREADING, "127.0.0.1", {})
    ignore = [lambda *args: None] * len(dataclasses.fields(lp_runtime.Callbacks))
    book = AddressBook()

    def resolve():
        """Resolves the address in a new incarnation of the node, which then ends."""
        runtime = lp_runtime.NodeRuntime("node", 0, info, book, lp_runtime.Callbacks(*ignore))
        runtime.owned_keys = frozenset(["key"])
        address = runtime.resolve("key", None)
        assert address == runtime.resolve("key", None) == book.get("key")
        return address

    first = resolve()
    assert resolve() == first
    port = int(first.rpartition(":")[2])
    with socket.create_server(("127.0.0.1", port)):
        second = resolve()
        assert second not in (first, None)
    book.publish("key", "10.1.2.3:99")  # On a machine that was lost.
    assert resolve().startswith("127.0.0.1:")
    info = dataclasses.replace(info, host="127.0.0.2")
    book.publish("key", first)
    assert resolve().startswith("127.0.0.2:")
