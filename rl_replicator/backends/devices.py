"""Which devices a replicator may use."""

import contextlib
import os
from collections.abc import Sequence

import tensorflow as tf

from rl_replicator import errors


def split_cpu(num_devices: int) -> None:
    """Makes the CPU appear as `num_devices` logical devices, for replicas without a GPU.

    TensorFlow fixes its devices when the first of them is used; after that the call only passes
    if enough logical devices are there already.

    Raises:
      ConfigError: too late, and too few devices.
    """
    cpu = tf.config.list_physical_devices("CPU")[0]
    configured = tf.config.get_logical_device_configuration(cpu) or []
    if len(configured) >= num_devices:
        return
    try:
        tf.config.set_logical_device_configuration(
            cpu, [tf.config.LogicalDeviceConfiguration()] * num_devices
        )
    except RuntimeError:  # The devices are in use and cannot be split any more.
        found = len(tf.config.list_logical_devices("CPU"))
        if found < num_devices:
            raise errors.ConfigError(
                f"expected {num_devices} logical CPU devices, found {found}, and TensorFlow's "
                f"devices are in use already; create the replicator (or call "
                f"rr.split_cpu({num_devices})) before the first tensor"
            ) from None


def grow_gpu_memory() -> None:
    """Lets TensorFlow take GPU memory as it needs it, instead of all of it at once.

    So several processes (a learner and its evaluator, renderers) can share a GPU. Does nothing if
    the program has set limits of its own, has begun to use the GPUs, or says
    TF_FORCE_GPU_ALLOW_GROWTH=false.
    """
    if os.environ.get("TF_FORCE_GPU_ALLOW_GROWTH", "").lower() in ("0", "false"):
        return
    for gpu in tf.config.list_physical_devices("GPU"):
        # ValueError: the GPU is split into logical devices with limits. RuntimeError: it is in use.
        with contextlib.suppress(ValueError, RuntimeError):
            tf.config.experimental.set_memory_growth(gpu, True)


def choose(num_replicas: int | None, devices: Sequence[str] | None) -> tuple[str, ...]:
    """The devices for `num_replicas` replicas: GPUs where there are any, else parts of the CPU.

    Args:
      num_replicas: how many; all GPUs, or the logical CPUs there are, if None.
      devices: explicit names such as `("/gpu:0", "/gpu:1")`; these win.

    Raises:
      ConfigError: fewer devices than replicas, a repeated device, or both arguments given.
    """
    if devices is not None:
        if num_replicas is not None and num_replicas != len(devices):
            raise errors.ConfigError(
                f"expected {num_replicas} devices, one per replica, got {list(devices)}; "
                "give either num_replicas or devices"
            )
        if not devices or len(set(devices)) != len(devices):
            raise errors.ConfigError(
                f"expected distinct device names, got {list(devices)}; name each device once"
            )
        return tuple(devices)
    if num_replicas is not None and num_replicas < 1:
        raise errors.ConfigError(
            f"expected at least 1 replica, got {num_replicas}; use e.g. multi_device:2"
        )
    gpus = len(tf.config.list_physical_devices("GPU"))
    grow_gpu_memory()
    if gpus:
        wanted = num_replicas or gpus
        if wanted > gpus:
            raise errors.ConfigError(
                f"expected {wanted} GPUs, found {gpus}; ask for at most {gpus} replicas"
            )
        return tuple(f"/gpu:{i}" for i in range(wanted))
    if num_replicas is None:
        num_replicas = len(tf.config.list_logical_devices("CPU"))
    split_cpu(num_replicas)
    return tuple(f"/cpu:{i}" for i in range(num_replicas))
