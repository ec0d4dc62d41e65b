"""Reads a flag of the script when it is imported, like modules that `main` imports."""

from __future__ import annotations

from absl import flags

WORD = flags.FLAGS.word


def word() -> str:
    return WORD
