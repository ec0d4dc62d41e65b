"""Hints for names that are misspelt."""

import difflib
from collections.abc import Iterable


def hint(prefix: str, name: str, known: Iterable[str]) -> str:
    """Returns a suggestion of similar names for an error message; "" if there are none."""
    near = difflib.get_close_matches(name, known, n=2)
    return f"; did you mean {' or '.join(prefix + other for other in near)}?" if near else ""
