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
from environments.engines.batch import BatchEnvironment, EnvironmentsInTurn
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
      The environment.
    """
    return _construct(who, plan, lambda: plan.task.make(seed=seed))


def make_environments(who: str, plan: RunPlan, seeds: Sequence[int]) -> BatchEnvironment:
    """Makes the environments of an actor; ends the node if one of them takes too long.

    Args:
      who: the node's name in error messages.
      plan: its task and engine, and the seconds that a call may take.
      seeds: the seed of each environment.

    Returns:
      The environments.
    """
    if plan.env_engine == "envpool":
        from environments.engines.envpool_pool import EnvPoolEnvironments

        name, threads = plan.task.name, max(1, (os.cpu_count() or 1) // plan.num_actors)
        return _construct(who, plan, lambda: EnvPoolEnvironments(name, seeds, threads))
    made: list[Any] = []
    environments = EnvironmentsInTurn(made)
    with closed_on_error(environments):
        for seed in seeds:
            made.append(make_environment(who, plan, seed))
    return environments


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


class EnvironmentWatch:
    """Ends the node when a step or reset of one of its environments takes too long.

    While its context is entered, a thread checks once per second whether the same call is still in
    progress. A call itself only sets three attributes, which takes about 0.1 microseconds.
    """

    def __init__(self, who: str, plan: RunPlan, environments: Sequence[Any]):
        """Watches the environments' `reset` and `step` until it is exited.

        Args:
          who: the node's name in error messages.
          plan: its task, and the seconds that a call may take.
          environments: environments, or `simulators` of a `BatchEnvironment`; their methods are
            replaced on these instances.
        """
        self._who, self._name, self._timeout = who, plan.task.name, plan.env_timeout
        self._calls = [_Calls(environment) for environment in environments]
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
        """Stops the thread, and restores the environments' methods.

        Otherwise each environment would be part of a reference cycle, and its simulator and viewer
        would live until Python's garbage collector runs, in any thread.
        """
        self._is_over.set()
        if self._thread is not None:
            self._thread.join()
        for calls in self._calls:
            calls.put_methods_back()

    def _look(self, caller: int) -> None:
        interval = min(_SECONDS_BETWEEN_LOOKS, self._timeout / 10)
        before, stuck = [(0, "")] * len(self._calls), [0.0] * len(self._calls)
        last = time.monotonic()
        while not self._is_over.wait(interval):
            # A suspended process (Ctrl-Z) wakes up much later: that time does not count.
            passed = min(time.monotonic() - last, 2 * interval)
            last = time.monotonic()
            for index, calls in enumerate(self._calls):
                now = calls.count, calls.current
                is_same = calls.current and now == before[index]
                stuck[index] = stuck[index] + passed if is_same else 0.0
                before[index] = now
                if stuck[index] > self._timeout:
                    message = _message(self._who, self._name, calls.what, self._timeout, caller)
                    self._kill_node(UsageError(message), stuck[index])
                    return


class _Calls:
    """The calls of an environment, or of several that are stepped together.

    Attributes:
      count: number of calls that have begun.
      count_at_reset: that number when the episode began.
      current: name of the method that is being called; empty between two calls.
    """

    def __init__(self, environment: Any):
        self.count, self.count_at_reset, self.current = 0, 0, ""
        step, reset = environment.step, environment.reset
        self._environment = environment
        # Only attributes of the instance itself, usually none: a bound method would form a cycle,
        # too.
        own = vars(environment)
        self._own = {name: own[name] for name in ("step", "reset") if name in own}

        def watched_step(actions: Any) -> Any:
            self.count += 1
            self.current = "step"
            try:
                return step(actions)
            finally:
                self.current = ""

        def watched_reset(*indices: Any) -> Any:
            self.count += 1
            self.count_at_reset = self.count
            self.current = "reset"
            try:
                return reset(*indices)
            finally:
                self.current = ""

        environment.step, environment.reset = watched_step, watched_reset

    def put_methods_back(self) -> None:
        """Restores the methods that the environment had before."""
        for name in ("step", "reset"):
            vars(self._environment).pop(name, None)
        vars(self._environment).update(self._own)

    @property
    def what(self) -> str:
        """The current call, in words."""
        if self.current == "step":
            return f"step {self.count - self.count_at_reset} of the episode"
        return "reset"
