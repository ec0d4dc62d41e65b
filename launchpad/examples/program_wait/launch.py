"""Nodes that end when the program stops, each in another way; the script waits for them."""

import time
from collections.abc import Callable

from absl import app

import launchpad as lp


def _poll() -> None:
    while not lp.wait_for_stop(0.1):
        pass
    print("polled", flush=True)


def _wait() -> None:
    lp.wait_for_stop()
    print("waited", flush=True)


def _use_event() -> None:
    lp.stop_event().wait()
    print("used the event", flush=True)


def _be_interrupted() -> None:
    try:
        while True:
            time.sleep(0.01)
    finally:
        print("was interrupted", flush=True)


def _stop() -> None:
    time.sleep(1.0)
    lp.stop()


def make_program() -> lp.Program:
    """Returns a program that stops after a second."""
    program = lp.Program("program_wait")
    nodes: list[Callable[[], None]] = [_poll, _wait, _use_event, _be_interrupted, _stop]
    for function in nodes:
        program.add_node(lp.PyNode(function), label=function.__name__.strip("_"))
    return program


def main(argv: list[str]) -> None:
    """Launches the program twice, and waits each time."""
    del argv
    for _ in range(2):
        lp.launch(make_program()).wait()
        print("the program has ended", flush=True)


if __name__ == "__main__":
    app.run(main)
