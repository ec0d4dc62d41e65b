"""The processes of a synchronous job: joined, watched, and able to tell each other things.

Everything travels through TensorFlow's own server and collectives, over the one port that the
cluster names for each process.
"""

import atexit
import contextlib
import re
import threading
import zlib
from collections.abc import Callable, Iterator

import numpy as np
import tensorflow as tf

from rl_replicator import errors
from rl_replicator.backends.multi_worker import collective_server, health
from rl_replicator.jobs import cluster as cluster_lib
from rl_replicator.jobs import ports

# The strategy numbers its groups of collectives from 1.
_CALLS, _STEPS, _STATUSES = range(1 << 20, (1 << 20) + 3)
# More than a step has collectives.
_KEYS_OF_A_STEP = 1 << 16
# Collectives break at once when a peer dies; who it was is known a moment later.
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
_FAILED = "the step failed in "


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
        """Waits for all the others.

        Args:
          cluster: a chief, if there is one, comes before the workers.
          start_timeout: seconds for all processes to start.
          peer_timeout: seconds after which a process that does not answer is given up.
          call_timeout: seconds for all to come to an `exchange`.

        Raises:
          ConfigError: TensorFlow's devices are in use, the port is not free, a second entry, or
            the processes were given different clusters.
          WorkerLost: names those that did not start.
        """
        tasks = [task for task in cluster.tasks if task[0] != "evaluator"]
        _check(cluster, tasks)
        self.size = len(tasks)
        self.index = tasks.index((cluster.task_type, cluster.task_index))
        self.names = [f"worker {i} ({cluster.address(*task)})" for i, task in enumerate(tasks)]
        self._tasks = [f"/job:{kind}/replica:0/task:{number}" for kind, number in tasks]
        self._device = f"{self._tasks[self.index]}/device:CPU:0"
        self._call_timeout = call_timeout
        self._numbers = {_CALLS: 0, _STEPS: 0, _STATUSES: 0}
        self._on_loss: list[Callable[[], None]] = []
        self._busy = 0
        self._lock = threading.Lock()
        self.strategy = collective_server.join(cluster, tasks)
        Group._entered = True
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
        """Has `function` called, in some thread, when a process is lost."""
        self._on_loss.append(function)

    @contextlib.contextmanager
    def using(self) -> Iterator[None]:
        """Around everything that waits for other processes: a loss ends it.

        Outside of it a loss changes nothing: at the end of a program some process is the first to
        leave, and those that do not wait for it any more should not hear of it.

        Raises:
          WorkerLost: one is lost, or was before.
        """
        with self._lock:
            loss = self._monitor.loss()
            if loss is not None:
                raise loss
            self._busy += 1
        try:
            yield
        except tf.errors.OpError as error:
            failure = self.failure(error)
            if failure is error:
                raise
            raise failure from None
        finally:
            with self._lock:
                self._busy -= 1

    def exchange(self, kind: str, payload: bytes) -> list[bytes]:
        """Gives every process the payload of each. All call it alike, in the same order.

        Args:
          kind: of the call, for those that do not.
          payload: any bytes.

        Raises:
          ConfigError: another process makes a call of another kind.
          StepFailed: another makes none within `call_timeout`.
          WorkerLost: another is gone or frozen.
        """
        return self._exchange(_CALLS, kind, payload, self._call_timeout)

    def exchange_in_step(self, kind: str, payload: bytes) -> list[bytes]:
        """The same for the thread that takes steps, which may be another than the caller's."""
        return self._exchange(_STEPS, kind, payload, self._call_timeout)

    def number_collectives(self, step: int) -> None:
        """Before a step is traced: lets its collectives have the same keys in all processes.

        TensorFlow numbers a process's collectives one by one, so that a step that failed to trace
        in one process only would have put it out of line with the others for ever.
        """
        collective_server.number_collectives(self.strategy, step * _KEYS_OF_A_STEP)

    def all_statuses(self, status: tf.Tensor, step: int) -> tf.Tensor:
        """Traced: an int32 scalar of every process, [size].

        Args:
          status: of this process.
          step: which of its steps this process takes; the others must take the same.
        """
        with tf.device(self._device):
            # One key for all calls: none begins before the one before it is over.
            found = self._gather(tf.stack([status, step]), _STATUSES, 2, timeout=0.0)
            statuses, steps = tf.unstack(tf.reshape(found, [self.size, 2]), axis=1)
            same = tf.debugging.assert_equal(steps, step, _DIFFERENT_STEPS)
            with tf.control_dependencies([same]):
                return tf.identity(statuses)

    def failure(self, error: Exception) -> Exception:
        """What to raise for an error of TensorFlow's, once it is clear whether a peer was lost."""
        if _DIFFERENT_STEPS in str(error):
            return errors.ConfigError(
                "expected all processes to take the same steps in the same order, but they take "
                "different ones; build and call the same steps in every process"
            )
        elsewhere = re.search(rf"{_FAILED}worker.*?; see there", str(error))
        if elsewhere:
            return errors.StepFailed(elsewhere.group())
        return self._monitor.loss(_PATIENCE if isinstance(error, _BREAKAGES) else 0.0) or error

    def step_failure(self, error: Exception) -> Exception:
        """The same for an error that came out of a step; lets the others' steps fail with it."""
        failure = self.failure(error)
        if failure is error:
            # They wait for what this process will not send any more.
            collective_server.abort(
                f"{_FAILED}{self.names[self.index]}: {_cause(error)}; see there"
            )
        return failure

    def _exchange(self, group: int, kind: str, payload: bytes, timeout: float) -> list[bytes]:
        header = np.array([zlib.crc32(kind.encode()) & 0x7FFFFFFF, len(payload)], np.int32)
        with self.using():
            try:
                headers = self._gathered(header, group, timeout).reshape(self.size, 2)
                self._check_kinds(kind, headers[:, 0])
                width = max(1, -(-int(headers[:, 1].max()) // 4))  # In numbers of four bytes.
                padded = np.frombuffer(payload.ljust(4 * width, b"\0"), np.int32)
                rows = self._gathered(padded, group, timeout).reshape(self.size, width)
            except tf.errors.DeadlineExceededError:
                raise self._monitor.loss() or errors.StepFailed(
                    f"expected all {self.size} processes to call {kind} within {timeout:g} s, but "
                    "not all did; call it in every process alike, or give a longer call_timeout"
                ) from None
        return [row.tobytes()[:size] for row, (_, size) in zip(rows, headers, strict=True)]

    def _check_kinds(self, kind: str, codes: np.ndarray) -> None:
        for index in np.flatnonzero(codes != codes[self.index]):
            raise errors.ConfigError(
                "expected all processes to make the same calls in the same order, but "
                f"{self.names[self.index]} calls {kind} and {self.names[index]} something else; "
                "make the same calls in every process"
            )

    def _gathered(self, values: np.ndarray, group: int, timeout: float) -> np.ndarray:
        self._numbers[group] += 1
        with tf.init_scope(), tf.device(self._device):
            # A new tensor each time: TensorFlow caches small constants, and with them their device.
            tensor = tf.identity(tf.constant(values))
            return self._gather(tensor, group, self._numbers[group], timeout).numpy()

    def _gather(self, tensor: tf.Tensor, group: int, key: int, timeout: float) -> tf.Tensor:
        return tf.raw_ops.CollectiveGatherV2(
            input=tensor,
            group_size=self.size,
            group_key=group,
            instance_key=key,
            ordering_token=[],
            communication_hint="ring",
            timeout_seconds=timeout,
        )

    def _compare_clusters(self, timeout: float) -> None:
        mine = " ".join(self.names)
        every = self._exchange(_CALLS, "MultiWorkerReplicator", mine.encode(), timeout)
        for index, theirs in enumerate(every):
            if theirs.decode() != mine:
                raise errors.ConfigError(
                    f"expected the same cluster in all processes, got {mine} here and "
                    f"{theirs.decode()} in worker {index}; give all the same list of addresses"
                )

    def _connect(self, timeout: float) -> None:
        """Has all processes meet once in the collectives of steps.

        An abort reaches those that wait for data of this process, not those that wait to meet it.
        """
        with self.using():
            for group in (_STATUSES, _STEPS):
                self._gathered(np.zeros([2], np.int32), group, timeout)

            @tf.function(autograph=False)
            def meet():
                context = tf.distribute.get_replica_context()
                context.all_reduce(tf.distribute.ReduceOp.SUM, tf.zeros([1]))

            self.strategy.run(meet)

    def _end_collectives(self, loss: errors.WorkerLost) -> None:
        with self._lock:
            if not self._busy:
                return
            collective_server.abort(str(loss))
        for function in self._on_loss:
            function()


def _cause(error: Exception) -> str:
    """The line that says what was wrong, out of those that say where."""
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
