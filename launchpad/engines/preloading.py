"""What the fork server imports for the nodes of a program."""

from __future__ import annotations

import gc
import importlib
import os
import pathlib
import pickletools
import sys
import types
from collections.abc import Iterable, Iterator, Sequence

from launchpad.nodes import base

_INSTALLED = ("site-packages", "dist-packages")
# These load OpenGL, or choose an implementation of it, when imported; that does not survive a fork.
_OPENGL = ("OpenGL", "dm_control", "glfw", "mujoco", "pygame")
# Exit status of a process that must not be forked.
UNFIT = 3


def needed(nodes: Sequence[base.Node], pickles: Iterable[bytes]) -> list[str]:
    """Returns the modules of installed packages that nodes need, as far as can be determined.

    They are the modules that the pickled nodes name, those that the launcher's own modules among
    these have imported, and those in `Node.imports`. Modules that are not installed are never
    included: what they do when they are imported (create a random generator or a file, for example)
    is meant for each node.

    Args:
      nodes: The nodes of the program.
      pickles: The same nodes, pickled.
    """
    waiting = ["__main__", *(name for data in pickles for name in _names(data))]
    seen: set[str] = set()
    found: set[str] = set()
    while waiting:
        name = waiting.pop()
        module = sys.modules.get(name)
        if name in seen or module is None:
            continue
        seen.add(name)
        if _is_installed(module):
            found.add(name)
        elif isinstance(getattr(module, "__file__", None), str):
            waiting += _used_by(module)
    found.discard("__main__")
    # In the order in which the launcher has imported them. `sys.modules` is copied first, because
    # other threads may import more in the meantime.
    modules = [name for name in list(sys.modules) if name in found]
    modules = [name for name in modules if name.partition(".")[0] not in _OPENGL]
    return [*modules, *sorted({name for node in nodes for name in node.imports})]


def _names(data: bytes) -> Iterator[str]:
    """Yields all strings of a pickle; the names of modules are among them."""
    for _, argument, _ in pickletools.genops(data):
        if isinstance(argument, str):
            yield argument


def _used_by(module: types.ModuleType) -> Iterator[str]:
    for value in list(vars(module).values()):
        is_module = isinstance(value, types.ModuleType)
        try:
            name = getattr(value, "__name__" if is_module else "__module__", None)
        except Exception:  # Access to an attribute may run arbitrary code.
            continue
        if isinstance(name, str):
            yield name


def _is_installed(module: types.ModuleType) -> bool:
    file = getattr(module, "__file__", None)
    return isinstance(file, str) and any(part in _INSTALLED for part in pathlib.Path(file).parts)


def load(names: Sequence[str], argv: Sequence[str], search_path: Sequence[str]) -> None:
    """Imports modules in the fork server; ends it with status `UNFIT` if it can't be forked then.

    Args:
      names: The names of modules. Errors of their imports are left to the nodes.
      argv: The launcher's command line: some modules read it when they are imported.
      search_path: Directories from which to import first.
    """
    # TensorFlow imports pandas, and that pyarrow, whose allocator would start a thread.
    os.environ.setdefault("JE_ARROW_MALLOC_CONF", "background_thread:false")
    sys.argv[:] = argv
    sys.path[:] = [*search_path, *(p for p in sys.path if p not in search_path)]
    for name in names:
        try:
            importlib.import_module(name)
        except BaseException:  # The node that needs it raises the same error, for the user to see.
            continue
    if len(os.listdir("/proc/self/task")) > 1 + _num_openblas_threads():
        print("an imported module has started a thread; nodes start fresh interpreters", flush=True)
        os._exit(UNFIT)  # The interpreter would wait for the thread.
    # These objects stay: garbage collections in nodes need not visit them, nor copy their pages.
    gc.collect()
    gc.freeze()


def _num_openblas_threads() -> int:
    """Returns how many threads OpenBLAS has started; it starts them anew after a fork."""
    maps = pathlib.Path("/proc/self/maps").read_text().splitlines()
    libraries = {line.split()[-1] for line in maps if "openblas" in line.rpartition("/")[2]}
    size = len(os.sched_getaffinity(0))
    for name in ("OPENBLAS_NUM_THREADS", "GOTO_NUM_THREADS", "OMP_NUM_THREADS"):
        if os.environ.get(name, "").isdecimal():
            size = max(1, int(os.environ[name]))
            break
    return len(libraries) * (size - 1)
