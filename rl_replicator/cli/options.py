"""Command-line options from a dataclass, with one-line errors."""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import os
import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar

import tyro
from tyro.constructors import (
    ConstructorRegistry,
    StructConstructorSpec,
    StructFieldSpec,
    StructTypeInfo,
)

from rl_replicator.cli import printed
from rl_replicator.errors import UsageError

Options = TypeVar("Options")
# The type of a positional list of directories; the options class documents what they are.
RunDirs = Annotated[
    tuple[Path, ...],
    tyro.conf.Positional,
    tyro.conf.arg(metavar="RUN_DIR [RUN_DIR ...]", help_behavior_hint="(required)"),
]

_KINDS = {"INT": "a whole number", "FLOAT": "a number", "STR": "a string", "PATH": "a path"}
# Terminal widths for tyro: wider than any message, so that none is wrapped; and narrow enough that
# the help lists the options in one column.
_UNBROKEN, _ONE_COLUMN = 2000, 80


def parse(
    kind: type[Options],
    command: str,
    args: Sequence[str],
    alternatives: Mapping[str, type] | None = None,
    default: Options | None = None,
) -> Options:
    """Reads `args` into a dataclass. `--help` prints the options and exits.

    Args:
      kind: the dataclass. A nested one becomes `--field.name`.
      command: the command as the user typed it, such as 'rl-replicator train d4pg'.
      args: the words after it.
      alternatives: flags that change the options -> the dataclass of the options with the flag. If
        an unknown option exists with a flag, the error names the flag.
      default: an instance with the values of options that are not given.

    Returns:
      An instance of `kind`.

    Raises:
      UsageError: if an option is unknown, missing or of the wrong type, if one with several values
        is given twice, or if the dataclass refuses a value. The text is one line.
    """
    _check_given_once(kind, command, args)
    start: Any = {} if default is None else {"default": default}
    if "-h" in args or "--help" in args:
        return tyro.cli(kind, prog=command, args=args, registry=_help_texts(), **start)
    with _columns(_UNBROKEN), printed.by_this_thread("stderr") as box:
        try:
            return tyro.cli(kind, prog=command, args=args, **start)
        except SystemExit:
            pass
    words = [arg for arg in args if ":" in arg and not arg.startswith("-")]
    declared = declared_options(kind, command) | declared_options(kind, command, words)
    for flag, other in (alternatives or {}).items():
        unknown = [name for name in _names(args) if name not in declared]
        if unknown and unknown[0] in declared_options(other, command):
            raise UsageError(f"expected {flag} with {unknown[0]}, got no {flag}; add it")
    raise UsageError(_message(box.getvalue(), declared, command, args))


def _help_texts() -> ConstructorRegistry:
    """Returns rules that make the help show the docstrings of fields as paragraphs.

    tyro itself keeps their line breaks, because it takes indented lines for list items.
    """
    registry, is_asking = ConstructorRegistry(), False

    @registry.struct_rule
    def explain(info: StructTypeInfo) -> StructConstructorSpec | None:
        nonlocal is_asking
        if is_asking or not dataclasses.is_dataclass(info.type):
            return None  # tyro's own rules apply.
        is_asking = True
        spec = ConstructorRegistry.get_struct_spec(info)
        is_asking = False
        if not isinstance(spec, StructConstructorSpec):
            return None
        return dataclasses.replace(spec, fields=tuple(map(_explained, spec.fields)))

    return registry


def _explained(field: StructFieldSpec) -> StructFieldSpec:
    text = field.helptext() if callable(field.helptext) else field.helptext
    if not text:
        return field
    text = re.sub(r"(?<!\n)\n(?![\n*-])", " ", text)
    kind: Any = field.type
    if re.search(r"\bDefault\b", text):  # Then "(default: None)" would be redundant.
        kind = Annotated[kind, tyro.conf.arg(help_behavior_hint=_unless_none)]
    return dataclasses.replace(field, type=kind, helptext=text)


def _unless_none(default: str) -> str:
    return "" if default == "None" else f"(default: {default})"


