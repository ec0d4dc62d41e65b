"""Notices an environment whose constructor, step or reset does not return."""

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import launchpad as lp
from agents.nodes.run_plan import RunPlan
from environments.engines import BatchEnvironment, EnvironmentsInTurn
from rl_replicator.errors import UsageError

_SECONDS_BETWEEN_LOOKS = 1.0
# A constructor may take this long whatever --env-timeout says: it imports, compiles and loads.
_SECONDS_TO_CONSTRUCT = 60.0

_Made = TypeVar("_Made")


def make_environment(who: str, plan: RunPlan, seed: int) -> Any:
    """Makes an environment of the run's task; ends the node if that takes too long.

    Args:
      who: the node's name in error messages.
      plan: its task, and the seconds that a call may take.
      seed: seed of the environment.

    Returns:
      The environment, whose calls can be watched.
    """
    return WatchedEnvironment(_construct(who, plan, lambda: plan.task.make(seed=seed)))


def make_environments(
    who: str, plan: RunPlan, seeds: Sequence[int]
) -> tuple[BatchEnvironment, Sequence["WatchedEnvironment"]]:
    """Makes the environments of an actor; ends the node if one of them takes too long.

    Args:
      who: the node's name in error messages.
      plan: its task and engine, and the seconds that a call may take.
      seeds: the seed of each environment.

    Returns:
      The environments, and the objects whose calls step them.
    """
    if plan.env_engine == "envpool":
        from environments.engines import EnvPoolEnvironments

        name, threads = plan.task.name, max(1, (os.cpu_count() or 1) // plan.num_actors)
        pool = _construct(who, plan, lambda: EnvPoolEnvironments(name, seeds, threads))
        watched = WatchedEnvironment(pool)
        return watched, [watched]
    made: list[Any] = []
    environments = EnvironmentsInTurn(made)
    with closed_on_error(environments):
        for seed in seeds:
            made.append(make_environment(who, plan, seed))
    return environments, made


@contextlib.contextmanager
def closed_on_error(environment: Any) -> Iterator[None]:
    """Closes an environment if making its node fails, or the program stops before it is made.

    Args:
      environment: an environment, or several.
    """
    try:
        yield
    except BaseException:  # With threads, a stop is a SystemExit, and the process lives on.
        environment.close()
        raise


def _construct(who: str, plan: RunPlan, make: Callable[[], _Made]) -> _Made:
    is_made = threading.Event()
    watch = threading.Thread(
        target=_watch_construction,
        args=(who, plan, threading.get_ident(), is_made, lp.make_node_killer()),
        name="environment construction watch",
        daemon=True,
    )
    watch.start()
    try:
        return make()
    finally:
        is_made.set()
        watch.join()


def _watch_construction(
    who: str,
    plan: RunPlan,
    caller: int,
    is_made: threading.Event,
    kill_node: Callable[[Exception, float], None],
) -> None:
    timeout = max(plan.env_timeout, _SECONDS_TO_CONSTRUCT)
    interval = min(_SECONDS_BETWEEN_LOOKS, timeout / 10)
    stuck, last = 0.0, time.monotonic()
    while not is_made.wait(interval):
        # See `EnvironmentWatch._look`: time in which the process was suspended does not count.
        stuck += min(time.monotonic() - last, 2 * interval)
        last = time.monotonic()
        if stuck > timeout:
            name = plan.task.name
            kill_node(UsageError(_message(who, name, "its constructor", timeout, caller)), stuck)
            return


def _message(who: str, name: str, what: str, timeout: float, caller: int) -> str:
    frame = sys._current_frames().get(caller)
    where = f" ({frame.f_code.co_filename}:{frame.f_lineno})" if frame else ""
    return (
        f"{who}: {name}: {what} has not returned for {timeout:g} s{where}; let it raise an error "
        "instead of waiting without end, or allow more time with --env-timeout"
    )


class WatchedEnvironment:
    """An environment, or several that are stepped together, whose `reset` and `step` are watched.

    All other attributes are those of the environment.

    Attributes:
      seconds: seconds spent in both methods.
      count: number of calls that have begun.
      count_at_reset: that number when the episode began.
      current: name of the method that is being called; empty between two calls.
    """

    def __init__(self, environment: Any):
        """Stores the environment."""
        self._environment = environment
        self.seconds = 0.0
        self.count, self.count_at_reset, self.current = 0, 0, ""

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
        return self._call("step", actions)

    def reset(self, *indices: Any) -> Any:
        """Calls the environment's method."""
        self.count_at_reset = self.count + 1
        return self._call("reset", *indices)

    def _call(self, name: str, *args: Any) -> Any:
        self.count += 1
        self.current = name
        started = time.perf_counter()
        try:
            return getattr(self._environment, name)(*args)
        finally:
            self.seconds += time.perf_counter() - started
            self.current = ""

    @property
    def what(self) -> str:
        """The current call, in words."""
        if self.current == "step":
            return f"step {self.count - self.count_at_reset} of the episode"
        return "reset"


class EnvironmentWatch:
    """Ends the node when a step or reset of one of its environments takes too long.

    While its context is entered, a thread checks once per second whether the same call is still in
    progress.
    """

    def __init__(self, who: str, plan: RunPlan, environments: Sequence[WatchedEnvironment]):
        """Watches the environments until it is exited.

        Args:
          who: the node's name in error messages.
          plan: its task, and the seconds that a call may take.
          environments: from `make_environment` or `make_environments`.
        """
        self._who, self._name, self._timeout = who, plan.task.name, plan.env_timeout
        self._environments = environments
        self._is_over = threading.Event()
        self._kill_node = lp.make_node_killer()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> "EnvironmentWatch":
        """Starts watching the calls of this thread."""
        self._thread = threading.Thread(
            target=self._look,
            args=(threading.get_ident(),),
            name="environment watch",
            daemon=True,
        )
        self._thread.start()
        return self

    def __exit__(self, *details: object) -> None:
        """Stops the thread."""
        self._is_over.set()
        if self._thread is not None:
            self._thread.join()

    def _look(self, caller: int) -> None:
        interval = min(_SECONDS_BETWEEN_LOOKS, self._timeout / 10)
        count = len(self._environments)
        before, stuck = [(0, "")] * count, [0.0] * count
        last = time.monotonic()
        while not self._is_over.wait(interval):
            # A suspended process (Ctrl-Z) wakes up much later: that time does not count.
            passed = min(time.monotonic() - last, 2 * interval)
            last = time.monotonic()
            for index, environment in enumerate(self._environments):
                now = environment.count, environment.current
                is_same = environment.current and now == before[index]
                stuck[index] = stuck[index] + passed if is_same else 0.0
                before[index] = now
                if stuck[index] > self._timeout:
                    what = environment.what
                    message = _message(self._who, self._name, what, self._timeout, caller)
                    self._kill_node(UsageError(message), stuck[index])
                    return
