"""Replicas on the cores of TPUs, which share one trace."""

import functools
import os
import threading
from collections.abc import Callable, Sequence
from typing import Any

import grpc
import sonnet as snt
import tensorflow as tf

from rl_replicator import errors, replicator
from rl_replicator.step import compiled, host

_ADVICE = (
    "run on a TPU VM, name a TPU as in tpu:NAME or tpu:grpc://HOST:8470, or use another replicator"
)


class TpuReplicator(replicator.Replicator):
    """One replica on each core of a TPU system, on Sonnet's TpuReplicator.

    NOT RUN ON TPU HARDWARE: the tests trace steps for a fake TPU system, and compile others with
    the same compiler, XLA, on a CPU.

    All replicas share one trace of `step_fn`, which XLA compiles: `collectives.replica_id()` is a
    tensor, all shapes must be static, and the step can use neither strings nor Python callbacks.
    The loop over `steps_per_call` runs on the host, which feeds every core. A callable input is
    compiled into the step, so different inputs for each replica need datasets.
    """

    def __init__(
        self,
        address: str = "",
        deadline: float = 60.0,
        resolver: tf.distribute.cluster_resolver.ClusterResolver | None = None,
    ):
        """Connects to the TPU system and initialises it.

        Args:
          address: name of a Cloud TPU, or "grpc://HOST:PORT"; "" for the TPU named by the
            environment variable TPU_NAME or, if that is not set, the TPU of this machine.
          deadline: seconds that connecting may take.
          resolver: resolver of a TPU system that is already initialised; replaces the address.

        Raises:
          ConfigError: if there is no TPU, or it does not answer in time.
        """
        if resolver is None:
            resolver = _connect(address or os.environ.get("TPU_NAME") or "local", deadline)
        self._resolver = resolver
        super().__init__(TpuHost(snt.distribute.TpuReplicator(resolver)))

    @classmethod
    def from_text(cls, argument: str) -> "TpuReplicator":
        """Connects to the TPU at an address; see `__init__`."""
        return cls(argument)

    @functools.cached_property
    def strategy(self) -> tf.distribute.Strategy:
        return tf.distribute.TPUStrategy(self._resolver)

    def _make_step(self, *arguments: Any) -> compiled.ReplicatedStep:
        step_fn, inputs, steps_per_call, _ = arguments  # Replicas share one trace: nothing differs.
        return compiled.ReplicatedStep(self._host, step_fn, inputs, steps_per_call)


class TpuHost(host.Host):
    """The cores of a TPU system, which share one trace of the step."""

    num_traces = 1

    def run(self, function: Callable[[int, Any], Any], parts: Sequence[Any]) -> list[Any]:
        """Traces `function` once, as for the first replica; see `Host.run`."""
        first = parts[0]
        elements = [
            () if callable(x) else tuple(tf.nest.flatten(x, expand_composites=True)) for x in parts
        ]
        if callable(first) and any(other is not first for other in parts):
            raise errors.ConfigError(
                "expected one callable input for all replicas of a TPU, because they share one "
                "trace, got one for each; return datasets from input_fn, or remove per_replica"
            )

        def replica(*tensors: tf.Tensor) -> Any:
            own = first
            if tensors:
                own = tf.nest.pack_sequence_as(first, tensors, expand_composites=True)
            return function(0, own)

        results = self.strategy.run(
            replica,
            args=self.strategy.experimental_distribute_values_from_function(
                lambda context: elements[context.replica_id_in_sync_group]
            )
            if elements[0]
            else (),
        )
        leaves = [
            self.strategy.experimental_local_results(leaf) for leaf in tf.nest.flatten(results)
        ]
        return [
            tf.nest.pack_sequence_as(
                results, [None if leaf[0] is None else leaf[i] for leaf in leaves]
            )
            for i in range(self.num_local_replicas)
        ]


def _connect(address: str, deadline: float) -> tf.distribute.cluster_resolver.ClusterResolver:
    """Finds the TPU system and initialises it.

    Works in a thread, because TensorFlow resolves the name without a deadline.
    """
    found: list[Any] = []

    def connect() -> None:
        try:
            resolver = tf.distribute.cluster_resolver.TPUClusterResolver(address)
            if address != "local":
                _probe(resolver.master(), deadline)
                tf.config.experimental_connect_to_cluster(resolver)
            tf.tpu.experimental.initialize_tpu_system(resolver)
            found.append(resolver)
        except Exception as error:  # Reported below. It may be any error from DNS to gRPC.
            found.append(error)

    thread = threading.Thread(target=connect, name="connect-to-tpu", daemon=True)
    thread.start()
    thread.join(deadline + 5)
    if not found:
        found.append(TimeoutError(f"no answer in {deadline:g} s"))
    if isinstance(found[0], Exception):
        reason = (str(found[0]).strip().splitlines() or [type(found[0]).__name__])[0][:200]
        raise errors.ConfigError(
            f"expected a TPU at {address!r}, found none ({reason}); {_ADVICE}"
        ) from found[0]
    return found[0]


def _probe(address: str, deadline: float) -> None:
    """Waits until a server answers; raises `TimeoutError` after the deadline.

    TensorFlow would wait for the server forever while it holds the GIL.
    """
    options = [("grpc.enable_http_proxy", 0)]
    with grpc.insecure_channel(address.removeprefix("grpc://"), options) as channel:
        try:
            grpc.channel_ready_future(channel).result(deadline)
        except grpc.FutureTimeoutError:
            raise TimeoutError(f"no answer in {deadline:g} s") from None
