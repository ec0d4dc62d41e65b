"""Notices an environment whose step or reset does not return."""

import sys
import threading
import time
import traceback
from collections.abc import Sequence
from typing import Any

import dm_env

import launchpad as lp
from agents.plan.run_plan import RunPlan
from rl_replicator.errors import UsageError

_SECONDS_BETWEEN_LOOKS = 1.0


class EnvironmentWatch:
    """Ends the node when a step or reset of one of its environments takes too long.

    While it is entered, a thread looks once per second whether the same call still goes on. A call
    itself only sets three attributes, which takes about 0.1 microseconds.
    """

    def __init__(self, who: str, plan: RunPlan, environments: Sequence[dm_env.Environment]):
        """Watches every later call of the environments' `reset` and `step`.

        Args:
          who: the node, as users know it.
          plan: its task, and the seconds that a call may take.
          environments: their methods are replaced on these instances.
        """
        self._who, self._name, self._timeout = who, plan.task.name, plan.env_timeout
        self._calls = [_Calls(environment) for environment in environments]
        self._is_over = threading.Event()
        self._kill_node = lp.make_node_killer()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> "EnvironmentWatch":
        """Begins to look at the calls of this thread."""
        self._thread = threading.Thread(
            target=self._look,
            args=(threading.get_ident(),),
            name="environment watch",
            daemon=True,
        )
        self._thread.start()
        return self

    def __exit__(self, *details: object) -> None:
        """Ends the thread."""
        self._is_over.set()
        if self._thread is not None:
            self._thread.join()

    def _look(self, caller: int) -> None:
        interval = min(_SECONDS_BETWEEN_LOOKS, self._timeout / 10)
        before, stuck = [(0, "")] * len(self._calls), [0.0] * len(self._calls)
        last = time.monotonic()
        while not self._is_over.wait(interval):
            # A process that was stopped (Ctrl-Z) wakes up much later: that time does not count.
            passed = min(time.monotonic() - last, 2 * interval)
            last = time.monotonic()
            for index, calls in enumerate(self._calls):
                now = calls.count, calls.current
                is_same = calls.current and now == before[index]
                stuck[index] = stuck[index] + passed if is_same else 0.0
                before[index] = now
                if stuck[index] > self._timeout:
                    self._kill_node(UsageError(self._message(calls, caller)), stuck[index])
                    return

    def _message(self, calls: "_Calls", caller: int) -> str:
        step = calls.count - calls.count_at_reset
        what = f"step {step} of the episode" if calls.current == "step" else "reset"
        frames = traceback.extract_stack(sys._current_frames().get(caller))
        where = f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""
        return (
            f"{self._who}: {self._name}: {what} has not returned for {self._timeout:g} s{where}; "
            "let it raise an error instead of waiting without end, or allow more time with "
            "--env-timeout"
        )


class _Calls:
    """The calls of an environment.

    Attributes:
      count: how many have begun.
      count_at_reset: how many had when the episode began.
      current: name of the method that is being called; empty between two calls.
    """

    def __init__(self, environment: Any):
        self.count, self.count_at_reset, self.current = 0, 0, ""
        step, reset = environment.step, environment.reset

        def watched_step(action: Any) -> dm_env.TimeStep:
            self.count += 1
            self.current = "step"
            try:
                return step(action)
            finally:
                self.current = ""

        def watched_reset() -> dm_env.TimeStep:
            self.count += 1
            self.count_at_reset = self.count
            self.current = "reset"
            try:
                return reset()
            finally:
                self.current = ""

        environment.step, environment.reset = watched_step, watched_reset
