"""Supervises the nodes of a program and shuts it down in the right order.

One thread owns all state and reads events from a queue, so it needs no locks, and a signal handler
can post an event safely. A shutdown has these phases:

    stop      every node's stop event is set; nodes leave `run()`, servers keep serving
    release   once no node is in `run()`, or at 70 % of the notice period: servers close
    kill      nodes still running after the notice period are killed (threads are abandoned)
    last      stores such as Reverb are released once all other nodes have ended
"""

from __future__ import annotations

import logging
import queue
import signal
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from launchpad import errors
from launchpad import runtime as lp_runtime
from launchpad.engines import member as lp_member
from rl_replicator.processes import signals

logger = logging.getLogger("launchpad")

# Fraction of the notice period after which servers close even if a node is still in its run().
_RELEASE_PART = 0.7
# Seconds to wait for a killed node to end before it is abandoned.
_KILL_SECS = 1.0
# The supervisor checks its nodes ten times per second. If it has not for this many seconds, this
# process was suspended.
_ASLEEP_SECS = 2.0
# A process that a signal has stopped is assumed not to resume after this many seconds of silence.
_STOPPED_SECS = 5.0
# Seconds that the shutdown waits for the stop handlers of the launching process.
_HANDLERS_SECS = 1.0
# Minimum time for stores to end after their release, in seconds.
_LAST_SECS = 2.0
# Events that need no node.
_OF_LAUNCHER = ("publish", "stop", "signal", "kill")


