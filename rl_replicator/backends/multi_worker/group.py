"""The group of a synchronous job's processes: joins them, watches them, and exchanges messages.

All communication uses TensorFlow's own server and collectives, over the port that the cluster names
for each process.
"""

import atexit
import contextlib
import re
import threading
from collections.abc import Callable, Iterator

import tensorflow as tf

from rl_replicator import errors
from rl_replicator.backends.multi_worker import channel, collective_server, health
from rl_replicator.jobs import cluster as cluster_lib
from rl_replicator.jobs import ports

# Group keys of the channels. TensorFlow's strategy counts its own from 1.
_CALLS, _STATUSES, _CHANGING = range(1 << 20, (1 << 20) + 3)
# More than the number of collectives of any step.
_KEYS_OF_A_STEP = 1 << 16
# Collectives fail immediately when a peer is lost, before the monitor detects the loss. Wait at
# most this many seconds for it: its thread and its probes are slow if processors are scarce.
_PATIENCE = 20.0
_BREAKAGES = (
    tf.errors.AbortedError,
    tf.errors.CancelledError,
    tf.errors.DeadlineExceededError,
    tf.errors.FailedPreconditionError,
    tf.errors.InternalError,
    tf.errors.UnavailableError,
    tf.errors.UnknownError,
)
_START = "MultiWorkerReplicator"
_DIFFERENT_STEPS = "the processes take different steps"
# Finds the reason of an abort, which `_abort` encloses in these marks, in TensorFlow's messages.
_REASON = re.compile(r"<<(.*?)>>", re.DOTALL)


