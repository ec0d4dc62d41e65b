"""Concurrent access to a node's runtime."""

from __future__ import annotations

import dataclasses
import threading

import launchpad as lp
from launchpad import address_book as lp_address_book
from launchpad import runtime as lp_runtime


def _runtime() -> lp_runtime.NodeRuntime:
    info = lp_runtime.ProgramInfo("id", b"", lp.LaunchType.TEST_MULTI_THREADING, "127.0.0.1", {})
    ignore = [lambda *args: None] * len(dataclasses.fields(lp_runtime.Callbacks))
    return lp_runtime.NodeRuntime(
        "node", 0, info, lp_address_book.AddressBook(), lp_runtime.Callbacks(*ignore)
    )


def test_programs_that_threads_of_a_node_launch_at_the_same_time_are_all_awaited():
    runtime = _runtime()
    ends = [threading.Event() for _ in range(3)]
    other = threading.Thread(target=runtime.add_program, args=(lambda: None, ends[2]))

    class Event(threading.Event):
        def is_set(self):
            if other.ident is None:  # During the first call, another thread adds a program.
                other.start()
                other.join(0.3)
            return super().is_set()

    ends[0] = Event()
    for ended in ends[:2]:
        runtime.add_program(lambda: None, ended)
    other.join()
    assert {ended for _, ended in runtime._programs} == set(ends)


def test_a_part_that_is_added_during_the_release_is_released():
    runtime, late = _runtime(), _runtime()

    class Event(threading.Event):
        def set(self):
            runtime.add_part(late)
            super().set()

    runtime.release_event = Event()
    runtime.release()
    assert runtime.release_event.is_set() and late.release_event.is_set()


def test_the_last_program_may_end_while_its_runtime_is_looked_for(monkeypatch):
    class Ending(list):
        def __len__(self):
            found = super().__len__()
            self.clear()
            return found

    monkeypatch.setattr(lp_runtime, "_launcher_runtimes", Ending([_runtime()]))
    assert lp_runtime.current() is None