class Supervisor:
    """Runs the workers of one program until they have all ended.

    Attributes:
      done: Set when every node is gone.
      failure: The root failure once `done` is set, or None.
      was_killed: True if the nodes were killed on request.
      launcher: Runtime of the launching process, which is notified of the stop, too.
      restarts: The restarts of nodes, in order; append-only.
      is_awaited: True once a caller waits for the program, which may then end when it is idle.
    """

    def __init__(
        self,
        members: Sequence[lp_member.Member],
        make_worker: Callable[[lp_member.Member, Supervisor], lp_member.Worker],
        book: dict[str, str],
        termination_notice_secs: float,
        close_engine: Callable[[], None] = lambda: None,
    ):
        """Prepares the supervisor; `start()` starts the nodes.

        Args:
          members: The nodes.
          make_worker: Makes a new incarnation of a node.
          book: Receives the published addresses, by key.
          termination_notice_secs: Seconds from stop to kill; 0 kills immediately, negative never.
          close_engine: Called once all nodes are gone.
        """
        self.done = threading.Event()
        self.failure: errors.NodeFailedError | None = None
        self._signals: list[int] = []
        self.was_killed = False
        self._members = list(members)
        self._make_worker = make_worker
        self._close_engine = close_engine
        self._book = book
        self.launcher: lp_runtime.NodeRuntime | None = None
        self.restarts: list[lp_member.NodeRestart] = []
        self._notice = (
            float("inf") if termination_notice_secs < 0 else float(termination_notice_secs)
        )
        self._events: queue.SimpleQueue[tuple[Any, ...]] = queue.SimpleQueue()
        self._on: dict[str, Callable[..., None]] = {
            "state": self._on_state,
            "publish": self._on_publish,
            "failing": self._on_failing,
            "stuck": self._fail,
            "ended": self._end,
            "stop": lambda _: self._begin_stop(),
            "signal": lambda _, number: self._on_signal(number),
            "kill": lambda _: self._on_kill(),
        }
        self._published: dict[str, str] = {}
        self._failures: list[lp_member.Failure] = []
        self._counts: dict[tuple[str, int | None], lp_member.Restarts] = {}
        # Groups that are about to be restarted, and when.
        self._groups: dict[str, float] = {}
        self.is_awaited = False
        self._looked_at = self._awake_since = float("-inf")
        self._stop_at: float | None = None
        self._first, self._last = (
            _Ending([m for m in members if m.node.stops_last == last], self._notice)
            for last in (False, True)
        )
        self._last_at: float | None = None
        self._handlers: threading.Thread | None = None
        self._thread = threading.Thread(target=self._run, name="launchpad", daemon=True)

    def start(self) -> None:
        """Starts the thread, which starts the nodes."""
        self._thread.start()

    # -- callable from any thread ---------------------------------------------------------------

    def post(self, worker: lp_member.Worker | None, kind: str, *details: Any) -> None:
        """Reports an event; signal handlers may call this, too.

            state    the state of the node is now `details[0]`
            publish  the owner of the address with key `details[0]` serves at `details[1]`
            failing  the node is about to end with the ExceptionRecord `details[0]`
            stuck    the node has failed with the record `details[0]`, and may never end
            ended    the worker has ended: a record is the cause, None stands for a normal end
            stop     the program is to stop
            signal   the launcher has received the signal `details[0]`
            kill     all nodes are to be killed immediately

        Args:
          worker: Whose event it is; None for the launcher.
          kind: What has happened.
          *details: More about it.
        """
        self._events.put((worker, kind, details))

    def processes(self) -> dict[str, int]:
        """Returns the process id of every live node that is a process, by name."""
        pids = {m.name: getattr(m.worker, "pid", None) for m in self._members if not m.is_gone}
        return {name: pid for name, pid in pids.items() if pid is not None}

    @property
    def signal_number(self) -> int | None:
        """Signal that ended the program, or None."""
        return self._signals[0] if self._signals else None

    @property
    def has_failed(self) -> bool:
        """Whether the failure of a node ends, or has ended, the program.

        It becomes True before `states` reports this node as ended.
        """
        return bool(self._failures)

    def states(self, labels: Sequence[str] | None) -> list[str]:
        """Returns the state of each node of these groups; ENDED also once its own work is done.

        A server without work of its own runs until its release.

        Args:
          labels: The labels of the groups; None for all.

        Raises:
          ValueError: there is no such group.
        """
        known = {m.label for m in self._members}
        if labels is not None and not known.issuperset(labels):
            raise ValueError(f"expected groups out of {sorted(known)}, got {list(labels)}")
        members = [m for m in self._members if labels is None or m.label in labels]
        return [lp_runtime.ENDED if m.has_done_its_work else m.state for m in members]

    # -- the thread -------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            for member in self._members:
                self._start(member)
            while not all(member.is_gone for member in self._members):
                try:
                    worker, kind, details = self._events.get(timeout=0.1)
                except queue.Empty:
                    pass
                else:
                    sender = self._member_of(worker)
                    # A worker that has been replaced no longer speaks for its node, and the
                    # launcher, where code of nodes may run as well, for none.
                    of_program = _OF_LAUNCHER if worker is None else ("stop",)
                    if sender is not None or kind in of_program:
                        self._on[kind](sender, *details)
                self._advance(time.monotonic())
        except BaseException as error:  # A bug here must not leave nodes running.
            logger.exception("the supervisor failed")
            record = errors.ExceptionRecord.of(error)
            self._failures.append(lp_member.Failure(self._members[0], record, time.monotonic()))
            self._kill_all()
        finally:
            self._finish()

    def _start(self, member: lp_member.Member) -> None:
        if self._stop_at is not None:  # An earlier node could not be started.
            member.state = lp_runtime.ENDED
            return
        member.state = lp_runtime.STARTING
        member.restart_at = None
        member.is_replaced = False
        member.started_at = time.monotonic()
        try:
            member.worker = self._make_worker(member, self)
            member.worker.start()
        except Exception as error:  # For example too many open files or threads.
            self._end(member, errors.ExceptionRecord.of(error))

    def _finish(self) -> None:
        try:
            for member in self._members:
                if member.worker is not None:
                    member.worker.close()
            try:
                self._close_engine()
            except Exception:  # It must not hide the failures of the nodes.
                logger.exception("the engine was not closed in order")
            if self.launcher is not None:
                self._notify_launcher(self.launcher).join(_HANDLERS_SECS)
                lp_runtime.remove_launcher_runtime(self.launcher)
        finally:  # Also if no thread can be started any more: somebody waits for the end.
            self.failure = lp_member.root(self._failures).as_error() if self._failures else None
            self.done.set()

    def _member_of(self, worker: lp_member.Worker | None) -> lp_member.Member | None:
        """Returns the worker's node, or None if there is none, or it has another worker now."""
        return next((m for m in self._members if worker is not None and m.worker is worker), None)

    def _on_state(self, member: lp_member.Member, state: str) -> None:
        if not member.is_gone:
            member.state = state
            member.was_active |= state == lp_runtime.RUNNING
            if member.failed_at is not None and state != lp_runtime.STARTING:
                seconds = time.monotonic() - member.failed_at
                logger.warning("%s is up again after %.1f s", member.name, seconds)
                member.failed_at = None

    def _on_publish(self, member: lp_member.Member | None, key: str, address: str) -> None:
        self._book[key] = address
        before, self._published[key] = self._published.get(key), address
        if before not in (None, address) and self._stop_at is None:
            self._restart_clients(key)
        for member in self._members:
            if member.worker is not None and not member.is_gone:
                member.worker.send_address(key, address)

    def _on_failing(self, member: lp_member.Member, record: errors.ExceptionRecord) -> None:
        # A node that may be restarted, or was killed for a restart, is handled once it has ended.
        will_restart = member.is_replaced or member.may_restart_after(record)
        if self._stop_at is not None or not will_restart:
            self._fail(member, record)

    def _fail(self, member: lp_member.Member, record: errors.ExceptionRecord) -> None:
        if any(failure.member is member for failure in self._failures):
            return  # The first report of a node is the cause of its failure.
        # Remote calls are expected to fail once servers are closed, and in constructors that are
        # still running when the program stops.
        is_expected = self._stop_at is not None and record.is_collateral
        if is_expected and (self._first.is_released or not self._failures):
            logger.debug("%s failed while stopping: %s", member.name, record.message)
        elif self._first.is_released and self._failures:
            # This is not why the program ends, but it may be a failed last save.
            text = f"{record.type_name}: {record.message}{record.lines_below}"
            logger.warning("%s failed while stopping: %s", member.name, text)
        else:
            ends_program = self._stop_at is None or bool(self._failures)
            self._failures.append(lp_member.Failure(member, record, time.monotonic()))
            is_root = lp_member.root(self._failures).record is record
            if ends_program and is_root and not record.is_collateral:
                reason = next(iter(record.message.splitlines()), "")
                logger.warning("%s failed: %s: %s; stopping", member.name, record.type_name, reason)
        self._begin_stop()

    def _end(self, member: lp_member.Member, record: errors.ExceptionRecord | None) -> None:
        if member.is_gone or self._may_restart(member, record):
            return
        # A killed process dies as expected, but a failure that it has reported before counts.
        endings = (self._first, self._last)
        was_killed = self.was_killed or any(ending.killed_at for ending in endings)
        is_expected = was_killed or member.is_replaced
        if record is not None and not (is_expected and record.type_name == errors.PROCESS_DIED):
            self._fail(member, record)
        member.state = lp_runtime.ENDED

    def _may_restart(self, member: lp_member.Member, record: errors.ExceptionRecord | None) -> bool:
        """Schedules the restart of a replaced node, or of a failed one if its policy allows it."""
        if self._stop_at is not None:
            return False
        now = time.monotonic()
        pause = 0.0 if member.is_replaced else self._count_restart(member, record, now)
        if pause is None:
            return False
        reason = f"{record.type_name}: {record.message}" if record is not None else "ended"
        if member.is_replaced:
            reason = "started again together with another node"
        self.restarts.append(lp_member.NodeRestart(member.name, reason))
        if member.worker is not None:
            member.worker.close()
        member.worker = None
        member.state = lp_runtime.STARTING
        member.restart_at = now + pause
        member.failed_at = member.failed_at or now
        if not member.is_replaced:
            self._restart_group(member)
        return True

    def _count_restart(
        self, member: lp_member.Member, record: errors.ExceptionRecord | None, now: float
    ) -> float | None:
        """Counts and logs the restart of a node that has failed.

        Returns:
          The seconds until then, or None if the policy of the node allows no restart.
        """
        policy = member.restart_policy
        if policy is None or record is None or not member.may_restart_after(record):
            return None
        # Nodes that are restarted together are counted together.
        key = (member.label, None if policy.together else member.index)
        restarts = self._counts.setdefault(key, lp_member.Restarts(policy))
        # Time spent stuck does not count: a node that gets stuck again and again has no progress.
        pause = restarts.next_pause(now - member.started_at - record.stuck_secs)
        if pause is not None:
            logger.warning(
                "%s failed: %s: %s; restart %d of %d in %.3g s%s",
                member.name,
                record.type_name,
                record.message,
                restarts.count,
                policy.max_restarts,
                pause,
                record.lines_below,
            )
        return pause

    def _restart_group(self, member: lp_member.Member) -> None:
        """Restarts the whole group of `member`, which ends, if its policy says so."""
        if member.restart_policy is None or not member.restart_policy.together:
            return
        self._groups[member.label] = member.restart_at or time.monotonic()
        for partner in self._members:
            if partner.label != member.label or partner is member or partner.restart_at is not None:
                continue
            partner.is_replaced = True
            if partner.is_gone:
                partner.state = lp_runtime.STARTING
                partner.restart_at = self._groups[member.label]
            elif partner.worker is not None:
                logger.warning("%s: started again together with %s", partner.name, member.name)
                partner.worker.kill()

    def _start_again(self, now: float) -> None:
        for member in self._members:
            is_due = member.restart_at is not None and now >= member.restart_at
            if is_due and member.label not in self._groups:
                self._start(member)
        for name, when in list(self._groups.items()):
            group = [m for m in self._members if m.label == name]
            if now < when or any(m.restart_at is None for m in group):
                continue  # Some have not ended yet.
            del self._groups[name]
            for member in group:
                # The nodes look up each other's addresses, so none may find an outdated one.
                for address in member.node.addresses:
                    self._book.pop(address.key, None)
            for member in group:
                self._start(member)
                if member.restart_at is not None:
                    break  # It could not be started; the others wait until all can be.

    def _end_frozen(self, now: float) -> None:
        # A launcher that was suspended itself (Ctrl-Z, a sleeping machine) has received no
        # heartbeats: the silence of its nodes counts from when it resumed.
        if now - self._looked_at > _ASLEEP_SECS:
            self._awake_since = now
        self._looked_at = now
        for member in self._members:
            policy, worker = member.restart_policy, member.worker
            if policy is None or policy.frozen_after_secs is None:
                continue
            if worker is not None and not member.is_gone and not member.is_replaced:
                silent = min(worker.silent_secs, now - self._awake_since)
                is_stopped = silent > _STOPPED_SECS and worker.is_stopped
                if silent > policy.frozen_after_secs or is_stopped:
                    worker.end_frozen(silent)

    def _restart_clients(self, key: str) -> None:
        """Restarts the nodes that use a store whose address changed: its clients can't follow."""
        for member in self._members:
            handles = (getattr(h, "address_key", None) for h in member.node.input_handles)
            if member.worker is None or member.is_gone or member.is_replaced:
                continue
            if key in handles:
                logger.warning("%s: started again, because its store moved", member.name)
                member.is_replaced = True
                member.worker.kill()
                self._restart_group(member)

    def _on_signal(self, number: int) -> None:
        if not signals.note(number, self._signals):
            return
        name = signal.Signals(number).name
        if len(self._signals) > 1:
            logger.warning("%s again: killing all nodes", name)
            self._on_kill()
            return
        again = " (Ctrl-C again kills at once)" if number == signal.SIGINT else ""
        logger.warning("%s: stopping%s", name, again)
        self._begin_stop()

    def _on_kill(self) -> None:
        self.was_killed = True
        self._begin_stop()
        self._kill_all()
        for member in self._members:
            member.is_abandoned = True

    # -- the end ----------------------------------------------------------------------------------

    def _begin_stop(self) -> None:
        if self._stop_at is not None:
            return
        self._stop_at = time.monotonic()
        for member in self._members:
            if member.restart_at is not None:
                member.restart_at = None
                member.state = lp_runtime.ENDED
        if self.launcher is not None:
            self._notify_launcher(self.launcher)
        for member in self._members:
            if member.worker is not None and not member.is_gone:
                member.worker.notify_stop()

    def _notify_launcher(self, launcher: lp_runtime.NodeRuntime) -> threading.Thread:
        """Runs the stop handlers of the launching process; returns their thread.

        They are user code: they may wait for the end of the program, or raise SystemExit.
        """
        if self._handlers is None:
            launcher.mark_stop_aware()  # The launching thread is never interrupted.
            self._handlers = launcher.begin_stop()
        return self._handlers

    def _advance(self, now: float) -> None:
        """Restarts nodes that are due, or advances the phases of the shutdown."""
        if self._stop_at is None:
            is_idle = all(m.state in lp_runtime.PASSIVE for m in self._members)
            self._start_again(now)
            self._end_frozen(now)
            # A program that consists only of servers runs until lp.stop().
            if self.is_awaited and is_idle and any(m.was_active for m in self._members):
                self._begin_stop()
            return
        is_idle = all(m.state in lp_runtime.PASSIVE for m in self._members)
        must_end = now >= self._stop_at + self._notice
        is_late = now >= self._stop_at + _RELEASE_PART * self._notice
        self._first.advance(now, is_idle or is_late, must_end)
        # A colocation that contains a store stops last, too, but may still have its own work to do.
        if self._first.is_released and self._first.is_over:
            self._last_at = self._last_at or now
            self._last.advance(now, True, must_end and now >= self._last_at + _LAST_SECS)

    def _kill_all(self) -> None:
        for member in self._members:
            if not member.is_gone and member.worker is not None:
                member.worker.kill()


