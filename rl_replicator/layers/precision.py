"""The dtype in which layers compute."""

import contextlib
import contextvars
import importlib
import platform
import re
from collections.abc import Iterator
from pathlib import Path

import tensorflow as tf

# NVIDIA's Ampere is the first with bfloat16 units.
_AMPERE = (8, 0)
_CPU_INFO = Path("/proc/cpuinfo")

_autocast: contextvars.ContextVar[tf.DType] = contextvars.ContextVar("autocast", default=tf.float32)


def resolve(name: str) -> str:
    """Replaces "auto" with the name of the dtype that this machine computes fastest.

    Save the result, not "auto": a run that is resumed on another machine must keep its dtype.

    Args:
      name: the name of a dtype, or "auto": "bfloat16" on hardware with bfloat16 units, else
        "float32".

    Returns:
      The name of a dtype.
    """
    if name != "auto":
        return name
    return "bfloat16" if _has_fast_bfloat16() else "float32"


def choose(name: str) -> tf.DType:
    """Returns the dtype for a name that `resolve` accepts."""
    return tf.as_dtype(resolve(name))


@contextlib.contextmanager
def autocast(dtype: tf.DType) -> Iterator[None]:
    """Makes layers that this thread calls inside the context compute in a dtype.

    This applies to `linear.Linear`; other layers ignore it. For a `tf.function`, the context in
    which it is traced counts.

    Args:
      dtype: `tf.bfloat16`, or `tf.float32` for no change. float16 would require loss scaling.

    Raises:
      ValueError: if it is another dtype.
    """
    if dtype not in (tf.float32, tf.bfloat16):
        raise ValueError(f"expected float32 or bfloat16, got {dtype.name}")
    token = _autocast.set(dtype)
    try:
        yield
    finally:
        _autocast.reset(token)


def autocast_dtype() -> tf.DType:
    """Returns the dtype of the innermost `autocast`; float32 outside."""
    return _autocast.get()


def has_onednn() -> bool:
    """Whether TensorFlow uses oneDNN; always True on machines other than x86."""
    if platform.machine() != "x86_64":
        return True
    return importlib.import_module("tensorflow.python.util._pywrap_util_port").IsMklEnabled()


def _has_fast_bfloat16() -> bool:
    if tf.config.list_physical_devices("TPU"):
        return True
    gpus = tf.config.get_visible_devices("GPU")
    if gpus:
        details = [tf.config.experimental.get_device_details(gpu) for gpu in gpus]
        # GPUs of other vendors have no capability: () is less than any.
        return all(each.get("compute_capability", ()) >= _AMPERE for each in details)
    text = _CPU_INFO.read_text() if _CPU_INFO.is_file() else ""
    # Only oneDNN's kernels use these units, not TensorFlow's own.
    return has_onednn() and re.search(r"\b(amx_bf16|avx512_bf16)\b", text) is not None
