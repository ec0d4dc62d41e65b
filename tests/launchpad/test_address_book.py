"""The addresses of a program, when the threads that ask for them are interrupted."""

import contextlib
import ctypes
import threading
import time

from launchpad.address_book import AddressBook


def interrupt(thread):
    """Raises SystemExit in a thread, as a stop does in those of nodes."""
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
        for _ in range(10):  # Python drops an exception in a callback or a finalizer.
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
