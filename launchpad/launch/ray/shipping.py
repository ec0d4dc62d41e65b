"""Which code a cluster gets from the launcher."""

from __future__ import annotations

import pathlib
import sys
import sysconfig


def own_modules() -> list[str]:
    """Returns the top-level packages and modules that are imported here and not installed.

    What is installed, here in `site-packages`, must be installed on the cluster too. The main
    script is not among them: what it defines travels by value.
    """
    installed = [pathlib.Path(path).resolve() for path in set(sysconfig.get_paths().values())]
    found = set()
    for name, module in list(sys.modules.items()):
        if "." in name or name.startswith("__"):
            continue
        for place in _places(module):
            if place.exists() and not any(place.is_relative_to(path) for path in installed):
                found.add(str(place))
    return sorted(found)


def _places(module: object) -> list[pathlib.Path]:
    """Returns a package's directories, or a module's file."""
    try:
        paths = [str(path) for path in module.__path__]  # type: ignore[attr-defined]
    except Exception:  # Odd objects in sys.modules are nobody's source.
        file = getattr(module, "__file__", None)
        paths = [file] if isinstance(file, str) and file.endswith(".py") else []
    return [pathlib.Path(path).resolve() for path in paths]
