"""Several replicas in one process, in step."""

from collections.abc import Callable, Sequence
from typing import Any

import sonnet as snt
import tensorflow as tf

from rl_replicator import devices as devices_lib
from rl_replicator import errors, replicator


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

    @classmethod
    def from_text(cls, argument: str) -> "MultiDeviceReplicator":
        if not argument:
            return cls()
        if not argument.isdecimal() or int(argument) < 1:
            raise errors.ConfigError(
                f"expected a number of replicas as in multi_device:2, got {argument!r}; "
                "write a number from 1"
            )
        return cls(int(argument))

    def run(self, function: Callable[[int], Any]) -> list[Any]:
        results: list[Any] = [None] * self.num_local_replicas

        def replica() -> None:
            context = tf.distribute.get_replica_context()
            index = int(tf.get_static_value(context.replica_id_in_sync_group))
            results[index] = function(index)

        self.strategy.run(replica)
        return results
