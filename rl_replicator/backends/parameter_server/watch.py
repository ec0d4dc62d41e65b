"""Detects workers and parameter servers that a coordinator has lost."""

import re
import threading
import time
from collections.abc import Iterable, Sequence

import tensorflow as tf

from rl_replicator import errors
from rl_replicator.jobs import cluster as cluster_lib
from rl_replicator.jobs import ports

Task = tuple[str, int]

_POLL_SECONDS = 0.2
_SERVER = re.compile(r"/job:ps/replica:0/task:(\d+)")
# The errors of a lost connection, and those of a server that has no state of this coordinator.
_LOST = (tf.errors.AbortedError, tf.errors.UnavailableError)
_UNKNOWN_THINGS = re.compile(r"Unable to find (a context_id|the relevant tensor remote_handle)")


class Watch:
    """Detects tasks that died or froze. TensorFlow itself would wait for most of them forever.

    While results arrive, a dead worker is no loss: TensorFlow repeats its calls on others, and uses
    it again when it is back. The death of a parameter server makes calls fail; see `blame`.
    """

    def __init__(self, cluster: cluster_lib.Cluster, worker_timeout: float):
        """Checks nothing yet.

        Args:
          cluster: the cluster.
          worker_timeout: seconds without a result after which tasks that do not answer are lost.
            After half of this time, each task is sent an operation; it has the other half to run
            it.
        """
        self._cluster = cluster
        self._worker_timeout = worker_timeout
        self._tasks = [task for task in cluster.tasks if task[0] in ("worker", "ps")]
        self._last_news = time.monotonic()
        self._answered: set[Task] | None = None  # Since the tasks were asked; None before.
        self._asked_at = 0.0
        self._lock = threading.Lock()

    def wait_for_all(self, timeout: float) -> None:
        """Waits until every worker and parameter server listens.

        Args:
          timeout: seconds to wait.

        Raises:
          WorkerLost: if tasks do not listen in time; names them.
        """
        late = wait_until_reachable([self._cluster.address(*t) for t in self._tasks], timeout)
        missing = [task for task in self._tasks if self._cluster.address(*task) in late]
        if missing:
            raise errors.WorkerLost(
                f"expected all workers and parameter servers to start, but "
                f"{self._names(missing)} did not within {timeout:g} s; start all of them "
                "together, or give a longer start_timeout",
                _indices(missing),
            )

    def note_news(self) -> None:
        """Records that a result has arrived, or that the first call has begun after a pause."""
        self._last_news = time.monotonic()

    def check(self) -> errors.WorkerLost | None:
        """Looks for lost tasks if no result has arrived for long. Call it repeatedly.

        Returns:
          The error to raise if the cluster cannot continue; otherwise None.
        """
        with self._lock:
            now = time.monotonic()
            if now - self._last_news < self._worker_timeout / 2:
                self._answered = None
                return None
            if self._answered is None:
                self._answered, self._asked_at = _ask(self._tasks), now
            silent = [t for t in self._tasks if t not in self._answered or not self._listens(t)]
            if not silent:
                self.note_news()
            if not silent or now - self._asked_at < self._worker_timeout / 2:
                return None
            return errors.WorkerLost(
                f"{self._names(silent)} has not answered for {self._worker_timeout:g} s: it is "
                "gone or frozen, or the network to it is down; restart it at its address, or "
                "restart the whole group from its last checkpoint",
                _indices(silent),
            )

    def blame(self, error: Exception) -> errors.WorkerLost | None:
        """Returns the loss of a parameter server if it caused the error of a step.

        Args:
          error: error of a step.

        Returns:
          The error to raise instead; None if no parameter server is lost.
        """
        text = str(error)
        # An error of the step itself may arrive through a server that waits for its results.
        if not isinstance(error, _LOST) and not _UNKNOWN_THINGS.search(text):
            return None
        servers = [task for task in self._tasks if task[0] == "ps"]
        gone = [task for task in servers if not self._listens(task)]
        if gone:
            return self._server_loss(gone, "gone")
        named = [("ps", index) for index in sorted({int(i) for i in _SERVER.findall(text)})]
        if "remote target /job:ps" in text and named:
            return self._server_loss(named, "cut off, or was restarted empty")
        return None

    def _listens(self, task: Task) -> bool:
        return _listens(self._cluster.address(*task))

    def _server_loss(self, tasks: list[Task], what: str) -> errors.WorkerLost:
        return errors.WorkerLost(
            f"{self._names(tasks)} is {what}, and the variables there are lost; end this process "
            "and restart the whole group from its last checkpoint, as "
            "`python -m rl_replicator.jobs` does",
            _indices(tasks),
        )

    def _names(self, tasks: Sequence[Task]) -> str:
        return ", ".join(f"{kind} {i} ({self._cluster.address(kind, i)})" for kind, i in tasks)


def wait_until_reachable(addresses: Iterable[str], timeout: float) -> list[str]:
    """Waits until processes listen; returns those of the addresses where none did in time."""
    deadline = time.monotonic() + timeout
    missing = list(addresses)
    while missing := [address for address in missing if not _listens(address)]:
        if time.monotonic() > deadline:
            break
        time.sleep(_POLL_SECONDS)
    return missing


def _listens(address: str) -> bool:
    try:
        ports.check_reachable(address)
    except OSError:
        return False
    return True


def _ask(tasks: Sequence[Task]) -> set[Task]:
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


def _indices(tasks: Sequence[Task]) -> tuple[int, ...]:
    return tuple(index for _, index in tasks)
