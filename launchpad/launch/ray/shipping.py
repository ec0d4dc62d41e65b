"""Which code a cluster gets from the launcher."""

from __future__ import annotations

import os
import pathlib
import sys
import sysconfig
import tempfile
import threading
import time

_INSTALLED = {"site-packages", "dist-packages"}
# Ray deletes what was uploaded and has not been used for 600 s.
_UPLOAD_AGAIN_SECS = 60.0
# What changes whenever something is imported is no other code.
_EXCLUDES = ["__pycache__", ".git"]


class Shipment:
    """The code that a program's nodes get from the launcher."""

    def __init__(self) -> None:
        import ray

        # What an actor is given replaces what whoever called ray.init() gave to all.
        self._others = ray.get_runtime_context().runtime_env.py_modules()
        self._lock = threading.Lock()
        self._places: set[str] = set()
        self._uris: list[str] = []
        self._uploaded_at = 0.0
        self.load()

    def load(self) -> None:
        """Adds what was imported since.

        Raises:
          ConnectionError: Ray does not take it.
        """
        with self._lock:
            self._places.update(own_modules())
            self._upload()

    def uris(self) -> list[str]:
        """Returns the names by which a node that starts now finds the code in Ray.

        Raises:
          ConnectionError: Ray does not take it.
        """
        with self._lock:
            if time.monotonic() - self._uploaded_at > _UPLOAD_AGAIN_SECS:
                self._upload()
            return self._uris

    def _upload(self) -> None:
        import ray.exceptions
        from ray._private.runtime_env import py_modules

        places = sorted(place for place in self._places if os.path.exists(place))
        with tempfile.TemporaryDirectory() as directory:
            try:
                uploaded = py_modules.upload_py_modules_if_needed(
                    {"py_modules": places, "excludes": _EXCLUDES},
                    include_gitignore=False,  # It names code that is generated or built.
                    scratch_dir=directory,
                )
            except ray.exceptions.RuntimeEnvSetupError as error:
                text = " ".join(str(error.error_message).split())
                raise ConnectionError(
                    f"own code can't be shipped: {text}; .rayignore leaves files out here, and "
                    ".gitignore does not"
                ) from error
        self._uris = list(dict.fromkeys([*uploaded["py_modules"], *self._others]))
        self._uploaded_at = time.monotonic()


def own_modules() -> list[str]:
    """Returns the top-level packages and modules that are imported here and not installed.

    What is installed, in a directory `site-packages`, must be installed on the cluster too. The
    main script is not among them: what it defines travels by value.
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
    # The prefix doesn't tell: an environment may be made in the directory of a project.
    libraries = (sysconfig.get_path(name) for name in ("stdlib", "platstdlib"))
    return not _INSTALLED.isdisjoint(place.parts) or any(
        place.is_relative_to(pathlib.Path(library).resolve()) for library in libraries
    )


def _places(module: object) -> list[pathlib.Path]:
    """Returns a package's directories, or a module's file."""
    try:
        paths = [str(path) for path in module.__path__]  # type: ignore[attr-defined]
    except Exception:  # Odd objects in sys.modules are nobody's source.
        file = getattr(module, "__file__", None)
        paths = [file] if isinstance(file, str) and file.endswith(".py") else []
    return [pathlib.Path(path).resolve() for path in paths]
