"""Generates the page of all commands, from the output of `--help` for each of them.

A hook of mkdocs.
"""

import contextlib
import io
from collections.abc import Iterator, Sequence

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

from rl_replicator.cli import main, trainables

PAGE = "reference/commands.md"


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the page to the site."""
    files.append(File.generated(config, PAGE, content=page()))
    return files


def page() -> str:
    """Returns the Markdown of the page."""
    parts = ["# Commands", _code(help_of([]))]
    for words in subjects():
        parts += [f"## {' '.join(words)}", _code(help_of(words))]
    return "\n\n".join(parts) + "\n"


def subjects() -> Iterator[tuple[str, ...]]:
    """Yields the words of each command, and of `train` with each name that it takes."""
    for name in main.names():
        if name == "train":
            yield from (("train", trainable) for trainable in trainables.names())
        else:
            yield (name,)


def help_of(words: Sequence[str]) -> str:
    """Returns what a command prints for `--help`."""
    with contextlib.redirect_stdout(io.StringIO()) as text:
        main.main([*words, "--help"])
    return text.getvalue()


def _code(text: str) -> str:
    return f"~~~~~~text\n{text.strip()}\n~~~~~~"
