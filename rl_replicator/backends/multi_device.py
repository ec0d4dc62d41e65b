"""Several replicas in one process, in step."""

import functools
from collections.abc import Sequence

import sonnet as snt
import tensorflow as tf

from rl_replicator import errors, replicator
from rl_replicator.backends import devices as devices_lib
from rl_replicator.step import host


class MultiDeviceReplicator(replicator.Replicator):
    """One replica on each device of this machine: its GPUs, or logical parts of its CPU.

    Built on Sonnet's Replicator, whose variables are local to a replica. A model that is too large
    for one device needs `MeshReplicator`.
    """

    def __init__(self, num_replicas: int | None = None, devices: Sequence[str] | None = None):
        """Chooses the devices.

        Args:
          num_replicas: number of replicas; one for each GPU (or logical CPU) if None.
          devices: explicit device names instead, one for each replica.

        Raises:
          ConfigError: if there are not enough devices, or TensorFlow's CPU can no longer be split.
        """
        self._devices = devices_lib.choose(num_replicas, devices)
        # Ring collectives of two strategies in one process share keys and poison each other; and
        # between parts of one CPU, plain copies are faster anyway.
        strategy = snt.distribute.Replicator(self._devices, tf.distribute.ReductionToOneDevice())
        super().__init__(host.StrategyHost(strategy))

    @classmethod
    def from_text(cls, argument: str) -> "MultiDeviceReplicator":
        if not argument:
            return cls()
        if not argument.isdecimal() or int(argument) < 1:
            raise errors.ConfigError(
                f"expected a number of replicas as in multi_device:2, got {argument!r}; write a "
                "number from 1, or use mesh:data=2,model=2 for replicas of several devices"
            )
        return cls(int(argument))

    @functools.cached_property
    def strategy(self) -> tf.distribute.Strategy:
        """A `MirroredStrategy` on the same devices; see `Replicator.strategy`."""
        # Not Sonnet's, whose local variables an Estimator cannot save.
        return tf.distribute.MirroredStrategy(self._devices, tf.distribute.ReductionToOneDevice())
