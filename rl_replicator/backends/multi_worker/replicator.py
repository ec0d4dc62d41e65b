"""A replicator over several processes that take every step together."""

import contextlib
import json
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from rl_replicator import errors, replicator
from rl_replicator.backends import devices
from rl_replicator.backends.multi_worker import group
from rl_replicator.collectives import call_log
from rl_replicator.graphs import assignments
from rl_replicator.jobs import cluster as cluster_lib
from rl_replicator.optimizers import wrapping
from rl_replicator.step import compiled, host, replica_check, results
from rl_replicator.step import inputs as inputs_lib

_NUM_STATUSES = 4


class MultiWorkerReplicator(replicator.Replicator):
    """Replicas in several processes, on one or several machines: between-graph and synchronous.

    Every process runs the same program and makes the same calls in the same order: all create the
    same variables, build the same steps, take them together, and call `gather` and `reduce`
    together. A process has one replica on its CPU, or one on each of its GPUs.

    When a process dies or freezes, the calls of all others raise `WorkerLost`. The others must then
    end, and the whole group must be restarted, as rl_replicator.jobs does.
    """

    def __init__(
        self,
        cluster: cluster_lib.Cluster | None = None,
        *,
        start_timeout: float = 120.0,
        peer_timeout: float = 12.0,
        call_timeout: float = 300.0,
    ):
        """Joins the group, and waits for the other processes.

        Args:
          cluster: the cluster; None to read it from TF_CONFIG.
          start_timeout: seconds for all processes to start.
          peer_timeout: seconds without an answer after which a process counts as frozen. A dead
            process is detected within a second.
          call_timeout: seconds that processes wait for each other in `replicate`, `gather`,
            `reduce` and the first step. It must be longer than the chief takes to write a
            checkpoint.

        Raises:
          ConfigError: if the cluster is missing or invalid, if this process already has a
            MultiWorkerReplicator, if TensorFlow's devices are already in use, or if a timeout is
            not positive.
          WorkerLost: if workers did not start; names them.
        """
        for name, seconds in (
            ("start_timeout", start_timeout),
            ("peer_timeout", peer_timeout),
            ("call_timeout", call_timeout),
        ):
            if not seconds > 0:
                raise errors.ConfigError(
                    f"expected {name} above 0 seconds, got {seconds}; omit it for its default"
                )
        if cluster is None:
            cluster = cluster_lib.Cluster.from_environment()
        devices.grow_gpu_memory()
        # Sonnet accepts only its own strategies. `wrap_optimizer` and `scope` do what it requires.
        wrapping.support(tf.distribute.MultiWorkerMirroredStrategy)
        self._group = group.Group(cluster, start_timeout, peer_timeout, call_timeout)
        self._workers = _GroupHost(self._group)
        super().__init__(self._workers)
        self._group.call_on_loss(self._wake_waiting_steps)

    @classmethod
    def from_text(cls, argument: str) -> "MultiWorkerReplicator":
        if argument:
            raise errors.ConfigError(
                f"expected multi_worker without an argument, got {argument!r}; the cluster comes "
                "from TF_CONFIG"
            )
        return cls()

    def _make_inputs(self, *arguments: Any) -> inputs_lib.Inputs:
        inputs = super()._make_inputs(*arguments)
        if self.num_processes > 1:
            inputs.keep_unused_rows()
        return inputs

    def _make_step(self, *arguments: Any) -> "_GroupStep":
        self._workers.begin_step()
        return _GroupStep(self._workers, *arguments)

    def gather(self, outputs: Any) -> Any:
        """Stacks outputs over the replicas of all processes, which must all call it.

        Args:
          outputs: see `Replicator.gather`.

        Returns:
          See `Replicator.gather`.

        Raises:
          ConfigError: if another process gathers a different nest or different shapes.
          StepFailed: if another process does not call it within `call_timeout`.
          WorkerLost: if another process died or froze.
        """
        local = super().gather(outputs)
        leaves = [leaf for leaf in tf.nest.flatten(local) if leaf is not None]
        payloads = self._group.exchange("gather or reduce", _encode(leaves))
        every = [_decode(payload) for payload in payloads]
        for index, theirs in enumerate(every):
            if _describe(theirs) != _describe(leaves):
                raise errors.ConfigError(
                    f"expected all processes to gather the same nest and shapes, got "
                    f"{_describe(leaves)} in {self._group.names[self.process_index]} and "
                    f"{_describe(theirs)} in {self._group.names[index]}; gather the same outputs"
                )
        joined = iter([np.concatenate(parts) for parts in zip(*every, strict=True)])
        return tf.nest.map_structure(lambda leaf: None if leaf is None else next(joined), local)

    def _wake_waiting_steps(self) -> None:
        # A step that waits for data would not notice that the other processes no longer take it.
        with self._inputs_lock:
            waiting = list(self._inputs)
        for inputs in waiting:
            inputs.cancel()


