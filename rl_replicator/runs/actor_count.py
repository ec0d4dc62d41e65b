"""The requested number of actors of a run, if `rl-replicator scale` has set it."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

FILE = "actors.json"
"""In the run's directory, which has it if the number was set."""


def read(run_dir: Path) -> int | None:
    """Returns the requested number of actors; None if only `--actors` counts."""
    try:
        actors = int(json.loads((run_dir / FILE).read_text("utf-8"))["actors"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return actors if actors >= 1 else None


def written(run_dir: Path) -> int:
    """Returns when the number was last set, in nanoseconds of the file system's clock, or 0."""
    try:
        return (run_dir / FILE).stat().st_mtime_ns
    except OSError:
        return 0


def with_wanted(options: Mapping[str, Any], run_dir: Path) -> Mapping[str, Any]:
    """Returns the options of a run with its requested number of actors.

    Args:
      options: the options by name; `actors` may still be that of the command.
      run_dir: directory of the run.
    """
    wanted = read(run_dir)
    return options if wanted is None else {**options, "actors": wanted}


def scaled(config: Mapping[str, Any], run_dir: Path) -> dict[str, Any]:
    """Returns the config of a run with its requested number of actors, for code that reads runs.

    Args:
      config: the config from `RunDirectory.config`, whose options are those of the command.
      run_dir: directory of the run.
    """
    return {**config, "options": with_wanted(config.get("options", {}), run_dir)}
