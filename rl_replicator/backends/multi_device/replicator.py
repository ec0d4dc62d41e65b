"""Several replicas in one process, in step."""

import contextlib
import functools
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import sonnet as snt
import tensorflow as tf

from rl_replicator import errors, replicator
from rl_replicator.backends import devices as devices_lib
from rl_replicator.backends.multi_device import logical_devices


class MultiDeviceReplicator(replicator.Replicator):
    """One replica on each device of this machine: its GPUs, or logical parts of its CPU.

    Built on Sonnet's Replicator, whose variables are local to a replica.
    """

    def __init__(
        self,
        num_replicas: int | None = None,
        devices: Sequence[str] | None = None,
        devices_per_replica: int = 1,
    ):
        """Chooses the devices.

        Args:
          num_replicas: how many; as many as all the GPUs (or logical CPUs) make up if None.
          devices: explicit device names instead; first those of replica 0, and so on.
          devices_per_replica: logical devices of each replica, see `logical_device`. A replica's
            inputs, and all that is not placed, are on its first.

        Raises:
          ConfigError: there are not enough devices, or TensorFlow's CPU can no longer be split.
        """
        groups = devices_lib.choose_groups(num_replicas, devices, devices_per_replica)
        self._devices = [group[0] for group in groups]
        # Ring collectives of two strategies in one process share keys and poison each other; and
        # between parts of one CPU, plain copies are faster anyway.
        super().__init__(
            snt.distribute.Replicator(self._devices, tf.distribute.ReductionToOneDevice())
        )
        self._logical_devices = (
            logical_devices.LogicalDevices(groups) if devices_per_replica > 1 else None
        )

    @classmethod
    def from_text(cls, argument: str) -> "MultiDeviceReplicator":
        if not argument:
            return cls()
        match = re.fullmatch(r"([1-9]\d*)(?:x([1-9]\d*))?", argument)
        if not match:
            raise errors.ConfigError(
                f"expected a number of replicas as in multi_device:2, got {argument!r}; write a "
                "number from 1, or replicas x logical devices as in multi_device:2x2"
            )
        return cls(int(match[1]), devices_per_replica=int(match[2] or 1))

    @functools.cached_property
    def strategy(self) -> tf.distribute.Strategy:
        """As in `Replicator`; a MirroredStrategy."""
        if self._logical_devices is not None:
            raise errors.ConfigError(
                "expected replicas of one device each for Keras or an Estimator, which place "
                f"nothing on the others, got {len(self._devices)} replicas of several; use "
                f"multi_device:{len(self._devices)}"
            )
        # Not Sonnet's, whose local variables an Estimator cannot save.
        return tf.distribute.MirroredStrategy(self._devices, tf.distribute.ReductionToOneDevice())

    @contextlib.contextmanager
    def scope(self) -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            if self._logical_devices is not None:
                # Below the strategy, where each replica's part of a variable is made.
                stack.enter_context(tf.variable_creator_scope(self._logical_devices.create))
            stack.enter_context(super().scope())
            yield

    def logical_device(self, index: int) -> contextlib.AbstractContextManager[None]:
        if self._logical_devices is None:
            return super().logical_device(index)
        return self._logical_devices.device(index)

    def wrap_optimizer(self, optimizer: Any, *args: Any, **options: Any) -> Any:
        if self._logical_devices is not None and isinstance(optimizer, snt.Optimizer):
            optimizer = logical_devices.place(optimizer, self._logical_devices)
        return super().wrap_optimizer(optimizer, *args, **options)

    def run(self, function: Callable[[int], Any]) -> list[Any]:
        results: list[Any] = [None] * self.num_local_replicas

        def replica() -> None:
            context = tf.distribute.get_replica_context()
            index = int(tf.get_static_value(context.replica_id_in_sync_group))
            with contextlib.ExitStack() as stack:
                if self._logical_devices is not None:
                    stack.enter_context(self._logical_devices.tracing(index))
                results[index] = function(index)

        self._strategy.run(replica)
        return results