def _check_given_once(kind: type, command: str, args: Sequence[str]) -> None:
    """Checks that no list is given twice: the parser would silently drop the first one.

    If an option takes a single value, the last one counts, as users expect when they append options
    to a command.
    """
    names = _names(args)
    twice = sorted({name for name in names if names.count(name) > 1})
    declared = declared_options(kind, command) if twice else {}
    for name in twice:
        if "..." in declared.get(name, ""):
            count = names.count(name)
            raise UsageError(f"{name}: expected once, with all values after it, got {count} times")


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
        if word == "-h":
            word = "--help"
        if word.startswith("--"):
            name = word.partition("=")[0].replace("_", "-")
            target = ours if name in {*own, "--help"} else theirs
        target.append(word)
    return ours, theirs


def check_no_config(words: Sequence[str], command: str) -> None:
    """Checks that a command that takes the options of `train` is not given a file of options.

    Args:
      words: the words for `train`.
      command: the command as the user typed it.

    Raises:
      UsageError: if there is `--config`.
    """
    if any(word.partition("=")[0] == "--config" for word in words):
        raise UsageError(
            f"expected no --config after '{command}', which only 'rl-replicator train' takes; give "
            "the settings of the file as options"
        )


def names_of(kind: type) -> set[str]:
    """Returns the options that a command's own dataclass defines, each with `--`."""
    return {f"--{field.name.replace('_', '-')}" for field in dataclasses.fields(kind)}


def _names(args: Sequence[str]) -> list[str]:
    """Returns the options among the words."""
    names = [arg.partition("=")[0].replace("_", "-") for arg in args]
    return [name for name in names if name.startswith("--")]


def declared_options(kind: type, command: str, words: Sequence[str] = ()) -> dict[str, str]:
    """Returns the options of a dataclass and the type of each, read from its help.

    Args:
      kind: the dataclass.
      command: the command as the user typed it.
      words: words that select a dataclass of a union, such as 'field:inner'; others are ignored.
        The result has the options that may follow them.
    """
    with one_column(), printed.by_this_thread("stdout") as text, contextlib.suppress(SystemExit):
        tyro.cli(kind, prog=command, args=[*words, "--help"])
    return read_help(text.getvalue())


def divide_at_members(kind: type, command: str, words: Sequence[str]) -> list[list[str]]:
    """Splits the words of a command before each word that selects a dataclass of a union.

    The parser accepts an option only in the part of its dataclass, or in the first part if the
    option is in no union.

    Args:
      kind: the dataclass of the options.
      command: the command as the user typed it.
      words: its words.

    Returns:
      The parts; the first one may be empty, and each of the others begins with such a word.
    """
    parts: list[list[str]] = [[]]
    members: list[str] = []
    declared = None
    for word in words:
        if ":" in word and not word.startswith("-"):  # It may be a value, such as that of --env.
            declared = declared_options(kind, command, members) if declared is None else declared
            after = declared_options(kind, command, [*members, word])
            if after != declared:
                members.append(word)
                parts.append([])
                declared = after
        parts[-1].append(word)
    return parts


def one_column() -> contextlib.AbstractContextManager[None]:
    """Returns a context in which help texts list the options in one column."""
    return _columns(_ONE_COLUMN)


def read_help(text: str) -> dict[str, str]:
    """Returns the options in a help text with one column, and the type of each."""
    declared = {"--help": ""}
    for line in _text_lines(text):
        first = re.match(r"(?:-\w, )?(--[\w.-]+)(?:, (--[\w.-]+))?(?: (\S.*?))?(?:  |$)", line)
        if first:
            name, opposite, value = first.groups()
            declared[name] = value or ""
            if opposite:
                declared[opposite] = ""
    return declared


