"""Copies of trials for population based training, and the record of where weights come from.

`lineage.json` in the directory of a trial lists the copies that have led to its weights. A copy is
recorded before it is made, so that a later process can repeat one that a kill has interrupted.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rl_replicator.checkpoints.manifest import link_or_copy
from rl_replicator.runs import atomic_file
from rl_replicator.runs.run_directory import RunDirectory

_FILE = "lineage.json"
_SNAPSHOT = "snapshot-"
_NUM_SNAPSHOTS = 2
# What is copied: the state, and the history that belongs to it. The target keeps its events, and
# its settings except the searched ones.
_COPIED: Mapping[str, Callable[[Path, Path], object]] = {
    "checkpoints": link_or_copy,
    "best": link_or_copy,
    "metrics": shutil.copy2,
    "tensorboard": shutil.copy2,
}


def read(folder: Path) -> list[dict[str, Any]]:
    """Returns the copies that have led to the weights of a trial, the first one first.

    Args:
      folder: directory of the trial.

    Returns:
      Mappings of `source` (the snapshot that was copied), `step`, `values` (the settings from
      then on) and `is_complete`.
    """
    path = folder / _FILE
    return json.loads(path.read_text()) if path.exists() else []


def origin(folder: Path) -> str:
    """Returns where the weights of a trial were copied from last, in words; "" if nowhere."""
    stages = read(folder)
    return f"{Path(stages[-1]['source']).parent.name} at {stages[-1]['step']:,}" if stages else ""


def snapshot(folder: Path, runs: Sequence[Path], step: int) -> Path:
    """Keeps the state of a trial whose runs have saved and ended, and removes older ones.

    Args:
      folder: directory of the trial.
      runs: directories of its runs.
      step: steps of its training.

    Returns:
      The folder of the snapshot.
    """
    target = folder / f"{_SNAPSHOT}{step:012}"
    shutil.rmtree(target, ignore_errors=True)
    for run in runs:
        (target / run.name).mkdir(parents=True)
        _copy_state(run, target / run.name)
    for old in sorted(folder.glob(f"{_SNAPSHOT}*"))[:-_NUM_SNAPSHOTS]:
        shutil.rmtree(old)
    return target


def begin(folder: Path, source: Path, step: int, values: Mapping[str, str]) -> None:
    """Records that a trial is going to be a copy of another one.

    Args:
      folder: directory of the trial.
      source: snapshot of the other trial.
      step: steps of its training.
      values: option -> value from now on, as written on the command line.
    """
    stage = {"source": str(source), "step": step, "values": dict(values), "is_complete": False}
    _write(folder, [*read(source), stage])


def complete(folder: Path, runs: Sequence[Path]) -> None:
    """Makes the copy that was recorded last, unless it is complete.

    Args:
      folder: directory of the trial.
      runs: directories of its runs; those of the source have the same names.

    Raises:
      OSError: if a file cannot be copied, for example because the disk is full.
      UsageError: if somebody else trains one of the runs, or there is no run.
    """
    stages = read(folder)
    if not stages or stages[-1]["is_complete"]:
        return
    last = stages[-1]
    for run in runs:
        while RunDirectory(run).is_live:  # Its former process is still ending.
            time.sleep(0.1)
        _copy_run(Path(last["source"]) / run.name, run, last["values"])
    _write(folder, [*stages[:-1], {**last, "is_complete": True}])


def _write(folder: Path, stages: Sequence[Mapping[str, Any]]) -> None:
    with atomic_file.replacing(folder / _FILE) as new:
        new.write_text(json.dumps(stages, indent=1) + "\n")


def _copy_run(source: Path, target: Path, values: Mapping[str, str]) -> None:
    with RunDirectory(target).locked():
        config = RunDirectory(target).config()
        _copy_state(source, target)
        for option, value in values.items():
            _set(config, option.replace("-", "_").split("."), float(value))
        identity = {key: value for key, value in config["identity"].items() if key != "trainable"}
        RunDirectory(target).describe(
            config["trainable"], identity, config["options"], config.get("score")
        )


def _copy_state(source: Path, target: Path) -> None:
    for name, make in _COPIED.items():
        shutil.rmtree(target / name, ignore_errors=True)
        if (source / name).is_dir():
            _copy(source / name, target / name, make)


def _copy(source: Path, target: Path, make: Callable[[Path, Path], object]) -> None:
    """Copies a folder without its hidden files.

    It raises the first error. `shutil.copytree` collects errors and drops their numbers, by which a
    full disk is recognised.
    """
    target.mkdir()
    for path in source.iterdir():
        if path.is_dir() and not path.name.startswith("."):
            _copy(path, target / path.name, make)
        elif not path.name.startswith("."):
            make(path, target / path.name)


def _set(config: Mapping[str, Any], path: Sequence[str], value: float) -> None:
    """Sets an option wherever a run's config has it: among the options and in the identity."""
    identity = config["identity"]
    # Learners keep their settings in a group of the identity.
    roots = [config["options"], identity, identity.get("config"), identity.get("options")]
    for group in roots:
        for name in path[:-1]:
            group = group.get(name) if isinstance(group, Mapping) else None
        if isinstance(group, dict) and path[-1] in group:
            group[path[-1]] = value
