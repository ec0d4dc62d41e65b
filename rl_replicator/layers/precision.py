"""The dtype in which layers compute."""

import re
from pathlib import Path

import tensorflow as tf

# NVIDIA's Ampere is the first with bfloat16 units.
_AMPERE = (8, 0)


def resolve(name: str) -> str:
    """Replaces "auto" by the name of the dtype that this machine computes fastest.

    Save the result, not "auto": a run that is resumed on another machine must keep its dtype.

    Args:
      name: of a dtype, or "auto": "bfloat16" on hardware with bfloat16 units, else "float32".

    Returns:
      The name of a dtype.
    """
    if name != "auto":
        return name
    return "bfloat16" if _has_fast_bfloat16() else "float32"


def choose(name: str) -> tf.DType:
    """Returns the dtype of a name that `resolve` takes."""
    return tf.as_dtype(resolve(name))


def _has_fast_bfloat16() -> bool:
    if tf.config.list_physical_devices("TPU"):
        return True
    gpus = tf.config.list_physical_devices("GPU")
    if gpus:
        details = [tf.config.experimental.get_device_details(gpu) for gpu in gpus]
        # Those of other makers have none, which is less than any.
        return all(each.get("compute_capability", ()) >= _AMPERE for each in details)
    processor = Path("/proc/cpuinfo")
    text = processor.read_text() if processor.is_file() else ""
    return re.search(r"\b(amx_bf16|avx512_bf16)\b", text) is not None