def _message(box: str, declared: dict[str, str], command: str, args: Sequence[str]) -> str:
    """Turns tyro's box of several lines into a message of one line."""
    see = f"'{command} --help' lists the options"
    lines = _text_lines(box)
    for line in lines:
        place = re.fullmatch(rf"(--\S+) \(applied to {re.escape(command)} (\S+).*\)", line)
        if place and place[1] in declared:
            return f"expected {place[1]} before {place[2]!r}, got it after; put it there"
    for arg in args:
        name = arg.partition("=")[0].replace("_", "-")
        if arg.startswith("--") and name not in declared:
            near = _close_matches(name, declared) or _same_ending(name, declared)
            hint = f"did you mean {near[0]}?" if near else see
            return f"expected an option of '{command}', got {arg.partition('=')[0]!r}; {hint}"
    text = " ".join(lines[1:2])
    if unknown := re.match(r"Unrecognized options: (\S+)", text):
        return f"expected only options after '{command}', got {unknown[1].rstrip(',')!r}; {see}"
    if text.startswith("Missing from"):
        return f"expected {lines[2]}, got nothing; {see}"
    if missing := re.match(r"Missing value for argument '(\S+)'", text):
        kind = _kind(declared.get(missing[1], ""))
        return f"expected {kind} after {missing[1]}, got nothing; {see}"
    if choice := re.match(
        r"invalid choice (.*) for argument '(\S+)'. Expected one of \((.*)\)", text
    ):
        given, name, choices = choice.groups()
        expected = choices.rstrip(",").replace(", ", " or ")  # A tuple, perhaps of one element.
        return f"expected {expected} for {name}, got {given}; {see}"
    if wrong := re.match(r"Error parsing (--\S+): ", text):
        name = wrong[1]
        kind = _kind(declared.get(name, ""))
        return f"expected {kind} for {name}, got {_given(name, args)}; {see}"
    # The dataclass itself refused a value; the text says why.
    return re.sub(r"^Error parsing [\w.-]+: ", "", text) or f"expected other options; {see}"


def _kind(value: str) -> str:
    """Describes a type in tyro's notation: 'None or a number' for '{None}|FLOAT'."""
    words = []
    for part in value.split("|"):
        if several := re.fullmatch(r"\[(\w+) \[\1 \.\.\.\]\]", part):
            words.append(f"a list such as '{several[1]} {several[1]}'")
        else:
            words.append(_KINDS.get(part, part.strip("{}")))
    return " or ".join(words) or "a value"


def _close_matches(name: str, declared: dict[str, str]) -> list[str]:
    """Returns the options that resemble `name` even without the leading groups that both share."""

    def is_close(option: str) -> bool:
        given, there = name[2:].split("."), option[2:].split(".")
        while len(given) > 1 and len(there) > 1 and given[0] == there[0]:
            del given[0], there[0]
        return bool(difflib.get_close_matches(".".join(given), [".".join(there)]))

    return [option for option in difflib.get_close_matches(name, declared, n=5) if is_close(option)]


def _same_ending(name: str, declared: dict[str, str]) -> list[str]:
    """Returns an option that ends like `name`: `--agent.learning-rate` for `--learning-rate`."""
    return [option for option in declared if option.endswith("." + name[2:])][:1]


def _given(name: str, args: Sequence[str]) -> str:
    """Returns the words that the user has written after the option `name`."""
    words: list[str] = []
    for index, arg in enumerate(args):
        key, equals, value = arg.partition("=")
        if key.replace("_", "-") == name:
            words = [value] if equals else []
            for word in args[index + 1 :]:
                if equals or word.startswith("--"):
                    break
                words.append(word)
    return repr(" ".join(words))


def _text_lines(box: str) -> list[str]:
    """Returns the lines of a printed box, without its frame.

    The frame consists of box-drawing characters, or of hyphens if the output is limited to ASCII.
    """
    bare = "".join(
        " " if 0x2500 <= ord(char) <= 0x257F else char
        for char in re.sub(r"\x1b\[[0-9;]*m", "", unicodedata.normalize("NFC", box))
    )
    return [line.strip() for line in bare.splitlines() if line.strip(" -")]


@contextlib.contextmanager
def _columns(count: int) -> Iterator[None]:
    before = os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = str(count)
    try:
        yield
    finally:
        if before is None:
            del os.environ["COLUMNS"]
        else:
            os.environ["COLUMNS"] = before
