"""The option `--replicas`."""


def replicator_name(replicas: str) -> str:
    """Converts the option `--replicas` to an argument of `rl_replicator.make`.

    Args:
      replicas: a number of devices, or a string that `rl_replicator.make` accepts.

    Returns:
      "single_device" for "1", "multi_device:N" for a larger N, any other text unchanged.
    """
    if not replicas.isdecimal():
        return replicas
    return "single_device" if int(replicas) == 1 else f"multi_device:{int(replicas)}"
