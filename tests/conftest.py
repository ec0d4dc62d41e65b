"""Splits the CPU into four logical devices, before any test starts TensorFlow."""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import rl_replicator as rr  # noqa: E402 - after the log level

rr.split_cpu(4)
