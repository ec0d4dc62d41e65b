"""The dtype that "auto" stands for on this machine."""

import pytest
import tensorflow as tf

from rl_replicator.layers import precision


@pytest.mark.parametrize(("is_fast", "expected"), [(True, "bfloat16"), (False, "float32")])
def test_auto(monkeypatch, is_fast, expected):
    monkeypatch.setattr(precision, "_has_fast_bfloat16", lambda: is_fast)
    assert precision.resolve("auto") == expected
    assert precision.choose("auto") == tf.as_dtype(expected)


def test_names_stay_what_they_are():
    for name in ("float16", "float32", "float64", "bfloat16"):
        assert precision.resolve(name) == name
        assert precision.choose(name) == tf.as_dtype(name)


@pytest.mark.parametrize(
    ("devices", "expected"),
    [
        ({"TPU": [None]}, "bfloat16"),
        ({"TPU": [None], "GPU": [(7, 0)]}, "bfloat16"),
        ({"GPU": [(8, 0), (9, 0)]}, "bfloat16"),  # Ampere is the first.
        ({"GPU": [(7, 5)]}, "float32"),
        ({"GPU": [(9, 0), (7, 0)]}, "float32"),  # As fast as the slowest.
        ({"GPU": [None]}, "float32"),  # Not NVIDIA's.
    ],
)
def test_accelerators(monkeypatch, devices, expected):
    """Replaces this machine's accelerators by others, none of which is at hand."""
    details = [{} if x is None else {"compute_capability": x} for x in devices.get("GPU", [])]
    for name in ("list_physical_devices", "get_visible_devices"):
        monkeypatch.setattr(tf.config, name, lambda kind: range(len(devices.get(kind, []))))
    monkeypatch.setattr(tf.config.experimental, "get_device_details", details.__getitem__)
    assert precision.resolve("auto") == expected


@pytest.mark.parametrize(
    ("text", "has_onednn", "expected"),
    [
        ("flags : fpu amx_bf16 avx", True, "bfloat16"),
        ("flags : avx512_bf16", True, "bfloat16"),
        ("flags : avx512_bf16", False, "float32"),
        ("flags : fpu avx512f", True, "float32"),
        ("flags : no_amx_bf16s", True, "float32"),
        (None, True, "float32"),  # Not Linux.
    ],
)
def test_processors(monkeypatch, tmp_path, text, has_onednn, expected):
    path = tmp_path / "cpuinfo"
    if text is not None:
        path.write_text(text)
    for name in ("list_physical_devices", "get_visible_devices"):
        monkeypatch.setattr(tf.config, name, lambda kind: [])
    monkeypatch.setattr(precision, "_CPU_INFO", path)
    monkeypatch.setattr(precision, "has_onednn", lambda: has_onednn)
    assert precision.resolve("auto") == expected
