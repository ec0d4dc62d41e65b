"""The GPUs of this machine."""

import os
import pathlib

# The environment variable that says which GPUs a process may use.
VISIBLE = "CUDA_VISIBLE_DEVICES"


def visible() -> list[str]:
    """Returns the names of the GPUs that this process may use."""
    chosen = os.environ.get(VISIBLE)
    if chosen is not None:
        return [name for name in chosen.split(",") if name]
    devices = pathlib.Path("/dev").glob("nvidia[0-9]*")
    return sorted((device.name.removeprefix("nvidia") for device in devices), key=int)
