"""A replicator over several devices of one process."""

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
          num_replicas: number of replicas; None for one on each GPU, or on each logical CPU device.
          devices: names of the devices, one for each replica; None to choose them.
          cross_device_ops: implementation of sums over replicas. None for NCCL between GPUs, and
            copies to one device between parts of the CPU or of a GPU. Use
            `tf.distribute.HierarchicalCopyAllReduce` for GPUs that NCCL does not support.

        Raises:
          ConfigError: if there are not enough devices, or TensorFlow's CPU can no longer be split.
        """
        self._devices = devices_lib.choose(num_replicas, devices)
        self._cross_device_ops = cross_device_ops or _cross_device_ops(self._devices)
        strategy = snt.distribute.Replicator(self._devices, self._cross_device_ops)
        super().__init__(host.StrategyHost(strategy))

    @classmethod
    def from_text(cls, argument: str) -> "MultiDeviceReplicator":
        """Makes a replicator from the number of replicas; see `Replicator.from_text`."""
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
        # Not Sonnet's strategy, because an Estimator cannot save its local variables.
        return tf.distribute.MirroredStrategy(self._devices, self._cross_device_ops)


def _cross_device_ops(devices: Sequence[str]) -> tf.distribute.CrossDeviceOps:
    """Returns the fastest implementation of sums over these devices."""
    types = {tf.DeviceSpec.from_string(device).device_type for device in devices}
    # NCCL refuses several replicas on one GPU.
    if types == {"GPU"} and len(devices) > 1 and not devices_lib.has_split_gpu():
        # Sums on one device would send all gradients through the first GPU's memory.
        return tf.distribute.NcclAllReduce()
    # Ring collectives, TensorFlow's default for CPUs, fail when a process has two strategies, whose
    # collectives share their keys. Copies between parts of a CPU are also faster.
    return tf.distribute.ReductionToOneDevice()
