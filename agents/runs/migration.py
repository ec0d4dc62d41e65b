"""Migrates the directory of a run of an earlier version to this one.

Each change of settings or variables needs a rule: a new setting gets the value that stands for the
behaviour of earlier runs (`agents.config.restored`), and new names are listed here.
"""

import re
import shutil
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

from agents.config import restored
from agents.runs.options import AgentOptions
from rl_replicator.checkpoints.checkpointer import Checkpointer
from rl_replicator.checkpoints.parts import VariableValues
from rl_replicator.errors import UsageError
from rl_replicator.runs.plain_data import stored_part, to_plain
from rl_replicator.runs.run_directory import RunDirectory

_OPTIONS = {"picture": "frame"}
_VARIABLES = (
    # 0.1.0 had all networks side by side; now they are in an online and a target group.
    (r"^module/target_(policy|critic|encoder)/", r"module/target/\1/"),
    (r"^module/(policy|critic|encoder)/", r"module/online/\1/"),
    # The layers of a critic below its head became a module.
    (r"^(module/(?:online|target)/critic)/(_torso|_trunk)/_layers/", r"\1/_torso/\2/_layers/"),
)
_LEARNER = "learner"
# Keep all checkpoints, however many the run has.
_KEEP = sys.maxsize


class SettingsSource(Protocol):
    """Provides the settings of an agent, as `agents.runs.command.AgentCommand` does."""

    def config_type(self, pixels: bool) -> type:
        """Returns the dataclass of the hyper-parameters, from pixels or from the state."""

    def options_from(self, plain: Mapping[str, Any]) -> AgentOptions:
        """Rebuilds the options of a run from plain data; what is missing has its default."""


def migrate(source: SettingsSource, run_dir: Path) -> list[str]:
    """Rewrites what this version could not continue, and keeps the originals.

    The old settings become `config.json.old`, and a new checkpoint follows the newest one. The
    settings are written last, so that the command can be repeated after a kill.

    Args:
      source: provides the settings of the agent.
      run_dir: the run's directory.

    Returns:
      A line for each change; none if the run is of this version.

    Raises:
      UsageError: if a process trains there, it cannot be written, or a newer version made the run.
      CheckpointError: if there is no space for the checkpoint.
    """
    run = RunDirectory(run_dir)
    found = run.config()
    if not all(isinstance(x, dict) for x in (found["identity"].get("agent"), found.get("options"))):
        raise UsageError(
            f"expected the settings of an agent and 'options' in {run_dir}/config.json, as "
            "'rl-replicator train' writes them, got something else"
        )
    with run.locked():
        old = run.config()
        new = _config(source, old)
        changes = []
        for folder in (run.checkpoints, run.best):
            changes += [f"{folder.name}: {line}" for line in _migrate_checkpoint(folder)]
        settings = [*_added("", old["identity"]["agent"], new["identity"]["agent"])]
        settings += [f"--{now} (formerly --{was})" for was, now in _renamed(old["options"])]
        if settings:
            run.replace_config(new)
        return [f"config.json: {line}" for line in settings] + changes


def _config(source: SettingsSource, config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the settings as this version would have written them."""
    options = dict(config["options"])
    for was, now in _renamed(options):
        options[now] = options.pop(was)
    kind = source.config_type("pixels" in config["identity"])
    # As they were requested; the identity has the values that the run chose when it began.
    options["agent"] = to_plain(restored(kind, stored_part(options, "agent", Mapping)))
    chosen = source.options_from(options)
    agent = to_plain(restored(kind, config["identity"]["agent"]))
    identity = chosen.identity | {"agent": agent}
    if "pixels" in identity:  # With the action repeat that was resolved when the run began.
        identity["pixels"] |= config["identity"]["pixels"]
    return {
        "trainable": config["trainable"],
        "identity": {"trainable": config["trainable"], **identity},
        "options": chosen.plain(),
        "score": chosen.score.plain(),
    }


def _renamed(options: Mapping[str, Any]) -> list[tuple[str, str]]:
    return [(was, now) for was, now in _OPTIONS.items() if was in options]


def _added(group: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[str]:
    for name, value in new.items():
        if name not in old:
            yield f"agent.{group}{name} = {value!r}"
        elif isinstance(value, Mapping):
            yield from _added(f"{group}{name}.", old[name], value)


def _migrate_checkpoint(folder: Path) -> Iterator[str]:
    """Adds a checkpoint with this version's variable names, if those of the newest one differ.

    Yields:
      A line on what was done.
    """
    checkpointer = Checkpointer(folder, _KEEP)
    newest = checkpointer.set_aside_damaged()
    if newest is None or _LEARNER not in newest.parts:
        return
    values = VariableValues.read(newest.path / _LEARNER)
    names = {name: _name(name) for name in values}
    if any(was != now for was, now in names.items()):
        parts: dict[str, Any] = {name: _Copied(newest.path / name) for name in newest.parts}
        parts[_LEARNER] = VariableValues({names[name]: value for name, value in values.items()})
        made = checkpointer.save(newest.step, parts)
        yield f"{made.path.name} has the variables of {newest.path.name} under their current names"


def _name(name: str) -> str:
    for pattern, replacement in _VARIABLES:
        name = re.sub(pattern, replacement, name)
    return name


class _Copied:
    """A part of a checkpoint that is copied as it is."""

    def __init__(self, source: Path):
        self._source = source

    def save(self, folder: Path) -> None:
        """See `rl_replicator.checkpoints.checkpointer.Part`."""
        shutil.copytree(self._source, folder, dirs_exist_ok=True)

    def restore(self, folder: Path) -> None:
        """Raises NotImplementedError: there is nothing to restore into."""
        raise NotImplementedError
