"""Command-line options from a dataclass, by tyro."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar

import tyro

from rl_replicator.errors import UsageError

Options = TypeVar("Options")
# The type of a positional directory; the options class documents what it is.
RunDir = Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN_DIR")]
# The type of a positional list of directories; the options class documents what they are.
RunDirs = Annotated[
    tuple[Path, ...],
    tyro.conf.Positional,
    tyro.conf.arg(metavar="RUN_DIR [RUN_DIR ...]", help_behavior_hint="(required)"),
]


def parse(
    kind: type[Options],
    command: str,
    args: Sequence[str],
    default: Options | None = None,
    description: str | None = None,
) -> Options:
    """Reads `args` into a dataclass. `--help` prints the options and exits.

    If an option is given twice, the last one counts, as users expect when they append options to a
    command.

    Args:
      kind: the dataclass. A nested one becomes `--field.name`.
      command: the command as the user typed it, such as 'rl-replicator train d4pg'.
      args: the words after it.
      default: an instance with the values of options that are not given; `tyro.MISSING` in a field
        makes its option required. A field of type Any has the type of its value there.
      description: the text before the options. Default: the docstring of `kind`.

    Raises:
      SystemExit: with status 2 if an option is unknown, missing or of the wrong type, or if the
        dataclass refuses a value, once a message has been printed; with 0 after `--help`.
    """
    start: Any = {} if default is None else {"default": default}
    return tyro.cli(kind, prog=command, args=args, description=description, **start)


def parse_known(default: Options, args: Sequence[str]) -> tuple[Options, list[str]]:
    """Reads the options of a dataclass, and also returns the words that are none of them.

    Args:
      default: an instance with the values of options that are not given.
      args: the words of the command, of which the dataclass takes none by their position.
    """
    return tyro.cli(
        type(default), args=args, default=default, return_unknown_args=True, add_help=False
    )


def divide(args: Sequence[str], own: set[str]) -> tuple[list[str], list[str]]:
    """Splits the words of a command into its own and those that it passes to `train`.

    Args:
      args: the words after the command.
      own: options of the command itself.

    Returns:
      The words before the first option, `--help`, and the options in `own` with their values; and
      all other words.
    """
    ours: list[str] = []
    theirs: list[str] = []
    target = ours
    for word in args:
        if word.startswith("-"):
            name = word.partition("=")[0].replace("_", "-")
            target = ours if name in {*own, "-h", "--help"} else theirs
        target.append(word)
    return ours, theirs


def check_not_given(words: Sequence[str], names: Collection[str], command: str) -> None:
    """Checks that a command that takes the options of `train` is not given some of them.

    Args:
      words: the words for `train`.
      names: the options that it does not take, each with `--`.
      command: the command as the user typed it.

    Raises:
      UsageError: if there is one of them.
    """
    for word in words:
        if word.partition("=")[0].replace("_", "-") in names:
            raise UsageError(
                f"expected no {word} after '{command}', which sets it for each run, or takes only "
                "single options in its place"
            )


def names_of(kind: type) -> set[str]:
    """Returns the options that a command's own dataclass defines, each with `--`."""
    return {f"--{field.name.replace('_', '-')}" for field in dataclasses.fields(kind)}
