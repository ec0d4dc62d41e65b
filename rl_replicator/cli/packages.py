"""The installed packages: which modules of the user's hide ours, and which do not fit."""

from __future__ import annotations

import importlib.util
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from rl_replicator.errors import UsageError

if TYPE_CHECKING:
    from packaging.requirements import Requirement

_ROOT = Path(__file__).parents[2]


def check() -> None:
    """Refuses modules of the user's in the place of our packages.

    Raises:
      UsageError: if there are any.
    """
    try:
        names = metadata.distribution("rl-replicator").read_text("top_level.txt") or ""
    except metadata.PackageNotFoundError:  # It runs from its sources.
        return
    for name in names.split():
        if not (_ROOT / name).is_dir():
            continue
        spec = importlib.util.find_spec(name)
        places = (spec and spec.submodule_search_locations) or [str(spec and spec.origin)]
        found = Path(next(iter(places))).absolute()
        if found != _ROOT / name:
            raise UsageError(
                f"expected the package {name} in {_ROOT / name}, found {found}, which comes first "
                "on Python's path; rename or remove it"
            )


def check_numpy() -> None:
    """Refuses a NumPy with which TensorFlow cannot be imported.

    Raises:
      UsageError: if it is installed.
    """
    for requirement in requirements("tensorflow"):
        version = installed("numpy") if requirement.name == "numpy" else None
        if version and not requirement.specifier.contains(version, prereleases=True):
            raise UsageError(
                f"expected {requirement}, as TensorFlow requires (pip said so when it installed "
                f"another one), got {version}; pip install '{requirement}'"
            )


def installed(name: str) -> str | None:
    """Returns the version of a distribution; None if it is not installed."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def requirements(name: str) -> list[Requirement]:
    """Returns what a distribution requires without its extras; [] if it is not installed."""
    # Imported here to keep `rl-replicator --help` fast.
    from packaging.requirements import InvalidRequirement, Requirement

    try:
        lines = metadata.requires(name) or []
    except metadata.PackageNotFoundError:
        return []
    found = []
    for line in lines:
        try:
            requirement = Requirement(line)
        except InvalidRequirement:
            continue
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            found.append(requirement)
    return found
