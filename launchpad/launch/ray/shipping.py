"""Which code a cluster gets from the launcher."""

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
# Ray deletes what was uploaded and has not been used for 600 s.
_UPLOAD_AGAIN_SECS = 60.0
# What changes whenever something is imported is no other code.
_EXCLUDES = ["__pycache__", ".git"]


class Shipment:
    """The code that a program's nodes get from the launcher, as it is when this has loaded it.

    It is kept here, so that a node that starts again gets the same as its fellows, although the
    files may have changed, and Ray may have deleted what nobody used.
    """

    def __init__(self) -> None:
        import ray

        # What an actor is given replaces what whoever called ray.init() gave to all.
        self._others = ray.get_runtime_context().runtime_env.py_modules()
        self._lock = threading.Lock()
        self._packages: dict[str, _Package] = {}  # By where they were imported from.
        self._uploaded_at = time.monotonic()
        self.load()

    def load(self) -> None:
        """Adds what was imported since.

        Raises:
          ConnectionError: Ray does not take it.
        """
        with self._lock:
            for place in own_modules():
                if place not in self._packages:
                    package = _Package(place)
                    package.upload()
                    self._packages[place] = package

    def uris(self) -> list[str]:
        """Returns the names by which a node that starts now finds the code in Ray.

        Raises:
          ConnectionError: Ray does not take it.
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
      uri: Ray's name of it.
    """

    def __init__(self, place: str):
        from ray._private.runtime_env import packaging

        self._place = place
        with self._errors(), tempfile.TemporaryDirectory() as directory:
            file = pathlib.Path(directory, "package.zip")
            packaging.create_package(
                place,
                file,
                include_gitignore=False,  # It names code that is generated or built.
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
        except Exception as error:  # Ray's are of many types.
            text = " ".join(str(error).split())
            raise ConnectionError(
                f"{self._place} can't be shipped to the Ray cluster: {text}; .rayignore leaves "
                "files out here, and .gitignore does not"
            ) from error


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
