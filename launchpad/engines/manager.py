"""The return value of `launch`: a running program."""

from __future__ import annotations

import atexit
import contextlib
import numbers
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any

from launchpad import errors
from launchpad import runtime as lp_runtime
from launchpad.engines import member as lp_member
from launchpad.engines import supervisor as lp_supervisor
from launchpad.nodes import base, dereference
from rl_replicator.processes import signals

# Polling interval of waits, in seconds, so that the main thread handles signals promptly.
_POLL_SECS = 0.2
_HANDLED_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class ProgramManager:
    """A launched program.

    `lp.launch` returns it:

        manager = lp.launch(program, "local_mp")
        while not manager.wait(timeout=1.0):
            print(manager.resolve(counter).get_counts())
    """

    def __init__(self, supervisor: lp_supervisor.Supervisor, is_test: bool):
        """Wraps a supervisor; a test launch is stopped, not awaited, at exit."""
        self.is_test = is_test
        self._supervisor = supervisor
        self._was_awaited = False
        self._was_failure_raised = False
        self._node: lp_runtime.NodeRuntime | None = None

    @property
    def signal_number(self) -> int | None:
        """SIGINT, SIGTERM or SIGHUP if one of them ended the program, else None."""
        return self._supervisor.signal_number

    @property
    def restarts(self) -> tuple[lp_member.NodeRestart, ...]:
        """The restarts of nodes so far, in order."""
        return tuple(self._supervisor.restarts)

    @property
    def is_done(self) -> bool:
        """True once every node has ended."""
        return self._supervisor.done.is_set()

    def wait(
        self,
        timeout: float | Sequence[str] | None = None,
        *,
        labels_to_wait_for: Sequence[str] | None = None,
        raise_error: bool = True,
        return_on_first_completed: bool = False,
    ) -> bool:
        """Waits for the end of the program, or of some of its nodes.

        A program ends when it was stopped and all nodes have ended, or when every node with work of
        its own has finished; in the latter case, the servers are stopped here.

        Args:
          timeout: Seconds to wait; None for as long as it takes. A sequence is interpreted as
            `labels_to_wait_for`, which comes first in upstream's method.
          labels_to_wait_for: Waits for the nodes of these groups only; the others keep running. A
            server without work of its own ends with the program. None or empty for all groups.
          raise_error: False to return even if a node has failed.
          return_on_first_completed: Returns when the first node has ended.

        Returns:
          True if the program or the nodes have ended, False if they are still running.

        Raises:
          NodeFailedError: a node of any group failed; all nodes have ended. Raised once.
          ValueError: there is no such group.
          KeyboardInterrupt: Ctrl-C was pressed twice.
        """
        if isinstance(timeout, numbers.Real):
            timeout = float(timeout)  # A low-precision NumPy float would round the deadline.
        elif timeout is not None:
            timeout, labels_to_wait_for = None, timeout
        try:
            return self._wait(timeout, labels_to_wait_for or None, return_on_first_completed)
        except errors.NodeFailedError:
            if raise_error:
                raise
            self._was_failure_raised = False
            return True

    def _wait(
        self, timeout: float | None, labels: Sequence[str] | None, is_first_enough: bool
    ) -> bool:
        supervisor = self._supervisor
        deadline = float("inf") if timeout is None else time.monotonic() + timeout
        enough = any if is_first_enough else all
        idle = {lp_runtime.SERVING, lp_runtime.ENDED}
        try:
            while True:
                is_for_nodes = is_first_enough or labels is not None
                states = supervisor.states(labels) if is_for_nodes else []
                have_ended = bool(states) and enough(state == lp_runtime.ENDED for state in states)
                # A failed node must not count as a success, although others are still running.
                if have_ended and not supervisor.has_failed:
                    return True
                # Servers end only with the program, which may have nothing left to do.
                supervisor.is_awaited |= idle.issuperset(states)
                left = deadline - time.monotonic()
                if supervisor.done.wait(max(0.0, min(_POLL_SECS, left))):
                    break
                if left <= 0:
                    return False
        except KeyboardInterrupt:  # No signal handlers in a test launch or off the main thread.
            self.stop()
            supervisor.done.wait()
            raise
        self._was_awaited = True
        if supervisor.failure is not None and not self._was_failure_raised:
            self._was_failure_raised = True
            raise supervisor.failure
        if supervisor.was_killed and self.signal_number == signal.SIGINT:
            raise KeyboardInterrupt
        return True

    join = wait

    def stop(self) -> None:
        """Asks the program to stop; returns immediately."""
        self._supervisor.post(None, "stop")

    def stop_and_wait(self) -> None:
        """Stops the program and waits for its end.

        Raises:
          NodeFailedError: a node failed.
        """
        self.stop()
        self.wait()

    def cleanup_after_test(self, test_case: Any) -> None:
        """Stops the program, waits for its end, and fails the test if a node has failed."""
        self.stop()
        self.wait(raise_error=False)
        test_case.assertIsNone(self._supervisor.failure)  # noqa: PT009 - the argument's own

    def kill(self) -> None:
        """Kills all nodes immediately."""
        self._supervisor.post(None, "kill")

    def resolve(self, handle: base.Handle[Any]) -> Any:
        """Returns the client of `handle`, for use in the launching process."""
        return dereference.maybe_dereference(handle)

    def processes(self) -> dict[str, int]:
        """Returns the process id of every node, by "label/index"; empty for threads.

        On Ray, a process id is valid on the node's own machine.
        """
        return self._supervisor.processes()

    def take_signals(self) -> None:
        """Makes SIGINT, SIGTERM and SIGHUP stop the program.

        A process that ignores one of them continues to ignore it. Python lets only the main thread
        handle signals: a program launched from another thread is stopped only if the main thread
        has launched a program, too. A program launched by a node stops with the node's own program,
        which handles the signals; in a node's process, SIGTERM interrupts the node itself.
        """
        self._node = lp_runtime.current_node()
        if self._node is not None:
            self._node.call_at_stop(self._end_with_node)
        elif threading.current_thread() is threading.main_thread():
            _old_handlers.update(signals.take(_on_signal, _HANDLED_SIGNALS))

    def forget(self) -> None:
        """Lets go of a program that is settled."""
        with contextlib.suppress(ValueError):  # Another thread has removed it.
            _unfinished.remove(self)
        if self._node is not None:
            self._node.remove_stop_handler(self._end_with_node)

    def _end_with_node(self) -> None:
        self.stop()
        self._supervisor.done.wait()

    def _is_settled(self) -> bool:
        """True if the program has ended and has no failure left to raise."""
        has_news = self._supervisor.failure is not None and not (self._was_awaited or self.is_test)
        return self._supervisor.done.is_set() and not has_news


