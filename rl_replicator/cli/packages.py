"""The packages of this distribution, which modules of the user's may hide."""

import importlib.util
from importlib import metadata
from pathlib import Path

from rl_replicator.errors import UsageError

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
