"""The code of the launcher that Ray ships to a cluster."""

from __future__ import annotations

import pathlib
import sys
import sysconfig
from typing import Any

_INSTALLED = {"site-packages", "dist-packages"}
# Files that may change, for example at an import, although the code does not.
_EXCLUDES = ["__pycache__", ".git"]


def runtime_env() -> dict[str, Any]:
    """Returns the argument of `ray.init` that ships what is imported here and not installed."""
    return {"py_modules": own_modules(), "excludes": _EXCLUDES}


def own_modules() -> list[str]:
    """Returns the top-level packages and modules that are imported here and not installed.

    Installed packages, in a directory `site-packages`, must be installed on the cluster, too. The
    main script is not included: what it defines is pickled by value.
    """
    found = set()
    for name, module in list(sys.modules.items()):
        if "." in name or name.startswith("__"):
            continue
        for place in _places(module):
            if place.exists() and not _is_installed(place):
                found.add(str(place))
    return sorted(found)


def _is_installed(place: pathlib.Path) -> bool:
    # The prefix is no criterion: a project's directory may contain a virtual environment.
    libraries = (sysconfig.get_path(name) for name in ("stdlib", "platstdlib"))
    return not _INSTALLED.isdisjoint(place.parts) or any(
        place.is_relative_to(pathlib.Path(library).resolve()) for library in libraries
    )


def _places(module: object) -> list[pathlib.Path]:
    """Returns a package's directories, or a module's file."""
    try:
        paths = [str(path) for path in module.__path__]  # type: ignore[attr-defined]
    except Exception:  # Odd objects in sys.modules have no source.
        file = getattr(module, "__file__", None)
        paths = [file] if isinstance(file, str) and file.endswith(".py") else []
    return [pathlib.Path(path).resolve() for path in paths]