# The programs that run, or have a failure left to raise. Other threads and the signal handler may
# use the list at any time, so it is changed by atomic operations only.
_unfinished: list[ProgramManager] = []
# The signal handlers from before the first program.
_old_handlers: dict[int, Any] = {}


def _on_signal(number: int, frame: FrameType | None) -> None:
    """Stops all programs of this process; a second signal kills their nodes."""
    running = [m for m in list(_unfinished) if not (m.is_test or m.is_done)]
    for manager in running:
        manager._supervisor.post(None, "signal", number)
    if running:
        return
    # Nothing is left to stop: restore the script's own handling of the signal.
    former = _old_handlers.get(number)
    signals.give_back(_on_signal, _old_handlers)
    if signal.getsignal(number) is not former:
        # Another handler was installed over this one: it has called it, and would do so again.
        signal.signal(number, signal.SIG_DFL if former is None else former)
    os.kill(os.getpid(), number)


_is_hooked = False
# The last uncaught exception before the newest launch.
_old_error: BaseException | None = None


def await_at_exit(manager: ProgramManager) -> None:
    """Makes the main script wait for the program at exit, even if it only calls `lp.launch(p)`.

    An uncaught exception in the script stops the program first.
    """
    global _is_hooked, _old_error
    _old_error = _last_error()
    for former in list(_unfinished):
        if former._is_settled():
            former.forget()
    _unfinished.append(manager)
    if not _is_hooked:
        _is_hooked = True
        # Runs before the standard library forbids new threads at exit; atexit would be too late.
        threading._register_atexit(_wait_for_all)  # type: ignore[attr-defined]


def stop_all() -> None:
    """Asks all programs of this process to stop; signal handlers may call it."""
    for manager in list(_unfinished):
        manager.stop()


def _last_error() -> BaseException | None:
    """Returns the last uncaught exception, which Python records when it prints it."""
    return getattr(sys, "last_value", None)


def _has_script_failed() -> bool:
    # In an interactive session, the user has seen the error and continued.
    is_session = hasattr(sys, "ps1") or sys.flags.interactive
    return not is_session and _last_error() is not _old_error


def _wait_for_all() -> None:
    """Waits for all programs, even if one fails: the script must leave none running."""
    has_failed = _has_script_failed()
    is_stopping = has_failed
    has_news = False
    for manager in list(_unfinished):
        while not manager._is_settled():
            try:
                if manager.is_test or is_stopping:
                    manager.stop()
                manager.wait()
            except BaseException as error:
                # Ctrl-C applies to all programs, even if it is raised here for lack of a handler.
                is_stopping |= not isinstance(error, errors.NodeFailedError)
                if isinstance(error, SystemExit) and error.code in (None, 0):
                    continue  # A signal handler exits the script, which is ending already.
                # There is no caller left to raise it to.
                traceback.print_exc()
                has_news = True
            break
    if has_news and not has_failed:  # The exit status must not be 0; after an error, it is not.
        sys.stdout.flush()
        atexit._run_exitfuncs()
        os._exit(1)


# Upstream's helpers for scripts that exit gracefully after a signal.


def exit_gracefully_on_sigint() -> None:
    """Makes Ctrl-C end the process with status 0, after its programs and its exit handlers.

    Further Ctrl-Cs are ignored.
    """
    signal.signal(signal.SIGINT, _exit)


def exit_gracefully_on_sigquit() -> None:
    """Makes SIGQUIT end the process with status 0, after its programs and its exit handlers."""
    signal.signal(signal.SIGQUIT, _exit)


def register_exit_handler(handler: Callable[..., None], *args: Any, **kwargs: Any) -> Any:
    """Calls `handler(*args, **kwargs)` when the process ends; returns the handler."""
    return atexit.register(handler, *args, **kwargs)


def register_exit_handler_and_exit_gracefully_on_sigint(
    handler: Callable[..., None], *args: Any, **kwargs: Any
) -> Any:
    """Calls both functions; returns the handler."""
    exit_gracefully_on_sigint()
    return register_exit_handler(handler, *args, **kwargs)


def _exit(number: int, frame: FrameType | None) -> None:
    if number == signal.SIGINT:  # A second Ctrl-C must not interrupt the exit handlers.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    print(f"{signal.Signals(number).name} received, exiting", flush=True)
    stop_all()  # At exit, the script waits for them.
    sys.exit(0)


def _forget() -> None:
    """Forgets the programs in a forked process, which does not have their threads."""
    _unfinished.clear()
    _old_handlers.clear()  # `signals` restores them.


os.register_at_fork(after_in_child=_forget)
