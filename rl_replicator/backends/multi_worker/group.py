"""The processes of a synchronous job: joined, watched, and able to exchange messages.

Everything travels through TensorFlow's own server and collectives, over the one port that the
cluster names for each process.
"""

import atexit
import contextlib
import dataclasses
import re
import threading
import time
from collections.abc import Callable, Iterator

import tensorflow as tf

from rl_replicator import errors
from rl_replicator.backends.multi_worker import channel, collective_server, health
from rl_replicator.jobs import cluster as cluster_lib
from rl_replicator.jobs import ports

# TensorFlow's strategy numbers its groups of collectives from 1.
_CALLS, _STEPS, _STATUSES = range(1 << 20, (1 << 20) + 3)
# More than a step has collectives.
_KEYS_OF_A_STEP = 1 << 16
# Collectives break at once when a peer dies; which peer it was is known a moment later.
_PATIENCE = 3.0
_BREAKAGES = (
    tf.errors.AbortedError,
    tf.errors.CancelledError,
    tf.errors.DeadlineExceededError,
    tf.errors.FailedPreconditionError,
    tf.errors.InternalError,
    tf.errors.UnavailableError,
    tf.errors.UnknownError,
)
_DIFFERENT_STEPS = "the processes take different steps"
# What a process tells the others when it aborts, so that it can be told from TensorFlow's words.
_TOLD = re.compile(r"<<(.*?)>>", re.DOTALL)


@dataclasses.dataclass(eq=False)
class _Wait:
    """A call that waits for the other processes.

    Attributes:
      kind: of the call.
      timeout: seconds that it may take.
      deadline: when they have passed, in seconds of `time.monotonic`.
      is_over: whether the collectives were aborted because they have passed.
    """

    kind: str
    timeout: float
    deadline: float
    is_over: bool = False


