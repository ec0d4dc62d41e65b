"""The origin of a trial's weights: copies of other trials' runs, and the record of these copies.

RUN_DIR/lineage.json in the directory of each run lists the stages of its training.
"""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rl_replicator.checkpoints.links import link_or_copy
from rl_replicator.runs.run_directory import RunDirectory

_FILE = "lineage.json"
# What is copied: the state, and the history that belongs to it. The target keeps its events, and
# its settings except the searched ones.
_COPIED = ("checkpoints", "best", "metrics", "tensorboard")


@dataclasses.dataclass(frozen=True)
class Stage:
    """A part of the training that has led to the weights of a trial.

    Attributes:
      step: step of the training at which it began, as evaluations count steps.
      trial: number of the trial that was trained.
      source: number of the trial whose runs it copied at `step`; None at the start.
      values: option -> value, as written on the command line.
    """

    step: int
    trial: int
    source: int | None
    values: Mapping[str, str]

    @property
    def origin(self) -> str:
        """Where the stage begins, in words."""
        return "the start" if self.source is None else f"trial {self.source} at {self.step:,}"


def write(run_dir: Path, stages: Sequence[Stage]) -> None:
    """Writes the lineage of a run, atomically.

    Args:
      run_dir: directory of the run.
      stages: the stages of its trial, the first one first.
    """
    new = run_dir / f"{_FILE}.new"
    new.write_text(json.dumps(_plain(stages), indent=2) + "\n")
    os.replace(new, run_dir / _FILE)


def is_written(run_dir: Path, stages: Sequence[Stage]) -> bool:
    """Returns whether the directory of a run holds this lineage.

    Args:
      run_dir: directory of the run.
      stages: the stages of its trial.
    """
    try:
        return json.loads((run_dir / _FILE).read_text()) == _plain(stages)
    except (OSError, ValueError):
        return False


def copy_run(source: Path, target: Path, stages: Sequence[Stage]) -> None:
    """Replaces the state of a run by that of another one, which does not change.

    It can be repeated after an interruption, because the lineage is written last.

    Args:
      source: directory of the run to copy.
      target: directory of the run to replace.
      stages: lineage of `target` from now on; the values of the last one become its settings.

    Raises:
      OSError: if a file cannot be copied, for example because the disk is full.
      UsageError: if another process trains in `target`, or there is no run; nothing was copied.
    """
    with RunDirectory(target).locked():
        config = RunDirectory(target).config()
        for name in _COPIED:
            shutil.rmtree(target / name, ignore_errors=True)
            if (source / name).is_dir():
                # Files of checkpoints are never changed in place, so links save space and time.
                make = link_or_copy if name in ("checkpoints", "best") else shutil.copy2
                _copy(source / name, target / name, make)
        for option, value in stages[-1].values.items():
            _set(config, option.replace("-", "_").split("."), float(value))
        identity = {
            name: value for name, value in config["identity"].items() if name != "trainable"
        }
        RunDirectory(target).describe(
            config["trainable"], identity, config["options"], config.get("score")
        )
        write(target, stages)


def _plain(stages: Sequence[Stage]) -> list[dict[str, Any]]:
    return [
        {
            "step": stage.step,
            "trial": stage.trial,
            "copied_from": stage.source,
            "values": dict(stage.values),
        }
        for stage in stages
    ]


def _copy(source: Path, target: Path, make: Callable[[Path, Path], object]) -> None:
    """Copies a folder without its hidden files.

    It raises the first error. `shutil.copytree` collects errors and drops their numbers, by which a
    full disk is recognised.
    """
    target.mkdir()
    for path in source.iterdir():
        if path.name.startswith("."):
            continue
        if path.is_dir():
            _copy(path, target / path.name, make)
        else:
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
