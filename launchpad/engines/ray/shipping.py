"""Ships code of the launcher to a cluster."""

from __future__ import annotations

import contextlib
import os
import pathlib
import sys
import sysconfig
import tempfile
import threading
import time
from collections.abc import Iterator

_INSTALLED = {"site-packages", "dist-packages"}
# Ray deletes uploads that have not been used for 600 s.
_UPLOAD_AGAIN_SECS = 60.0
# Files that may change, for example at an import, although the code does not.
_EXCLUDES = ["__pycache__", ".git"]


class Shipment:
    """The code that a program's nodes get from the launcher, as it was when this loaded it.

    It is kept here so that a restarted node gets the same code as the others, although the files
    may have changed, and Ray may have deleted unused uploads.
    """

    def __init__(self) -> None:
        import ray

        # The modules of an actor replace those passed to ray.init(), so they must include them.
        self._others = ray.get_runtime_context().runtime_env.py_modules()
        self._lock = threading.Lock()
        self._packages: dict[str, _Package] = {}  # By path of origin.
        self._uploaded_at = time.monotonic()
        self.load()

    def load(self) -> None:
        """Adds what has been imported since the last call.

        Raises:
          ConnectionError: Ray does not accept it.
        """
        with self._lock:
            for place in own_modules():
                if place not in self._packages:
                    package = _Package(place)
                    package.upload()
                    self._packages[place] = package

    def uris(self) -> list[str]:
        """Returns Ray's URIs of the code, for a node that starts now.

        Raises:
          ConnectionError: Ray does not accept it.
        """
        with self._lock:
            packages = self._packages.values()
            now = time.monotonic()
            if now - self._uploaded_at > _UPLOAD_AGAIN_SECS:
                for package in packages:
                    package.upload()
                self._uploaded_at = now
            return list(dict.fromkeys([*(package.uri for package in packages), *self._others]))


class _Package:
    """A package's directory, or a module's file, in Ray's format.

    Attributes:
      uri: Ray's URI of it.
    """

    def __init__(self, place: str):
        from ray._private.runtime_env import packaging

        self._place = place
        with self._errors(), tempfile.TemporaryDirectory() as directory:
            file = pathlib.Path(directory, "package.zip")
            packaging.create_package(
                place,
                file,
                include_gitignore=False,  # It may list generated or built code.
                include_parent_dir=os.path.isdir(place),
                excludes=_EXCLUDES,
            )
            self.uri = packaging.get_uri_for_package(file)
            self._data = file.read_bytes()

    def upload(self) -> None:
        """Keeps Ray from deleting it for a while, and uploads it unless Ray has it."""
        from ray._private.runtime_env import packaging

        with self._errors():
            packaging.pin_runtime_env_uri(self.uri)
            if not packaging.package_exists(self.uri):
                packaging.upload_package_to_gcs(self.uri, self._data)

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # Ray raises errors of many types.
            text = " ".join(str(error).split())
            raise ConnectionError(
                f"{self._place} can't be shipped to the Ray cluster: {text}; .rayignore leaves "
                "files out here, and .gitignore does not"
            ) from error


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
