"""Shortens faulthandler's dump of all threads to what shows why a test hangs.

A worker that has run a thousand tests has up to a hundred threads, and faulthandler prints the one
that runs the test last. A reader of the log, which is often truncated, needs that stack first.
"""

from __future__ import annotations

import collections
from pathlib import Path

_ROOT = f"{Path(__file__).parents[2]}/"
_INSTALLED = "/site-packages/"


def shorten(dump: str) -> str:
    """Returns a shorter form of a dump by `faulthandler`.

    Args:
      dump: the stacks of all threads of a process, the main thread's last.

    Returns:
      The whole stack of the main thread, then the other threads' stacks, shortened to the innermost
      frame and the frames of this project; equal stacks are printed once, with their count.
    """
    *others, main = dump.strip().split("\n\n")
    counts = collections.Counter(map(_short, others))
    parts = [main.replace(_ROOT, "")]
    parts += [f"{count} x {stack}" for stack, count in counts.most_common()]
    return "\n".join(parts) + "\n"


def _short(stack: str) -> str:
    frames = [line for line in stack.splitlines() if line.startswith("  File")]
    return "\n".join(
        frame.strip().replace(_ROOT, "")
        for i, frame in enumerate(frames)
        if i == 0 or (_ROOT in frame and _INSTALLED not in frame)
    )
