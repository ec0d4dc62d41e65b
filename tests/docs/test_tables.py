"""Tables of the documentation are tables: a separator, and rows of as many cells as the header."""

import re

import pytest

from tests.docs.references import DOCUMENTS

_SEPARATOR = re.compile(r"\|( ?:?-+:? ?\|)+")
_EDGE = re.compile(r"(?<!\\)\|")


def tables(lines):
    """Runs of lines outside fences that begin with a bar, as (number of the first line, rows)."""
    found, fenced = [], False
    for number, line in enumerate(lines, 1):
        line = line.strip()
        fenced ^= line.startswith("```")
        if fenced or not line.startswith("|"):
            continue
        if found and found[-1][0] + len(found[-1][1]) == number:
            found[-1][1].append(line)
        else:
            found.append((number, [line]))
    return found


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_tables_are_tables(document):
    for number, rows in tables(document.read_text().splitlines()):
        where = f"{document.name}:{number}"
        assert len(rows) > 2 and _SEPARATOR.fullmatch(rows[1]), f"{where}: no separator"
        edges = len(_EDGE.findall(rows[0]))
        for row in rows:
            assert row.endswith("|") and len(_EDGE.findall(row)) == edges, f"{where}: {row}"
