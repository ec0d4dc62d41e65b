"""Nodes that end when the program stops, each in another way; the script waits for them."""

import time
from collections.abc import Callable

from absl import app

import launchpad as lp


class _Stopper:
    """Stops the program when a number of nodes have begun."""

    def __init__(self, num_nodes: int):
        self._num_left = num_nodes

    def begun(self) -> None:
        self._num_left -= 1
        if not self._num_left:
            lp.stop()


def _poll(stopper: lp.CourierClient) -> None:
    lp.stop_event()  # From here on, a stop does not interrupt this node.
    stopper.begun()
    while not lp.wait_for_stop(0.1):
        pass
    print("polled", flush=True)


def _wait(stopper: lp.CourierClient) -> None:
    lp.stop_event()
    stopper.begun()
    lp.wait_for_stop()
    print("waited", flush=True)


def _use_event(stopper: lp.CourierClient) -> None:
    stop = lp.stop_event()
    stopper.begun()
    stop.wait()
    print("used the event", flush=True)


def _be_interrupted(stopper: lp.CourierClient) -> None:
    try:
        stopper.begun()
        while True:
            time.sleep(0.01)
    finally:
        print("was interrupted", flush=True)


def make_program() -> lp.Program:
    """Returns a program that stops when all its nodes have begun."""
    program = lp.Program("program_wait")
    nodes: list[Callable[..., None]] = [_poll, _wait, _use_event, _be_interrupted]
    counter = lp.CourierNode(_Stopper, len(nodes), courier_kwargs={"thread_pool_size": 1})
    stopper = program.add_node(counter, label="stopper")
    for function in nodes:
        program.add_node(lp.PyNode(function, stopper), label=function.__name__.strip("_"))
    return program


def main(argv: list[str]) -> None:
    """Launches the program twice, and waits each time."""
    del argv
    for _ in range(2):
        lp.launch(make_program()).wait()
        print("the program has ended", flush=True)


if __name__ == "__main__":
    app.run(main)
