"""The interface between a backend and the steps that run on it."""

import abc
import contextlib
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import tensorflow as tf

from rl_replicator import errors
from rl_replicator.collectives import call_log
from rl_replicator.step import call_order, variable_registry

_WAITING = (
    "a checkpoint waits for a step that another thread takes on its variables; if that step waits "
    "for data, cancel() it, or save and restore in the thread that takes the steps"
)


class Host(abc.ABC):
    """The place where steps run: replicas, devices and other processes.

    Each backend has its own subclass; a `Replicator` holds an instance and passes it to its steps.

    Attributes:
      strategy: TensorFlow's strategy in which variables and steps are created.
      registry: records the variables created in `scope`.
      call_order: orders the calls of all steps.
    """

    def __init__(self, strategy: tf.distribute.Strategy):
        self.strategy = strategy
        self.registry = variable_registry.Registry()
        self.call_order = call_order.CallOrder()

    @property
    def num_replicas(self) -> int:
        """Number of replicas in all processes."""
        return self.strategy.num_replicas_in_sync

    @property
    def num_local_replicas(self) -> int:
        """Number of replicas of this process."""
        return self.num_replicas // self.num_processes

    @property
    def num_processes(self) -> int:
        """Number of processes that run the same program."""
        return 1

    @property
    def process_index(self) -> int:
        """Index of this process, from 0."""
        return 0

    @property
    def input_devices(self) -> tuple[str, ...]:
        """The GPU of each replica of this process, to which rows are copied before the steps.

        Empty if the replicas compute on the host, or if their devices are unknown.
        """
        return ()

    @contextlib.contextmanager
    def scope(self) -> Iterator[None]:
        """Context in which the variables of steps are created.

        Raises:
          ConfigError: if entered inside a step that runs on several replicas.
        """
        replica = tf.distribute.get_replica_context()
        if replica is not None and replica.strategy is self.strategy:
            raise errors.ConfigError(
                "expected scope() and replicate() outside of steps, found one inside; a step needs "
                "no scope for the variables that it creates"
            )
        with self.strategy.scope(), self.registry.recording():
            yield

    @property
    def num_traces(self) -> int:
        """Number of times that `run` traces its function."""
        return self.num_local_replicas

    @abc.abstractmethod
    def run(self, function: Callable[[int, Any], Any], parts: Sequence[Any]) -> list[Any]:
        """Traces `function(i, parts[i])` for each replica i of this process, on its device.

        Args:
          function: returns a nest of tensors or None.
          parts: an argument for each replica.

        Returns:
          The results, in the order of the replicas.
        """

    def agree_on_status(
        self, status: tf.Tensor, combine: Callable[[tf.Tensor], tf.Tensor]
    ) -> tf.Tensor:
        """Traces the exchange of input statuses between processes. Called outside of `run`.

        Args:
          status: int32 scalar, the status that this process found; see `Inputs.take`.
          combine: `Inputs.combine_statuses`.

        Returns:
          An int32 scalar, the same in all processes.
        """
        return combine(status[tf.newaxis])

    def check_trace(self, calls: call_log.CallLog) -> None:
        """Compares a traced step with those of the other processes.

        Args:
          calls: the collectives and results of this process.

        Raises:
          ConfigError: if they differ.
        """
        del calls

    def failure(self, error: Exception) -> Exception:
        """Translates TensorFlow's error in a step into the error to raise."""
        return error

    @contextlib.contextmanager
    def paused(self, variables: Collection[tf.Variable] = ()) -> Iterator[None]:
        """Context without steps in the background; waits for those that began earlier.

        Args:
          variables: if any of them was created in `scope`, other threads take no steps, either.
        """
        if self.registry.has_any(variables):
            pause = self.call_order.turn(_WAITING)
        else:
            pause = self.call_order.paused()
        with pause:
            yield

    def synchronize(self) -> None:
        """Waits until no step changes variables in the background."""
        with self.paused():
            pass


class LocalHost(Host):
    """A single replica on the devices of this process; the step runs without a strategy."""

    def __init__(self) -> None:
        super().__init__(tf.distribute.get_strategy())

    @contextlib.contextmanager
    def scope(self) -> Iterator[None]:
        with self.registry.recording():
            yield

    def run(self, function: Callable[[int, Any], Any], parts: Sequence[Any]) -> list[Any]:
        return [function(0, parts[0])]


class StrategyHost(Host):
    """Replicas that a TensorFlow strategy runs; each is traced in its own Python thread."""

    @property
    def input_devices(self) -> tuple[str, ...]:
        names: Sequence[str] = self.strategy.extended.worker_devices
        on_gpus = all(tf.DeviceSpec.from_string(name).device_type == "GPU" for name in names)
        return tuple(names) if on_gpus else ()

    def run(self, function: Callable[[int, Any], Any], parts: Sequence[Any]) -> list[Any]:
        results: list[Any] = [None] * self.num_local_replicas
        first = self.process_index * self.num_local_replicas

        def replica() -> None:
            context = tf.distribute.get_replica_context()
            index = int(tf.get_static_value(context.replica_id_in_sync_group)) - first
            results[index] = function(index, parts[index])

        self.strategy.run(replica)
        return results
