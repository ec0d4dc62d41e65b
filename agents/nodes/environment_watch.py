"""Notices an environment whose constructor, step or reset does not return."""

import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import launchpad as lp
from agents.nodes.run_plan import RunPlan
from environments.engines import BatchEnvironment, EnvironmentsInTurn
from rl_replicator.errors import UsageError

_SECONDS_BETWEEN_LOOKS = 1.0
# A constructor may take this long whatever --env-timeout says: it imports, compiles and loads.
_SECONDS_TO_CONSTRUCT = 60.0
_CONSTRUCTOR = "its constructor"


class WatchedEnvironment:
    """An environment, or several that are stepped together, whose calls are watched.

    All other attributes are those of the environment.

    Attributes:
      seconds: seconds spent in `step` and `reset`.
      count: number of calls that have begun.
      count_at_reset: that number when the episode began.
      current: name of the method that is being called; empty between two calls.
      last_seen: the call in progress at the watch's last look, and how long it has been seen.
    """

    def __init__(self) -> None:
        """Waits for `construct`."""
        self._environment: Any = None
        self.seconds = 0.0
        self.count, self.count_at_reset, self.current = 0, 0, ""
        self.last_seen: tuple[int, float] = (0, 0.0)

    def construct(self, make: Callable[[], Any]) -> None:
        """Makes the environment."""
        self._environment = self._call(_CONSTRUCTOR, make)
        self.seconds = 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._environment, name)

    def __enter__(self) -> "WatchedEnvironment":
        return self

    def __exit__(self, *details: object) -> None:
        self._environment.close()

    @property
    def random_state(self) -> Any:
        """See `environments.flat.Environment.random_state`."""
        return self._environment.random_state

    @random_state.setter
    def random_state(self, state: Any) -> None:
        self._environment.random_state = state

    def step(self, actions: Any) -> Any:
        """Calls the environment's method."""
        return self._call("step", self._environment.step, actions)

    def reset(self, *indices: Any) -> Any:
        """Calls the environment's method."""
        self.count_at_reset = self.count + 1
        return self._call("reset", self._environment.reset, *indices)

    def _call(self, name: str, function: Callable[..., Any], *args: Any) -> Any:
        self.count += 1
        self.current = name
        started = time.perf_counter()
        try:
            return function(*args)
        finally:
            self.seconds += time.perf_counter() - started
            self.current = ""


class EnvironmentWatch:
    """Makes environments, and ends the node when a call of one of them takes too long.

    A thread checks once per second whether the same call is still in progress, until this context
    is exited.
    """

    def __init__(self, who: str, plan: RunPlan):
        """Starts watching the calls of this thread.

        Args:
          who: the node's name in error messages.
          plan: its task and engine, and the seconds that a call may take.
        """
        self._who, self._plan = who, plan
        self._caller = threading.get_ident()
        self._environments: list[WatchedEnvironment] = []
        self._is_over = threading.Event()
        self._kill_node = lp.make_node_killer()
        self._thread = threading.Thread(target=self._look, name="environment watch", daemon=True)
        self._thread.start()

    def __enter__(self) -> "EnvironmentWatch":
        """Returns this object."""
        return self

    def __exit__(self, *details: object) -> None:
        """Stops the thread."""
        self._is_over.set()
        self._thread.join()

    def make(self, seed: int) -> WatchedEnvironment:
        """Makes an environment of the run's task.

        Args:
          seed: seed of the environment.
        """
        return self._watched(lambda: self._plan.task.make(seed=seed))

    def make_all(
        self, seeds: Sequence[int]
    ) -> tuple[BatchEnvironment, Sequence[WatchedEnvironment]]:
        """Makes the environments of an actor.

        Args:
          seeds: the seed of each environment.

        Returns:
          The environments, and the objects whose calls step them.
        """
        if self._plan.env_engine == "envpool":
            from environments.engines import EnvPoolEnvironments

            name = self._plan.task.name
            threads = max(1, len(os.sched_getaffinity(0)) // self._plan.num_actors)
            pool: Any = self._watched(lambda: EnvPoolEnvironments(name, seeds, threads))
            return pool, [pool]
        made: list[Any] = []
        environments = EnvironmentsInTurn(made)
        try:
            for seed in seeds:
                made.append(self.make(seed))
        except BaseException:  # With threads, a stop is a SystemExit, and the process lives on.
            environments.close()
            raise
        return environments, made

    def _watched(self, make: Callable[[], Any]) -> WatchedEnvironment:
        environment = WatchedEnvironment()
        self._environments.append(environment)
        environment.construct(make)
        return environment

    def _look(self) -> None:
        interval = min(_SECONDS_BETWEEN_LOOKS, self._plan.env_timeout / 10)
        last = time.monotonic()
        while not self._is_over.wait(interval):
            # A suspended process (Ctrl-Z) wakes up much later: that time does not count.
            passed = min(time.monotonic() - last, 2 * interval)
            last = time.monotonic()
            for environment in tuple(self._environments):
                count, stuck = environment.last_seen
                is_same = environment.current and environment.count == count
                stuck = stuck + passed if is_same else 0.0
                environment.last_seen = environment.count, stuck
                timeout = self._plan.env_timeout
                if environment.current == _CONSTRUCTOR:
                    timeout = max(timeout, _SECONDS_TO_CONSTRUCT)
                if stuck > timeout:
                    self._kill_node(UsageError(self._message(environment, timeout)), stuck)
                    return

    def _message(self, environment: WatchedEnvironment, timeout: float) -> str:
        what = environment.current
        if what == "step":
            what = f"step {environment.count - environment.count_at_reset} of the episode"
        frame = sys._current_frames().get(self._caller)
        where = f" ({frame.f_code.co_filename}:{frame.f_lineno})" if frame else ""
        return (
            f"{self._who}: {self._plan.task.name}: {what} has not returned for {timeout:g} s{where}"
            "; let it raise an error instead of waiting without end, or allow more time with "
            "--env-timeout"
        )
