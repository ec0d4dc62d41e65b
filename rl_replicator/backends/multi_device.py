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

    def __init__(
        self,
        num_replicas: int | None = None,
        devices: Sequence[str] | None = None,
        cross_device_ops: tf.distribute.CrossDeviceOps | None = None,
    ):
        """Chooses the devices.

        Args:
          num_replicas: number of replicas; one for each GPU (or logical CPU) if None.
          devices: explicit device names instead, one for each replica.
          cross_device_ops: how replicas add up tensors. If None, with NCCL between GPUs, and with
            copies to one device between parts of the CPU. `tf.distribute.HierarchicalCopyAllReduce`
            is the alternative for GPUs that NCCL does not support.

        Raises:
          ConfigError: if there are not enough devices, or TensorFlow's CPU can no longer be split.
        """
        self._devices = devices_lib.choose(num_replicas, devices)
        self._cross_device_ops = cross_device_ops or _cross_device_ops(self._devices)
        strategy = snt.distribute.Replicator(self._devices, self._cross_device_ops)
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
        return tf.distribute.MirroredStrategy(self._devices, self._cross_device_ops)


def _cross_device_ops(devices: Sequence[str]) -> tf.distribute.CrossDeviceOps:
    """Returns the fastest way to add up tensors of these devices."""
    types = {tf.DeviceSpec.from_string(device).device_type for device in devices}
    if types == {"GPU"} and len(devices) > 1:
        # Sums to one device would pass all gradients through the memory of the first GPU.
        return tf.distribute.NcclAllReduce()
    # TensorFlow's default for CPUs, ring collectives, breaks when one process has two strategies:
    # they share the keys of their rings. Between parts of one CPU plain copies are faster anyway.
    return tf.distribute.ReductionToOneDevice()
