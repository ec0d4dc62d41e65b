"""The words of a command, before its options are read. Imports nothing."""

from __future__ import annotations


def pop(words: list[str], option: str) -> list[str | None]:
    """Removes an option from the words of a command, as often as it is there.

    Of an option with a single value, the last one counts, as for `options.parse`.

    Args:
      words: the words, which are changed.
      option: such as `--run-dir`; it may be written with underscores, and with `=`.

    Returns:
      Its values, in order; None where it has none.
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
