"""The memory allocator of processes that train.

A learner's input pipeline allocates and frees thousands of small tensors for every batch, in
several threads. jemalloc needs less CPU time for this than glibc's malloc (`bench/allocator.py`),
and Ray's wheel contains it. It is not the default, because with it, the rewards of two dm_control
environments with the same seed may differ in their last bit.

An allocator must be preloaded when a process starts, so a command that trains restarts itself with
it.
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
    """Returns the environment variables that give a new process the chosen allocator.

    Args:
      current: the environment variables of the process without it.

    Returns:
      Variables to add. Empty unless `RL_REPLICATOR_ALLOCATOR` is `jemalloc`; also empty if another
      library is preloaded already, or jemalloc is not installed.
    """
    if current.get(VARIABLE) != "jemalloc" or current.get(_PRELOAD):
        return {}
    path = library()
    # The dynamic linker splits LD_PRELOAD at spaces and colons.
    if path is None or set(str(path)) & set(" :"):
        return {}
    return {_PRELOAD: str(path)}


def restart() -> None:
    """Restarts this process, under the same process id, with the chosen allocator.

    Call this before anything large is imported. Child processes inherit the allocator. Does nothing
    if `environment` has nothing to add, or under a debugger, which would lose the process.

    Raises:
      ValueError: if `RL_REPLICATOR_ALLOCATOR` names an unknown allocator.
    """
    choice = os.environ.get(VARIABLE) or "system"
    if choice not in CHOICES:
        raise ValueError(f"{VARIABLE}: expected {' or '.join(CHOICES)}, got {choice!r}")
    added = environment(os.environ)
    if added and sys.gettrace() is None:
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], {**os.environ, **added})
