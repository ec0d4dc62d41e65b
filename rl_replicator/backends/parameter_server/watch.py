"""Detects workers and parameter servers that a coordinator has lost."""

import logging
import re
import threading
import time

import tensorflow as tf

from rl_replicator import errors
from rl_replicator.jobs import cluster as cluster_lib
from rl_replicator.jobs import ports

Task = tuple[str, int]

_INTERVAL = 1.0
# A parameter server that is unreachable in two checks in a row is lost, with its variables.
_SERVER_PATIENCE = 0.9 * _INTERVAL
_POLL_SECONDS = 0.1
_SERVER = re.compile(r"/job:ps/replica:0/task:(\d+)")
# The errors of a lost connection, and those of a server that has no state of this coordinator.
_LOST = (tf.errors.AbortedError, tf.errors.UnavailableError)
_UNKNOWN = (tf.errors.InternalError, tf.errors.InvalidArgumentError)
_UNKNOWN_THINGS = re.compile(r"Unable to find (a context_id|the relevant tensor remote_handle)")


class Watch:
    """Detects tasks that died or froze. Runs operations on them only if no results arrive."""

    def __init__(self, cluster: cluster_lib.Cluster, worker_timeout: float):
        """Checks nothing yet.

        Args:
          cluster: the cluster.
          worker_timeout: seconds after which all workers are lost if none is reachable. If no
            results arrive for half of this time, each reachable task is sent an operation, and has
            the other half to answer.
        """
        self._cluster = cluster
        self._worker_timeout = worker_timeout
        self._workers = [task for task in cluster.tasks if task[0] == "worker"]
        self._servers = [task for task in cluster.tasks if task[0] == "ps"]
        self._gone_since: dict[Task, float] = {}
        self._last_check = 0.0
        self._last_news = time.monotonic()
        self._lock = threading.Lock()

    def wait_for_all(self, timeout: float) -> None:
        """Waits until every worker and parameter server listens.

        Args:
          timeout: seconds to wait.

        Raises:
          WorkerLost: if tasks do not listen in time; names them.
        """
        deadline = time.monotonic() + timeout
        missing = [*self._workers, *self._servers]
        while True:
            missing = [task for task in missing if not self._is_reachable(task)]
            if not missing:
                return
            if time.monotonic() > deadline:
                raise errors.WorkerLost(
                    f"expected all workers and parameter servers to start, but "
                    f"{self._names(missing)} did not within {timeout:g} s; start all of them "
                    "together, or give a longer start_timeout",
                    _indices(missing),
                )
            time.sleep(0.2)

    def note_news(self) -> None:
        """Records that a result has arrived, or that the first call has begun after a pause."""
        self._last_news = time.monotonic()

    @property
    def given_up(self) -> set[int]:
        """Indices of workers that have been unreachable for `worker_timeout`."""
        since = time.monotonic() - self._worker_timeout
        return {
            i for kind, i in self._workers if self._gone_since.get((kind, i), since + 1) < since
        }

    def check(self) -> errors.WorkerLost | None:
        """Looks for lost tasks, at most once per second. Call it repeatedly while waiting.

        Returns:
          The error to raise if the cluster cannot continue; otherwise None.
        """
        with self._lock:
            now = time.monotonic()
            if now - self._last_check < _INTERVAL:
                return None
            self._last_check = now
            self._note_reachable()
            lost = [t for t in self._servers if self._gone_for(t) >= _SERVER_PATIENCE]
            if lost:
                return self._server_loss(lost, "gone")
            if all(self._gone_for(task) >= self._worker_timeout for task in self._workers):
                return self._all_workers_loss()
            if time.monotonic() - self._last_news >= self._worker_timeout / 2:
                return self._silence_loss()
            return None

    def blame(self, error: Exception) -> errors.WorkerLost | None:
        """Returns the loss of a parameter server if it caused the error of a step.

        Args:
          error: error of a step.

        Returns:
          The error to raise instead; None if no parameter server is lost.
        """
        text = str(error)
        # An error of the step itself may arrive through a server that waits for its results.
        if not (
            isinstance(error, _LOST)
            or (isinstance(error, _UNKNOWN) and _UNKNOWN_THINGS.search(text))
        ):
            return None
        named = {int(number) for number in _SERVER.findall(text)}
        gone = [task for task in self._servers if not self._is_reachable(task)]
        if gone:
            return self._server_loss(gone, "gone")
        if "remote target /job:ps" in text and named:
            restarted = [("ps", index) for index in sorted(named)]
            return self._server_loss(restarted, "cut off, or was restarted empty")
        return None

    def _note_reachable(self) -> None:
        for task in (*self._workers, *self._servers):
            if self._is_reachable(task):
                if self._gone_since.pop(task, None) is not None:
                    logging.warning("%s is reachable again", self._names([task]))
            elif task not in self._gone_since:
                self._gone_since[task] = time.monotonic()
                logging.warning("%s is unreachable", self._names([task]))

    def _is_reachable(self, task: Task) -> bool:
        try:
            ports.check_reachable(self._cluster.address(*task))
        except OSError:
            return False
        return True

    def _gone_for(self, task: Task) -> float:
        now = time.monotonic()
        return now - self._gone_since.get(task, now)

    def _server_loss(self, tasks: list[Task], what: str) -> errors.WorkerLost:
        return errors.WorkerLost(
            f"{self._names(tasks)} is {what}, and the variables there are lost; end this process "
            "and restart the whole group from its last checkpoint, as "
            "`python -m rl_replicator.jobs` does",
            _indices(tasks),
        )

    def _all_workers_loss(self) -> errors.WorkerLost:
        return errors.WorkerLost(
            f"expected at least one worker, but {self._names(self._workers)} could not be reached "
            f"for {self._worker_timeout:g} s; restart them at their addresses, or restart the "
            "whole group from its last checkpoint",
            _indices(self._workers),
        )

    def _silence_loss(self) -> errors.WorkerLost | None:
        """Returns the loss of tasks that listen but are frozen; None if all are only slow."""
        asked = [task for task in (*self._workers, *self._servers) if task not in self._gone_since]
        before = self._last_news
        answered = _ask(asked)
        deadline = time.monotonic() + self._worker_timeout / 2
        while len(answered) < len(asked) and time.monotonic() < deadline:
            if self._last_news != before:  # A result is an answer, and the caller needs it now.
                return None
            time.sleep(_POLL_SECONDS)
        silent = [task for task in asked if task not in answered]
        if not silent:
            self.note_news()
            return None
        return errors.WorkerLost(
            f"{self._names(silent)} has not answered for {self._worker_timeout:g} s: it is frozen, "
            "or the network to it is down; kill and restart it, or restart the whole group from "
            "its last checkpoint",
            _indices(silent),
        )

    def _names(self, tasks: list[Task]) -> str:
        return ", ".join(f"{kind} {i} ({self._cluster.address(kind, i)})" for kind, i in tasks)


def _ask(tasks: list[Task]) -> set[Task]:
    """Returns a set to which each task is added once it has executed a trivial operation."""
    answered: set[Task] = set()

    def ask(task: Task) -> None:
        kind, index = task
        try:
            with tf.device(f"/job:{kind}/replica:0/task:{index}/device:CPU:0"):
                # Not a constant, because creating one would wait with the GIL held.
                tf.raw_ops.Timestamp()
        except tf.errors.OpError:  # An error is an answer too; its cause is found elsewhere.
            pass
        answered.add(task)

    for task in tasks:
        threading.Thread(target=ask, args=(task,), daemon=True).start()
    return answered


def _indices(tasks: list[Task]) -> tuple[int, ...]:
    return tuple(index for _, index in tasks)
