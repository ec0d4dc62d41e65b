"""What can be trained: objects that packages register under an entry point group."""

from __future__ import annotations

import copy
import difflib
import pkgutil
from collections.abc import Callable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, Protocol

from rl_replicator.errors import UsageError
from rl_replicator.runs.run import SILENT, RunListener
from rl_replicator.runs.run_directory import RunDirectory

GROUP = "rl_replicator.trainables"
# What makes a learner of a user's function. By name, because agents do not need it.
_OF_MODULE = "rl_replicator.learners.command:of_module"


class Trainable(Protocol):
    """Something that `rl-replicator train` trains."""

    def parse(self, words: Sequence[str], stored: Mapping[str, Any]) -> Any:
        """Reads options from the words of a command; a bad one ends it with a message.

        Args:
          words: the words after the name of what is trained.
          stored: options by name that a run or a file has stored, without those in `words`.
        """

    def options_from(self, plain: Mapping[str, Any]) -> Any:
        """Rebuilds options from plain data.

        Args:
          plain: options by name, as in the `options` of a run's config.json. Missing ones have
            their defaults.

        Returns:
          A frozen dataclass.

        Raises:
          UsageError: if an option is unknown, missing, or of another type.
        """

    def may_change(self, option: str) -> bool:
        """Returns whether training from a checkpoint uses a new value of an option.

        Called only for real numbers: options of other types may set the size of something.

        Args:
          option: its name without the leading hyphens, such as `agent.critic-learning-rate`.
        """

    def train(self, options: Any, listener: RunListener = SILENT) -> int | None:
        """Trains, and returns the exit status (None is 0).

        Args:
          options: what `parse` or `options_from` has returned.
          listener: is notified of the run and its evaluations.
        """

    @property
    def evaluation_options_type(self) -> type:
        """Frozen dataclass of the options of an evaluation."""

    @property
    def evaluate(self) -> Callable[..., int | None]:
        """Method that evaluates the newest checkpoint of a run and prints the result.

        Its arguments are the directory of the run and, by name, the fields of
        `evaluation_options_type`. It returns the exit status (None is 0).
        """


def check_kept(stored: Mapping[str, Any], given: Mapping[str, Any]) -> None:
    """Refuses another preset or other observations than those of stored settings.

    All other settings are stored as well, so they would remain those of the old preset or
    observations.

    Args:
      stored: options by name.
      given: options by name that replace them.

    Raises:
      UsageError: if `given` changes one of the two.
    """
    for name in ("preset", "pixels"):
        value = given.get(name)
        if value is not None and stored.get(name, value) != value:
            raise UsageError(
                f"--{name}: expected that of the stored settings, {stored[name]}, got {value}; "
                "leave it out, or start without these settings"
            )


def names() -> list[str]:
    """Returns the registered names, sorted. Imports none of them."""
    return sorted(metadata.entry_points(group=GROUP).names)


def load(name: str) -> Trainable:
    """Imports what is registered as `name`, or a user's own `package.module:make_learner`.

    Returns:
      The trainable. If it is a dataclass with a field `name`, that is set to `name`, which runs
      store and by which they are loaded.

    Raises:
      UsageError: if nothing is registered under that name, or there is no such module.
    """
    if ":" in name:
        return _named(pkgutil.resolve_name(_OF_MODULE)(name), name)
    known = names()
    if name not in known:
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        if not known:
            hint = "; the project is not installed: 'pip install --no-deps -e .' registers them"
        raise UsageError(
            f"expected something to train ({', '.join(known) or 'none is registered'}, or "
            f"module:make_learner), got {name!r}{hint}"
        )
    (entry,) = metadata.entry_points(group=GROUP, name=name)
    return _named(entry.load(), name)


def _named(trainable: Any, name: str) -> Any:
    if "name" not in getattr(trainable, "__dataclass_fields__", ()):
        return trainable
    named = copy.copy(trainable)  # `dataclasses.replace` would call a custom constructor.
    object.__setattr__(named, "name", name)
    return named


def of_run(run_dir: Path) -> Trainable:
    """Imports what the run in `run_dir` trains.

    Raises:
      UsageError: if it is not the directory of a run.
    """
    run = RunDirectory(run_dir)
    run.check_single()
    return load(str(run.config().get("trainable")))
