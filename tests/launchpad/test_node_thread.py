"""Threads that run nodes: how they are interrupted."""

import threading
import time
import types

from launchpad.nodes.node_thread import NodeThread


class SlowEvent(threading.Event):
    """A thread's `_started`, whose `wait` returns late."""

    def __init__(self):
        super().__init__()
        self.is_waited_for, self.may_return = threading.Event(), threading.Event()

    def wait(self, timeout=None):
        self.is_waited_for.set()
        return self.may_return.wait(30)


def test_an_interrupt_waits_until_a_thread_that_the_node_starts_runs():
    """Else it might end that thread in place of the node, which would wait for it for ever."""
    started, errors = SlowEvent(), []

    def execute():
        thread = threading.Thread(target=lambda: None)
        thread._started = started
        thread.start()
        while True:
            time.sleep(0.001)

    node = NodeThread("node", types.SimpleNamespace(execute=execute), None, errors.append)
    node.start()
    assert started.is_waited_for.wait(30)
    interrupt = threading.Thread(target=node.interrupt)
    interrupt.start()
    interrupt.join(0.2)
    assert interrupt.is_alive() and node.is_alive()
    started.may_return.set()
    interrupt.join(30)
    node.join(30)
    assert not node.is_alive()
    assert isinstance(errors[0], SystemExit)


def test_a_node_that_has_ended_is_not_interrupted():
    errors = []
    node = NodeThread("node", types.SimpleNamespace(execute=lambda: None), None, errors.append)
    node.start()
    node.join(30)
    node.interrupt()
    assert errors == [None]


def test_an_interrupted_node_gives_back_the_lock_of_a_condition():
    """Half of the interrupts struck between the acquisition and the entry of `with`."""
    for _ in range(50):
        condition = threading.Condition()

        def execute(condition=condition):
            while True:
                with condition:
                    pass

        node = NodeThread("node", types.SimpleNamespace(execute=execute), None, lambda error: None)
        node.start()
        time.sleep(0.001)
        for _ in range(10):  # Python drops an exception in a callback or a finalizer.
            node.interrupt()
            node.join(3)
            if not node.is_alive():
                break
        assert not node.is_alive()
        assert condition.acquire(timeout=30), "an interrupted node has kept the lock"