class Group:
    """This process's membership in a job. A process can enter one, once."""

    _entered = False

    def __init__(
        self,
        cluster: cluster_lib.Cluster,
        start_timeout: float,
        peer_timeout: float,
        call_timeout: float,
    ):
        """Waits for all other processes.

        Args:
          cluster: a chief, if there is one, comes before the workers.
          start_timeout: seconds for all processes to start.
          peer_timeout: seconds after which a process that does not answer counts as lost.
          call_timeout: seconds for all processes to come to an `exchange`.

        Raises:
          ConfigError: TensorFlow's devices are in use, the port is not free, a second entry, or
            the processes were given different clusters.
          WorkerLost: names the processes that did not start.
        """
        tasks = [task for task in cluster.tasks if task[0] != "evaluator"]
        _check(cluster, tasks)
        self.size = len(tasks)
        self.index = tasks.index((cluster.task_type, cluster.task_index))
        self.names = [f"worker {i} ({cluster.address(*task)})" for i, task in enumerate(tasks)]
        self._tasks = [f"/job:{kind}/replica:0/task:{number}" for kind, number in tasks]
        self._call_timeout = call_timeout
        self._on_loss: list[Callable[[], None]] = []
        self._num_waiting = 0
        self._waits: set[_Wait] = set()
        self._lock = threading.Lock()
        self.strategy = collective_server.join(cluster, tasks)
        Group._entered = True
        device = f"{self._tasks[self.index]}/device:CPU:0"
        self._calls, self._steps, self._statuses = (
            channel.Channel(key, self.names, self.index, device)
            for key in (_CALLS, _STEPS, _STATUSES)
        )
        self._monitor = health.Monitor(
            {i: cluster.address(*task) for i, task in enumerate(tasks) if i != self.index},
            lambda index: collective_server.probe(self._tasks[index]),
            peer_timeout,
            self._end_collectives,
            self._check_deadlines,
        )
        self._monitor.wait_for_all(start_timeout)
        atexit.register(self._monitor.stop)
        self._compare_clusters(start_timeout)
        self._connect(start_timeout)

    def call_on_loss(self, function: Callable[[], None]) -> None:
        """Registers a function to be called, in some thread, when a process is lost."""
        self._on_loss.append(function)

    @contextlib.contextmanager
    def using(self) -> Iterator[None]:
        """Context for whatever waits for other processes: the loss of one ends it.

        Outside of it a loss changes nothing: at the end of a program some process is the first to
        leave, and those that do not wait for it any more should not hear of it.

        Raises:
          WorkerLost: a process is lost, or was before.
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

    def exchange(self, kind: str, payload: bytes) -> list[bytes]:
        """Gives every process the payload of each. All call it alike, in the same order.

        A call takes a round trip between processes and waits for the slowest, so it has no place
        in a loop over steps: reduce in the step instead.

        Args:
          kind: describes the call, to find processes that make different ones.
          payload: any bytes.

        Returns:
          The payloads, in the order of the processes.

        Raises:
          ConfigError: another process makes a call of another kind.
          StepFailed: another process does not call it within `call_timeout`. No later call works.
          WorkerLost: another process is gone or frozen.
        """
        return self._exchange(self._calls, kind, payload, self._call_timeout)

    def exchange_in_step(self, kind: str, payload: bytes) -> list[bytes]:
        """Like `exchange`, for the thread that takes steps, which may be another."""
        return self._exchange(self._steps, kind, payload, self._call_timeout)

    def number_collectives(self, step: int) -> None:
        """Gives the collectives of the step that is traced next the same keys in all processes.

        TensorFlow numbers the collectives of a process one by one. A step that failed to trace in
        one process only would put that process out of line with the others for good.
        """
        collective_server.number_collectives(self.strategy, step * _KEYS_OF_A_STEP)

    def all_statuses(self, status: tf.Tensor, step: int) -> tf.Tensor:
        """Gathers the statuses of all processes inside a compiled step.

        Args:
          status: int32 scalar, of this process.
          step: number of the step that this process takes; the others must take the same.

        Returns:
          [size] int32.
        """
        with tf.device("/cpu:0"):
            # One key for all calls: none begins before the one before it is over.
            found = self._statuses.gather_tensor(tf.stack([status, step]))
            statuses, steps = tf.unstack(found, axis=1)
            same = tf.debugging.assert_equal(steps, step, _DIFFERENT_STEPS)
            with tf.control_dependencies([same]):
                return tf.identity(statuses)

    def failure(self, error: Exception) -> Exception:
        """The error to raise for one of TensorFlow's, which may come from the loss of a peer."""
        if _DIFFERENT_STEPS in str(error):
            return errors.ConfigError(
                "expected all processes to take the same steps in the same order, but they take "
                "different ones; build and call the same steps in every process"
            )
        told = _TOLD.search(str(error))
        if told:
            return errors.StepFailed(told.group(1))
        return self._monitor.loss(_PATIENCE if isinstance(error, _BREAKAGES) else 0.0) or error

    def step_failure(self, error: Exception) -> Exception:
        """Like `failure`, for an error of a step, which ends the step in all processes."""
        failure = self.failure(error)
        if failure is error:
            # The others wait for what this process will not send any more.
            self._abort(
                f"the step failed in {self.names[self.index]}: {_cause(error)}; see its output"
            )
        return failure

    def _exchange(
        self, messages: channel.Channel, kind: str, payload: bytes, timeout: float
    ) -> list[bytes]:
        with self._waiting(kind, timeout):
            return [payload] if self.size == 1 else messages.gather(kind, payload)

    @contextlib.contextmanager
    def _waiting(self, kind: str, timeout: float) -> Iterator[None]:
        """Like `using`, with a deadline: the monitor's thread ends what misses it."""
        wait = _Wait(kind, timeout, time.monotonic() + timeout)
        with self.using():
            with self._lock:
                self._waits.add(wait)
            try:
                yield
            except tf.errors.OpError:
                if not wait.is_over:
                    raise
                raise self._monitor.loss() or errors.StepFailed(
                    f"expected all {self.size} processes to call {kind} within {timeout:g} s, but "
                    "not all did; call it in every process alike, or give a longer call_timeout"
                ) from None
            finally:
                with self._lock:
                    self._waits.discard(wait)

    def _check_deadlines(self) -> None:
        """Called by the monitor every now and then."""
        now = time.monotonic()
        with self._lock:
            late = [wait for wait in self._waits if now > wait.deadline]
            for wait in late:
                wait.is_over = True
        for wait in late:
            self._abort(
                f"{self.names[self.index]} has waited {wait.timeout:g} s for all processes to call "
                f"{wait.kind}, and gave up; call it in every process alike"
            )

    def _compare_clusters(self, timeout: float) -> None:
        mine = " ".join(self.names)
        every = self._exchange(self._calls, "MultiWorkerReplicator", mine.encode(), timeout)
        for index, theirs in enumerate(every):
            if theirs.decode() != mine:
                raise errors.ConfigError(
                    f"expected the same cluster in all processes, got {mine} here and "
                    f"{theirs.decode()} in worker {index}; give all the same list of addresses"
                )

    def _connect(self, timeout: float) -> None:
        """Lets all processes meet once in the collectives of steps.

        An abort reaches those that wait for data of this process, not those that wait to meet it.
        """
        for messages in (self._statuses, self._steps):
            self._exchange(messages, "MultiWorkerReplicator", b"", timeout)

        @tf.function(autograph=False)
        def meet():
            context = tf.distribute.get_replica_context()
            context.all_reduce(tf.distribute.ReduceOp.SUM, tf.zeros([1]))

        with self._waiting("MultiWorkerReplicator", timeout):
            self.strategy.run(meet)

    def _end_collectives(self, loss: errors.WorkerLost) -> None:
        with self._lock:
            if not self._num_waiting:
                return
            collective_server.abort(str(loss))
        for function in self._on_loss:
            function()

    def _abort(self, reason: str) -> None:
        collective_server.abort(f"<<{reason}>>")


def _cause(error: Exception) -> str:
    """The line of an error of TensorFlow's that says what was wrong, and not where."""
    lines = [line.strip() for line in str(error).splitlines()]
    return next((x for x in reversed(lines) if x and x[:2] != "[["), type(error).__name__)


def _check(cluster: cluster_lib.Cluster, tasks: list[tuple[str, int]]) -> None:
    if Group._entered:
        raise errors.ConfigError(
            "expected one MultiWorkerReplicator in a process, got a second; use the first for all "
            "steps, TensorFlow can join a group of processes only once"
        )
    if any(kind == "ps" for kind, _ in tasks):
        raise errors.ConfigError(
            "expected a cluster of workers, got one with parameter servers; use "
            "multi_worker_async, or leave them out"
        )
    if (cluster.task_type, cluster.task_index) not in tasks:
        raise errors.ConfigError(
            f"expected the task of a worker, got {cluster.task_type} {cluster.task_index}, which "
            "takes no part in the steps; use single_device there"
        )
    ports.check_is_free(cluster.own_address)
