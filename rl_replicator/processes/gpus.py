"""The GPUs of this machine."""

import itertools
import os
import pathlib

# The environment variable that lists the GPUs that a process may use.
VISIBLE = "CUDA_VISIBLE_DEVICES"


def visible() -> list[str]:
    """Returns the names of the GPUs that this process may use."""
    chosen = os.environ.get(VISIBLE)
    if chosen is not None:
        names = [name.strip() for name in chosen.split(",")]
        # CUDA ignores an invalid name, such as -1, and all that follow it.
        return list(itertools.takewhile(lambda name: name and name[0] != "-", names))
    devices = pathlib.Path("/dev").glob("nvidia[0-9]*")
    return sorted((device.name.removeprefix("nvidia") for device in devices), key=int)