class _GroupHost(host.StrategyHost):
    """The processes of a group."""

    def __init__(self, workers: group.Group):
        super().__init__(workers.strategy)
        self._group = workers
        self._num_steps = 0

    @property
    def num_processes(self) -> int:
        return self._group.size

    @property
    def process_index(self) -> int:
        return self._group.index

    @contextlib.contextmanager
    def scope(self) -> Iterator[None]:
        """See `Host.scope`. Variables get the initial values of the first process."""
        with (
            self._group.using(),
            super().scope(),
            tf.variable_creator_scope(_local_to_replica),
        ):
            yield

    def begin_step(self) -> None:
        """Prepares for the next step to be traced."""
        self._num_steps += 1
        self._group.number_collectives(self._num_steps)

    def agree_on_status(
        self, status: tf.Tensor, combine: Callable[[tf.Tensor], tf.Tensor]
    ) -> tf.Tensor:
        if self.num_processes == 1:
            return status
        statuses = self._group.all_statuses(status, self._num_steps)
        return combine(tf.reduce_sum(tf.one_hot(statuses, _NUM_STATUSES, dtype=tf.int32), axis=0))

    def check_trace(self, calls: call_log.CallLog, places: Sequence[str]) -> None:
        """Compares the collectives and the results of all processes.

        Args:
          calls: collectives of this process.
          places: `results.places` of this process.

        Raises:
          ConfigError: in all processes, if they differ; names the first difference.
          StepFailed: if a process builds no step within `call_timeout`.
          WorkerLost: if a process died or froze.
        """
        mine = json.dumps([calls.calls(), places]).encode()
        every = [json.loads(payload) for payload in self._group.exchange("replicate", mine)]
        names = [f"a replica of {name}" for name in self._group.names]
        for name, theirs in zip(names, every, strict=True):
            call_log.compare(names[0], every[0][0], name, theirs[0])
            results.compare(names[0], every[0][1], name, theirs[1])

    def together(self) -> contextlib.AbstractContextManager[None]:
        """Returns a context for waiting for other processes; see `Group.using`."""
        return self._group.using()

    def check_equal(self, variables: Sequence[tf.Variable]) -> None:
        """Checks that variables are equal in all processes. Only for the thread that takes steps.

        Args:
          variables: variables of this process.

        Raises:
          ConfigError: in all processes, if they differ; names the first one that differs.
        """
        mine = [(v.name, v.shape.as_list(), _checksum(v)) for v in variables]
        every = [
            json.loads(payload)
            for payload in self._group.exchange_in_step("the first step", json.dumps(mine).encode())
        ]
        longest = max(every, key=len)
        for place, (name, shape, _) in enumerate(longest):
            for index, theirs in enumerate(every):
                if theirs[place : place + 1] != every[0][place : place + 1]:
                    raise errors.ConfigError(
                        "expected equal variables in all processes before the first step, but "
                        f"{name!r} {tuple(shape)} differs between {self._group.names[0]} and "
                        f"{self._group.names[index]}; restore the same checkpoint and assign the "
                        "same values in every process"
                    )

    def failure(self, error: Exception) -> Exception:
        return self._group.step_failure(error)


class _GroupStep(compiled.ReplicatedStep):
    """A step that checks variables before its first call; raises `WorkerLost` if a process is."""

    _host: _GroupHost
    _is_checked = False

    def _call(self) -> Any:
        with self._host.together():
            if not self._is_checked:
                self._host.check_equal(self._shared())
                self._is_checked = True
            return super()._call()

    def _shared(self) -> list[tf.Variable]:
        """Returns this process's copies of the variables that are equal in all processes."""
        # Excludes variables of which each replica has its own, such as states of Keras' metrics.
        own = {
            id(copy)
            for variable in self._host.registry.with_copies(self._variables)
            if replica_check.is_declared(variable)
            for copy in assignments.copies(variable)
        }
        return [copy for copy in self._variables if id(copy) not in own]


def _local_to_replica(next_creator: Callable[..., tf.Variable], **kwargs: Any) -> tf.Variable:
    """Makes variables as Sonnet's Replicator does: a replica reads and assigns its own copy."""
    if kwargs["synchronization"] == tf.VariableSynchronization.AUTO:
        kwargs["synchronization"] = tf.VariableSynchronization.ON_READ
        if kwargs["aggregation"] == tf.VariableAggregation.NONE:
            kwargs["aggregation"] = tf.VariableAggregation.ONLY_FIRST_REPLICA
        if kwargs["trainable"] is None:  # TensorFlow makes ON_READ variables untrainable.
            kwargs["trainable"] = True
    return next_creator(**kwargs)


def _checksum(variable: tf.Variable) -> int:
    # Serialised first, because the NumPy array of a string variable holds pointers.
    return zlib.crc32(tf.io.serialize_tensor(variable.read_value()).numpy())


def _encode(leaves: Sequence[np.ndarray]) -> bytes:
    """Encodes arrays of any dtype of TensorFlow as bytes."""
    with tf.device("/cpu:0"):
        tensors = [tf.constant(leaf) for leaf in leaves]
        types = [tensor.dtype.as_datatype_enum for tensor in tensors]
        each = [tf.io.serialize_tensor(tensor).numpy() for tensor in tensors]
        body = tf.io.serialize_tensor(tf.constant(each, tf.string, [len(each)])).numpy()
    return json.dumps(types).encode() + b"\n" + body


def _decode(payload: bytes) -> list[np.ndarray]:
    types, _, body = payload.partition(b"\n")
    with tf.device("/cpu:0"):
        each = tf.io.parse_tensor(body, tf.string).numpy()
        return [
            tf.io.parse_tensor(one, tf.as_dtype(type_)).numpy()
            for one, type_ in zip(each, json.loads(types), strict=True)
        ]


def _describe(leaves: Sequence[np.ndarray]) -> str:
    return " ".join(f"{leaf.dtype}{list(leaf.shape)}" for leaf in leaves)
