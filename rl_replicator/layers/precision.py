"""The type in which layers compute."""

import re
from pathlib import Path

import tensorflow as tf

# NVIDIA's Ampere is the first with bfloat16 units.
_AMPERE = (8, 0)


def choose(name: str) -> tf.DType:
    """A type by name; "auto" is bfloat16 where this machine is fast at it, else float32."""
    if name != "auto":
        return tf.as_dtype(name)
    return tf.bfloat16 if _has_fast_bfloat16() else tf.float32


def _has_fast_bfloat16() -> bool:
    if tf.config.list_physical_devices("TPU"):
        return True
    gpus = tf.config.list_physical_devices("GPU")
    if gpus:
        details = [tf.config.experimental.get_device_details(gpu) for gpu in gpus]
        return all(each.get("compute_capability", (0, 0)) >= _AMPERE for each in details)
    processor = Path("/proc/cpuinfo")
    text = processor.read_text() if processor.is_file() else ""
    return re.search(r"\b(amx_bf16|avx512_bf16)\b", text) is not None