class _Ending:
    """The end of nodes: they are released, later killed, and given up if that does not help.

    Attributes:
      is_released: Whether their servers were asked to close.
      killed_at: Monotonic time at which they were killed, or None.
    """

    def __init__(self, members: Sequence[lp_member.Member], notice_secs: float):
        self._members = members
        self._notice_secs = notice_secs
        self.is_released = False
        self.killed_at: float | None = None

    @property
    def is_over(self) -> bool:
        """True if all of them have ended, or were given up."""
        return all(member.is_gone for member in self._members)

    def advance(self, now: float, may_close: bool, must_end: bool) -> None:
        """Does what is due.

        Args:
          now: Monotonic time.
          may_close: Whether their servers may close.
          must_end: Whether they are killed if they have not ended.
        """
        left = [m for m in self._members if not m.is_gone]
        workers = [m.worker for m in left if m.worker is not None]
        if may_close and not self.is_released:
            self.is_released = True
            for worker in workers:
                worker.release()
        if must_end and self.killed_at is None:
            self.killed_at = now
            if late := [m.name for m in left if _is_killable(m)]:
                logger.warning("killed after %g s: %s", self._notice_secs, ", ".join(late))
            for worker in workers:
                worker.kill()
        if self.killed_at is not None and now >= self.killed_at + _KILL_SECS:
            self._abandon(left)

    def _abandon(self, left: Sequence[lp_member.Member]) -> None:
        if killed := [m.name for m in left if _is_killable(m)]:
            logger.warning("left behind: %s", ", ".join(killed))
        if running := [m.name for m in left if not _is_killable(m)]:
            message = "still running after %g s (threads cannot be killed): %s"
            logger.warning(message, self._notice_secs, ", ".join(running))
        for member in left:
            member.is_abandoned = True


def _is_killable(member: lp_member.Member) -> bool:
    return member.worker is None or member.worker.is_killable
