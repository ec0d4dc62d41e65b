"""Chooses the devices of a replicator."""

import contextlib
import os
from collections.abc import Sequence

import tensorflow as tf

from rl_replicator import errors

# Limited because TensorFlow starts threads for each logical device.
_MOST_CPU_DEVICES = 256


def split_cpu(num_devices: int) -> None:
    """Splits the CPU into logical devices, for replicas on a machine without GPUs.

    TensorFlow's devices are fixed when one of them is first used. After that, the call succeeds
    only if there are enough logical devices.

    Args:
      num_devices: number of logical devices.

    Raises:
      ConfigError: if TensorFlow's devices are already in use and there are too few of them, or if
        more than 256 are requested.
    """
    if num_devices > _MOST_CPU_DEVICES:
        raise errors.ConfigError(
            f"expected at most {_MOST_CPU_DEVICES} logical CPU devices, got {num_devices}; use "
            "fewer replicas, or several processes"
        )
    cpu = tf.config.list_physical_devices("CPU")[0]
    configured = tf.config.get_logical_device_configuration(cpu) or []
    if len(configured) >= num_devices:
        return
    try:
        tf.config.set_logical_device_configuration(
            cpu, [tf.config.LogicalDeviceConfiguration()] * num_devices
        )
    except RuntimeError:  # The devices are in use already.
        found = len(tf.config.list_logical_devices("CPU"))
        if found < num_devices:
            raise errors.ConfigError(
                f"expected {num_devices} logical CPU devices, found {found}, and TensorFlow's "
                f"devices are in use already; create the replicator (or call "
                f"rr.split_cpu({num_devices})) before the first tensor"
            ) from None


def gpus() -> tuple[str, ...]:
    """Returns the names of the GPUs that this program may use: one for each part of a split GPU.

    Follows `tf.config.set_visible_devices` and `set_logical_device_configuration`. Does not
    initialise the GPUs.
    """
    count = sum(_parts(gpu) for gpu in tf.config.get_visible_devices("GPU"))
    return tuple(f"/gpu:{i}" for i in range(count))


def has_split_gpu() -> bool:
    """Whether one of the GPUs is split into logical devices."""
    return any(_parts(gpu) > 1 for gpu in tf.config.get_visible_devices("GPU"))


def grow_gpu_memory() -> None:
    """Makes TensorFlow allocate GPU memory as needed, instead of all of it at the start.

    This lets several processes (a learner and its evaluator, renderers) share a GPU. Does nothing
    if the program has set its own limits, has begun to use the GPUs, or sets
    TF_FORCE_GPU_ALLOW_GROWTH=false.
    """
    if os.environ.get("TF_FORCE_GPU_ALLOW_GROWTH", "").lower() in ("0", "false"):
        return
    for gpu in tf.config.get_visible_devices("GPU"):
        # ValueError: the GPU is split into logical devices with limits. RuntimeError: it is in use.
        with contextlib.suppress(ValueError, RuntimeError):
            tf.config.experimental.set_memory_growth(gpu, True)


def choose(num_replicas: int | None, devices: Sequence[str] | None) -> tuple[str, ...]:
    """Returns the devices of replicas: GPUs if the machine has any, otherwise logical CPU devices.

    Args:
      num_replicas: number of replicas; None for all GPUs, or all logical CPU devices.
      devices: names of the devices, such as `("/gpu:0", "/gpu:1")`; None to choose them here.

    Returns:
      Names of the devices, one for each replica.

    Raises:
      ConfigError: if there are fewer devices than replicas, if a device is repeated or this machine
        does not have it, or if `num_replicas` and `devices` contradict each other.
    """
    if devices is not None:
        if num_replicas is not None and num_replicas != len(devices):
            raise errors.ConfigError(
                f"expected {num_replicas} devices, one per replica, got {list(devices)}; "
                "give either num_replicas or devices"
            )
        names = tuple(_short(device) for device in devices)
        if not names or len(set(names)) != len(names):
            raise errors.ConfigError(
                f"expected at least one device name, each once, got {list(devices)}; name each "
                "device once"
            )
        available = _available()
        missing = [name for name in names if name not in available]
        if missing:
            # TensorFlow itself would silently use other devices.
            raise errors.ConfigError(
                f"expected devices of this machine ({', '.join(available)}), got "
                f"{', '.join(missing)}; name some of them, or split the CPU with rr.split_cpu "
                "before the first tensor"
            )
        return names
    if num_replicas is not None and num_replicas < 1:
        raise errors.ConfigError(
            f"expected at least 1 replica, got {num_replicas}; write multi_device:2, for example"
        )
    found = gpus()
    grow_gpu_memory()
    if found:
        wanted = num_replicas or len(found)
        if wanted > len(found):
            raise errors.ConfigError(
                f"expected {wanted} GPUs, found {len(found)}; ask for at most {len(found)} "
                "replicas, or hide the GPUs (CUDA_VISIBLE_DEVICES=-1) for replicas on parts of the "
                "CPU"
            )
        return found[:wanted]
    if num_replicas is None:
        num_replicas = len(tf.config.list_logical_devices("CPU"))
    split_cpu(num_replicas)
    return tuple(f"/cpu:{i}" for i in range(num_replicas))


def _parts(gpu: tf.config.PhysicalDevice) -> int:
    """Returns the number of logical devices of a GPU."""
    return len(tf.config.get_logical_device_configuration(gpu) or [gpu])


def _short(name: str) -> str:
    """Returns a canonical device name, such as "/gpu:0"; returns a malformed name unchanged."""
    try:
        spec = tf.DeviceSpec.from_string(name)
    except ValueError:
        return name
    return f"/{spec.device_type}:{spec.device_index}".lower()


def _available() -> list[str]:
    """Returns the names of this machine's devices. Initialises TensorFlow's devices."""
    grow_gpu_memory()
    return [_short(device.name) for device in tf.config.list_logical_devices()]
