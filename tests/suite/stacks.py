"""Shortens faulthandler's dump of all threads to what tells why a test hangs.

A worker that has run a thousand tests has up to a hundred threads, and the one that runs the test
comes last. Who reads the log of a run, often cut, needs that one first.
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
      The whole stack of the main thread, then those of other threads in short: the innermost frame
      and the frames of this project, equal ones counted.
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
