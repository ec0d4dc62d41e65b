"""docs/faults.md: every row names a test that exists."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "faults.md").read_text().partition("\n## ")[0]  # Without the measurements.
ROWS = [
    line
    for line in TEXT.splitlines()
    if line.startswith("|") and not line.startswith(("| fault", "|---"))
]


def cells(row):
    return [cell.strip() for cell in re.split(r"(?<!\\)\|", row)[1:-1]]


def test_the_table_is_read():
    assert len(ROWS) >= 30 and len({cells(row)[0] for row in ROWS}) == len(ROWS)


@pytest.mark.parametrize("row", ROWS, ids=[cells(row)[0] for row in ROWS])
def test_a_row_is_complete_and_held_by_a_test(row):
    assert len(cells(row)) == 6 and all(cells(row))
    path, _, name = re.fullmatch(r"`(tests/[\w/]+\.py)(::)(\w+)`", cells(row)[-1]).groups()
    tree = ast.parse((ROOT / path).read_text())
    assert name in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
