"""The texts of `--help`."""

import dataclasses
import re

import pytest

from rl_replicator.cli import options
from rl_replicator.errors import UsageError


@dataclasses.dataclass(frozen=True)
class Inner:
    """What is nested."""

    size: int = 3
    """The first line of a text that is too long for one line of the source, and the
    second one."""


@dataclasses.dataclass(frozen=True)
class Outer:
    """What to do."""

    name: str
    """A text of two paragraphs, of which the first one has two lines, and the second line
    `begins` with a backtick.

    - first
    - second"""
    folder: str | None = None
    """Where to. Default: a new one
    (under `runs/`)."""
    inner: Inner = Inner()


def _help(capsys, monkeypatch, **start):
    monkeypatch.setenv("COLUMNS", "2000")
    with pytest.raises(SystemExit):
        options.parse(Outer, "act", ["--help"], **start)
    lines = capsys.readouterr().out.splitlines()
    bare = [re.sub(r"\s+", " ", line.strip("│╭╮╰╯─ ")) for line in lines]
    return [line for line in bare if line]


def test_the_lines_of_a_docstring_are_one_paragraph(capsys, monkeypatch):
    text = _help(capsys, monkeypatch)
    first = "--name STR A text of two paragraphs, of which the first one has two lines, and the"
    start = text.index(f"{first} second line `begins` with a backtick.")
    assert text[start + 1 : start + 3] == ["- first", "- second (required)"]
    inner = "--inner.size INT The first line of a text that is too long for one line of the source,"
    assert f"{inner} and the second one. (default: 3)" in text


def test_a_default_that_the_text_tells_is_not_repeated(capsys, monkeypatch):
    line = "--folder {None}|STR Where to. Default: a new one (under `runs/`)."
    assert line in _help(capsys, monkeypatch)
    start = Outer(name="a", folder="here")
    assert f"{line} (default: here)" in _help(capsys, monkeypatch, default=start)


@pytest.mark.parametrize(
    ("word", "hint"),
    [
        ("--inner.siez", "did you mean --inner.size?"),
        ("--iner.size", "did you mean --inner.size?"),
        ("--size", "did you mean --inner.size?"),
        ("--inner.depth", "'act --help' lists the options"),  # Only the group's name is similar.
        ("--lr", "'act --help' lists the options"),
    ],
)
def test_only_a_near_name_is_suggested(word, hint):
    with pytest.raises(UsageError, match=f"got '{word}'; {re.escape(hint)}$"):
        options.parse(Outer, "act", ["--name", "a", word, "3"])


@dataclasses.dataclass(frozen=True)
class Choice:
    name: str = "x"
    size: int = 1
    inner: Inner | None = None


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["inner:inner", "--size", "3"], "expected --size before 'inner:inner', got it after; put"),
        (["inner:none", "--size", "3"], "expected --size before 'inner:none', got it after; put"),
        (
            ["inner:inner", "--inner.size", "4", "--size", "3"],
            "expected --size before 'inner:inner', got it after; put it there",
        ),
        (
            ["inner:inner", "--inner.size", "x"],
            "expected a whole number for --inner.size, got 'x'",
        ),
        (
            ["--size", "x", "--name", "a.b:c", "inner:inner", "--inner.size", "4"],
            "expected a whole number for --size, got 'x'",
        ),
        (["--inner.size", "4"], "expected an option of 'act', got '--inner.size'"),
        (["inner:inner", "--inner.sise", "4"], "'--inner.sise'; did you mean --inner.size"),
    ],
)
def test_options_beside_a_word_that_chooses_a_dataclass(words, message):
    with pytest.raises(UsageError, match=rf"^[^\n]*{re.escape(message)}[^\n]*$"):
        options.parse(Choice, "act", words)


def test_a_word_chooses_a_dataclass():
    chosen = options.parse(Choice, "act", ["--size", "2", "inner:inner", "--inner.size", "4"])
    assert chosen == Choice(size=2, inner=Inner(4))
