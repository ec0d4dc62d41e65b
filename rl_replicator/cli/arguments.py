"""Removes options from the words of a command before they are parsed. Imports nothing."""

from __future__ import annotations


def pop(words: list[str], option: str) -> list[str | None]:
    """Removes all occurrences of an option from the words of a command.

    If an option takes a single value, the last one counts, as in `options.parse`.

    Args:
      words: the words, which are changed.
      option: such as `--run-dir`; the words may spell it with underscores, and with `=`.

    Returns:
      Its values, in order; None for an occurrence without a value.
    """
    values: list[str | None] = []
    others: list[str] = []
    rest = list(words)
    while rest:
        word = rest.pop(0)
        key, equals, value = word.partition("=")
        if key.replace("_", "-") != option:
            others.append(word)
        elif equals:
            values.append(value)
        else:
            values.append(rest.pop(0) if rest and not rest[0].startswith("--") else None)
    words[:] = others
    return values
