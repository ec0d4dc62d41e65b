"""A replicator over several processes that take every step together."""

import contextlib
import io
import json
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from rl_replicator import errors, replicator
from rl_replicator.backends import devices
from rl_replicator.backends.multi_worker import group
from rl_replicator.collectives import call_log
from rl_replicator.jobs import cluster as cluster_lib
from rl_replicator.optimizers import wrapping
from rl_replicator.step import compiled, host
from rl_replicator.step.inputs import contract


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
          call_timeout: seconds that processes wait for each other in `replicate`, `gather` and
            `reduce`. It must be longer than the chief takes to write a checkpoint.

        Raises:
          ConfigError: if the cluster is missing or invalid, if this process already has a
            MultiWorkerReplicator, if TensorFlow's devices are already in use, or if a timeout is
            not positive.
          WorkerLost: if workers did not start; names them.
        """
        errors.check_seconds(
            start_timeout=start_timeout, peer_timeout=peer_timeout, call_timeout=call_timeout
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

    def _make_inputs(self, *arguments: Any) -> contract.Inputs:
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
            return super().agree_on_status(status, combine)
        return combine(self._group.all_statuses(status, self._num_steps))

    def check_trace(self, calls: call_log.CallLog) -> None:
        """Compares the collectives and the results of all processes.

        Args:
          calls: collectives and results of this process.

        Raises:
          ConfigError: in all processes, if they differ; names the first difference.
          StepFailed: if a process builds no step within `call_timeout`.
          WorkerLost: if a process died or froze.
        """
        mine = json.dumps(calls.calls()).encode()
        every = [json.loads(payload) for payload in self._group.exchange("replicate", mine)]
        names = [f"a replica of {name}" for name in self._group.names]
        for name, theirs in zip(names, every, strict=True):
            call_log.compare(names[0], every[0], name, theirs)

    def together(self) -> contextlib.AbstractContextManager[None]:
        """Returns a context for waiting for other processes; see `Group.using`."""
        return self._group.using()

    def failure(self, error: Exception) -> Exception:
        return self._group.step_failure(error)


class _GroupStep(compiled.ReplicatedStep):
    """A step that raises `WorkerLost` if a process is lost."""

    _host: _GroupHost

    def _call(self) -> Any:
        with self._host.together():
            return super()._call()


def _local_to_replica(next_creator: Callable[..., tf.Variable], **kwargs: Any) -> tf.Variable:
    """Makes variables as Sonnet's Replicator does: a replica reads and assigns its own copy."""
    if kwargs["synchronization"] == tf.VariableSynchronization.AUTO:
        kwargs["synchronization"] = tf.VariableSynchronization.ON_READ
        if kwargs["aggregation"] == tf.VariableAggregation.NONE:
            kwargs["aggregation"] = tf.VariableAggregation.ONLY_FIRST_REPLICA
        if kwargs["trainable"] is None:  # TensorFlow makes ON_READ variables untrainable.
            kwargs["trainable"] = True
    return next_creator(**kwargs)


def _encode(leaves: Sequence[np.ndarray]) -> bytes:
    """Encodes arrays as a line of JSON, with dtypes, shapes and lengths of strings, and the values.

    TensorFlow never frees some of the memory of its operations in a group, so none is used here.
    """
    texts = [_texts(x) for x in leaves]
    header = [
        (tf.as_dtype(x.dtype).name, x.shape, [len(text) for text in each])
        for x, each in zip(leaves, texts, strict=True)
    ]
    body = [b"".join(each) if each else x.tobytes() for x, each in zip(leaves, texts, strict=True)]
    return json.dumps(header).encode() + b"\n" + b"".join(body)


def _texts(leaf: np.ndarray) -> list[bytes]:
    return [tf.compat.as_bytes(x) for x in leaf.flat] if leaf.dtype.kind in "OSU" else []


def _decode(payload: bytes) -> list[np.ndarray]:
    header, _, body = payload.partition(b"\n")
    data = io.BytesIO(body)
    return [_read(data, *entry) for entry in json.loads(header)]


def _read(data: io.BytesIO, name: str, shape: Sequence[int], lengths: Sequence[int]) -> np.ndarray:
    dtype = np.dtype(tf.as_dtype(name).as_numpy_dtype)
    if dtype.kind == "O":
        leaf = np.empty(len(lengths), dtype)
        leaf[:] = [data.read(length) for length in lengths]
        return leaf.reshape(shape)
    return np.frombuffer(data.read(math.prod(shape) * dtype.itemsize), dtype).reshape(shape)


def _describe(leaves: Sequence[np.ndarray]) -> str:
    return " ".join(f"{leaf.dtype}{list(leaf.shape)}" for leaf in leaves)
