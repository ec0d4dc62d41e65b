"""A replicator with one replica on one device."""

import functools

import tensorflow as tf

from rl_replicator import errors, replicator
from rl_replicator.backends import devices
from rl_replicator.step import host


class SingleDeviceReplicator(replicator.Replicator):
    """One replica on the default device, without the overhead of a distribution strategy."""

    def __init__(self) -> None:
        """Uses the first GPU if there is one, and otherwise the CPU."""
        devices.grow_gpu_memory()
        super().__init__(host.LocalHost())

    @classmethod
    def from_text(cls, argument: str) -> "SingleDeviceReplicator":
        """Takes no argument; see `Replicator.from_text`."""
        if argument:
            raise errors.ConfigError(
                f"expected single_device without an argument, got {argument!r}; remove it, or use "
                "multi_device"
            )
        return cls()

    @functools.cached_property
    def strategy(self) -> tf.distribute.Strategy:
        """A `OneDeviceStrategy` on the same device; see `Replicator.strategy`."""
        # Estimators do not accept the default strategy.
        has_gpu = tf.config.list_physical_devices("GPU")
        return tf.distribute.OneDeviceStrategy("/gpu:0" if has_gpu else "/cpu:0")
