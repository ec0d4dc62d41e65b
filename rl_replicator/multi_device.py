"""Several replicas in one process, in step."""

from collections.abc import Callable, Sequence
from typing import Any

import sonnet as snt
import tensorflow as tf

from rl_replicator import devices as devices_lib
from rl_replicator import replicator


class MultiDeviceReplicator(replicator.Replicator):
    """One replica on each device of this machine: its GPUs, or logical parts of its CPU.

    Built on Sonnet's Replicator, whose variables are local to a replica.
    """

    def __init__(self, num_replicas: int | None = None, devices: Sequence[str] | None = None):
        """Chooses the devices.

        Args:
          num_replicas: how many; all the GPUs (or logical CPUs) if None.
          devices: explicit device names instead.

        Raises:
          ConfigError: there are not enough devices, or TensorFlow's CPU can no longer be split.
        """
        names = devices_lib.choose(num_replicas, devices)
        # Ring collectives of two strategies in one process share keys and poison each other; and
        # between parts of one CPU, plain copies are faster anyway.
        super().__init__(snt.distribute.Replicator(names, tf.distribute.ReductionToOneDevice()))

    def local_results(self, outputs: Any) -> tuple[Any, ...]:
        def pick(leaf: Any, index: int) -> Any:
            return leaf.values[index] if isinstance(leaf, replicator.PerReplica) else leaf

        return tuple(
            tf.nest.map_structure(lambda leaf, i=i: pick(leaf, i), outputs)
            for i in range(self.num_replicas)
        )

    def run(self, function: Callable[[int], None]) -> None:
        def replica() -> None:
            context = tf.distribute.get_replica_context()
            function(int(tf.get_static_value(context.replica_id_in_sync_group)))

        self.strategy.run(replica)

    def join(self, results: list[Any]) -> Any:
        return tf.nest.map_structure(
            lambda *xs: None if xs[0] is None else replicator.PerReplica(xs), *results
        )
