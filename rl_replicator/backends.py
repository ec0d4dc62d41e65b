"""Replicators by name."""

from rl_replicator import errors, multi_device, replicator


def make(name: str) -> replicator.Replicator:
    """Makes a replicator from one string, such as a command line gives.

    Args:
      name: "single_device", "multi_device" (all devices there are) or "multi_device:2".

    Raises:
      ConfigError: unknown name, or an argument that it does not take.
    """
    kind, colon, argument = name.partition(":")
    if kind == "single_device" and not colon:
        return replicator.SingleDeviceReplicator()
    if kind == "multi_device" and not colon:
        return multi_device.MultiDeviceReplicator()
    if kind == "multi_device" and argument.isdecimal() and int(argument) > 0:
        return multi_device.MultiDeviceReplicator(int(argument))
    raise errors.ConfigError(
        f"expected a replicator such as single_device or multi_device:2, got {name!r}; "
        "write one of these"
    )
