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
