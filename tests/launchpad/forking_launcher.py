"""Programs that fork by themselves: `python forking_launcher.py ENGINE WHERE`."""

from __future__ import annotations

import math
import multiprocessing
import os
import signal
import sys
import time

import launchpad as lp

_FORK = multiprocessing.get_context("fork")


def wait() -> None:
    """Waits for ever, in pieces: a handler in Python of a signal that comes right before a system
    call runs only after it.
    """
    while True:
        time.sleep(0.05)


def wait_for_interrupt(ready) -> None:
    try:
        ready.set()
        wait()
    except KeyboardInterrupt:
        sys.exit(3)


def use_pool() -> None:
    """Leaving the pool sends SIGTERM to processes that wait for a lock, or will soon."""
    with _FORK.Pool(2) as pool:
        assert pool.map(math.sqrt, range(4))[0] == 0.0


def use_processes() -> None:
    """Uses processes as code does that knows nothing of launchpad."""
    short = _FORK.Process(target=math.sqrt, args=(4,))
    short.start()
    short.join()
    terminated = _FORK.Process(target=wait)
    terminated.start()
    terminated.terminate()
    terminated.join()
    ready = _FORK.Event()
    interrupted = _FORK.Process(target=wait_for_interrupt, args=(ready,))
    interrupted.start()
    ready.wait()
    os.kill(interrupted.pid, signal.SIGINT)
    interrupted.join()
    # The end of this process sends it SIGTERM, and waits for its end.
    _FORK.Process(target=wait, daemon=True).start()
    print("ends:", short.exitcode, terminated.exitcode, interrupted.exitcode, flush=True)


def use_all() -> None:
    use_pool()
    use_processes()


def main() -> None:
    engine, where = sys.argv[1:]
    program = lp.Program("forking")
    in_node = where == "node"
    program.add_node(lp.PyNode(use_all if in_node else lp.wait_for_stop), label="node")
    manager = lp.launch(program, engine)
    if not in_node:
        assert manager.wait_until_ready()
        if where == "chained":  # Many libraries call the handler that was there before theirs.
            before = signal.getsignal(signal.SIGTERM)
            signal.signal(signal.SIGTERM, lambda number, frame: before(number, frame))
            use_processes()  # A pool hangs beside any handler in Python, with or without launchpad.
        else:
            use_all()
        manager.stop()
    manager.wait()


if __name__ == "__main__":
    main()
