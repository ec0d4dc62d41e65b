"""Programs whose code forks: `python forking_launcher.py ENGINE WHERE`."""

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
    """Waits forever, in short sleeps.

    If a signal arrives just before a system call, its Python handler runs only after the call.
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
    """Uses a pool; leaving it sends SIGTERM to processes that wait for a lock, or soon will."""
    with _FORK.Pool(2) as pool:
        assert pool.map(math.sqrt, range(4))[0] == 0.0


def use_processes() -> None:
    """Uses processes in the same way as code that is unaware of launchpad."""
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
    # When this process exits, it sends that one SIGTERM and waits for it to end.
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
        if where == "chained":  # As many libraries do: call the previous handler.
            before = signal.getsignal(signal.SIGTERM)
            signal.signal(signal.SIGTERM, lambda number, frame: before(number, frame))
            use_processes()  # With any Python handler, a pool hangs even without launchpad.
        else:
            use_all()
        manager.stop()
    manager.wait()


if __name__ == "__main__":
    main()
