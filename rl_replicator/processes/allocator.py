"""The memory allocator of processes that train.

A learner's input allocates and frees thousands of small tensors for every batch, in several
threads. jemalloc does this with less processor time than glibc's malloc (`bench/allocator.py`), and
Ray's wheel has it. It is not the default: with it, two environments of dm_control with one seed
give rewards that may differ in their last bit.

An allocator has to be there before a process begins, so a command that trains starts itself again
with it.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Mapping
from pathlib import Path

VARIABLE = "RL_REPLICATOR_ALLOCATOR"
CHOICES = ("system", "jemalloc")
_PRELOAD = "LD_PRELOAD"


def library() -> Path | None:
    """Returns the path of jemalloc; None if it is not installed."""
    found = importlib.util.find_spec("ray")  # Imports nothing.
    for folder in (found and found.submodule_search_locations) or ():
        path = Path(folder, "core", "libjemalloc.so")
        if path.is_file():
            return path
    return None


def environment(current: Mapping[str, str]) -> dict[str, str]:
    """Returns the variables with which a new process has the allocator that was chosen.

    Args:
      current: variables that the process would have otherwise.

    Returns:
      Variables to add. Empty unless `RL_REPLICATOR_ALLOCATOR` is `jemalloc`; also if another
      library is preloaded already, or jemalloc is not installed.
    """
    if current.get(VARIABLE) != "jemalloc" or current.get(_PRELOAD):
        return {}
    path = library()
    # The dynamic linker splits the variable at spaces and colons.
    if path is None or set(str(path)) & set(" :"):
        return {}
    return {_PRELOAD: str(path)}


def restart() -> None:
    """Starts this process again, under the same process id, with the allocator that was chosen.

    Called before anything large is imported. Processes that this one starts inherit the allocator.
    Returns if `environment` has nothing to add, or under a debugger, which would lose the process.

    Raises:
      ValueError: if the variable names no allocator.
    """
    choice = os.environ.get(VARIABLE) or "system"
    if choice not in CHOICES:
        raise ValueError(f"{VARIABLE}: expected {' or '.join(CHOICES)}, got {choice!r}")
    added = environment(os.environ)
    if added and sys.gettrace() is None:
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], {**os.environ, **added})