class Group:
    """This process's membership in a group. A process can join only one group, and only once."""

    _entered = False

    def __init__(
        self,
        cluster: cluster_lib.Cluster,
        start_timeout: float,
        peer_timeout: float,
        call_timeout: float,
    ):
        """Joins the group, and waits for all other processes.

        Args:
          cluster: the cluster; a chief, if there is one, has index 0 in the group.
          start_timeout: seconds for all processes to start.
          peer_timeout: seconds without an answer after which a process counts as lost.
          call_timeout: seconds that processes wait for each other in `exchange`.

        Raises:
          ConfigError: if TensorFlow's devices are in use, if the port is not free, if this process
            has joined a group already, or if processes have different clusters.
          WorkerLost: if processes did not start; names them.
        """
        tasks = [task for task in cluster.tasks if task[0] != "evaluator"]
        _check(cluster, tasks)
        self.size = len(tasks)
        self.index = tasks.index((cluster.task_type, cluster.task_index))
        self.names = [f"worker {i} ({cluster.address(*task)})" for i, task in enumerate(tasks)]
        self._tasks = [f"/job:{kind}/replica:0/task:{number}" for kind, number in tasks]
        self._call_timeout = call_timeout
        self._on_loss: Callable[[], None] = lambda: None
        self._num_waiting = 0
        self._lock = threading.Lock()
        self.strategy = collective_server.join(cluster, tasks)
        Group._entered = True
        device = f"{self._tasks[self.index]}/device:CPU:0"
        self._calls, self._statuses = (
            channel.MessageChannel(key, self.names, self.index, device)
            for key in (_CALLS, _STATUSES)
        )
        self._changing_sums = channel.ChangingSums(_CHANGING, self.strategy)
        self._monitor = health.Monitor(
            {i: cluster.address(*task) for i, task in enumerate(tasks) if i != self.index},
            lambda index: collective_server.probe(self._tasks[index]),
            peer_timeout,
            self._end_collectives,
        )
        self._monitor.wait_for_all(start_timeout)
        atexit.register(self._monitor.stop)
        self._compare_clusters(start_timeout)
        self._connect(start_timeout)

    def call_on_loss(self, function: Callable[[], None]) -> None:
        """Sets the function to call when a process is lost, in the monitor's thread."""
        self._on_loss = function

    @contextlib.contextmanager
    def using(self) -> Iterator[None]:
        """Context for code that waits for other processes; the loss of a process ends the wait.

        Outside of the context, a loss has no effect: at the end of a program, one process is the
        first to end, which is not an error for processes that do not wait for it.

        Raises:
          WorkerLost: if a process is lost within the context, or was lost before.
        """
        with self._lock:
            loss = self._monitor.loss()
            if loss is not None:
                raise loss
            self._num_waiting += 1
        try:
            yield
        except tf.errors.OpError as error:
            failure = self.failure(error)
            if failure is error:
                raise
            raise failure from None
        finally:
            with self._lock:
                self._num_waiting -= 1

    def exchange(self, kind: str, payload: bytes, timeout: float | None = None) -> list[bytes]:
        """Sends a message to all processes, which must all call this in the same order.

        A call takes a round trip between processes and waits for the slowest, so do not call it in
        every step; reduce in the step instead.

        Args:
          kind: name of the call, to detect processes that make different calls.
          payload: message of this process.
          timeout: seconds to wait for the others; None for `call_timeout`.

        Returns:
          The messages of all processes, in their order.

        Raises:
          ConfigError: if another process makes a call of another kind.
          StepFailed: if another process does not call it within `call_timeout`. Later calls fail,
            too.
          WorkerLost: if another process died or froze.
        """
        with self._waiting(kind, timeout or self._call_timeout):
            return [payload] if self.size == 1 else self._calls.gather(kind, payload)

    def number_collectives(self, step: int) -> None:
        """Sets the keys of the next step's collectives, which must be equal in all processes.

        TensorFlow counts the collectives of a process. If tracing a step failed in one process
        only, that process's count would differ from the others' afterwards.

        Args:
          step: number of the step that is traced next.
        """
        collective_server.number_collectives(self.strategy, step * _KEYS_OF_A_STEP)
        self._changing_sums.number(step * _KEYS_OF_A_STEP)

    def all_statuses(self, status: tf.Tensor, step: int) -> tf.Tensor:
        """Gathers the statuses of all processes inside a compiled step.

        Args:
          status: status of this process, an int32 scalar.
          step: number of the step that this process takes, which must be equal in all processes.

        Returns:
          Statuses of all processes, [size] int32.
        """
        with tf.device("/cpu:0"):
            # One key serves all calls, because they run one after the other.
            found = self._statuses.gather_tensor(tf.stack([status, step]))
            statuses, steps = tf.unstack(found, axis=1)
            same = tf.debugging.assert_equal(steps, step, _DIFFERENT_STEPS)
            with tf.control_dependencies([same]):
                return tf.identity(statuses)

    def failure(self, error: Exception) -> Exception:
        """Returns the error to raise for an error of TensorFlow, which a lost peer may have caused.

        Args:
          error: the error.

        Returns:
          An error that names the cause; the same error if the cause is unknown.
        """
        if _DIFFERENT_STEPS in str(error):
            return errors.ConfigError(
                "expected all processes to take the same steps in the same order, but they take "
                "different ones; build and call the same steps in every process"
            )
        reason = _REASON.search(str(error))
        if reason:
            return errors.StepFailed(reason.group(1))
        return self._monitor.loss(_PATIENCE if isinstance(error, _BREAKAGES) else 0.0) or error

    def step_failure(self, error: Exception) -> Exception:
        """Like `failure`, for an error of a step; also ends the step in all processes."""
        failure = self.failure(error)
        if failure is error:
            # The other processes would wait forever for messages of this one.
            self._abort(
                f"the step failed in {self.names[self.index]}: {_cause(error)}; see its output"
            )
        return failure

    @contextlib.contextmanager
    def _waiting(self, kind: str, timeout: float) -> Iterator[None]:
        """Like `using`, but aborts the collectives of all processes after `timeout` seconds."""
        reason = (
            f"{self.names[self.index]} has waited {timeout:g} s for all processes to call {kind}, "
            "and gave up; call it in every process, or give a longer call_timeout"
        )
        deadline = threading.Timer(timeout, self._abort, [reason])
        deadline.daemon = True
        deadline.start()
        try:
            with self.using():
                yield
        finally:
            deadline.cancel()

    def _compare_clusters(self, timeout: float) -> None:
        own = " ".join(self.names)
        every = self.exchange(_START, own.encode(), timeout)
        for index, other in enumerate(every):
            if other.decode() != own:
                raise errors.ConfigError(
                    f"expected the same cluster in all processes, got {own} here and "
                    f"{other.decode()} in worker {index}; give all processes the same addresses"
                )

    def _connect(self, timeout: float) -> None:
        """Runs each kind of a step's collectives once in all processes.

        An abort ends collectives that wait for data of this process, but not those that wait for
        its first participation.
        """

        @tf.function(autograph=False)
        def meet() -> None:
            context = tf.distribute.get_replica_context()
            context.all_reduce(tf.distribute.ReduceOp.SUM, tf.zeros([1]))
            self._changing_sums.total(tf.zeros([1]), tf.constant(1))

        with self._waiting(_START, timeout):
            if self.size > 1:
                self._statuses.gather(_START, b"")
            self.strategy.run(meet)

    def _end_collectives(self, loss: errors.WorkerLost) -> None:
        with self._lock:
            if not self._num_waiting:
                return
            collective_server.abort(str(loss))
        self._on_loss()

    def _abort(self, reason: str) -> None:
        collective_server.abort(f"<<{reason}>>")


def _cause(error: Exception) -> str:
    """Returns the line of a TensorFlow error that names the cause rather than the location."""
    lines = [line.strip() for line in str(error).splitlines()]
    return next((x for x in reversed(lines) if x and x[:2] != "[["), type(error).__name__)


def _check(cluster: cluster_lib.Cluster, tasks: list[tuple[str, int]]) -> None:
    if Group._entered:
        raise errors.ConfigError(
            "expected one MultiWorkerReplicator in a process, got a second; use the first one for "
            "all steps, because TensorFlow can join a group of processes only once"
        )
    if any(kind == "ps" for kind, _ in tasks):
        raise errors.ConfigError(
            "expected a cluster of workers, got one with parameter servers; use "
            "multi_worker_async, or remove them"
        )
    if (cluster.task_type, cluster.task_index) not in tasks:
        raise errors.ConfigError(
            f"expected the task of a worker, got {cluster.task_type} {cluster.task_index}, which "
            "takes no steps; use single_device there"
        )
    ports.check_may_listen(cluster.own_address, cluster.all_addresses)
