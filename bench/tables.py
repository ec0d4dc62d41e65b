"""Makes the tables of measured figures in bench/results/README.md and docs/ from result files.

    python -m bench.tables

A table of a benchmark, from bench/results/*.json, stands between two comments, the first of which
names the benchmark, the units that become columns, and, to select figures, patterns of their names:

    <!-- bench: actors; environment steps/s; only actor* | EnvPool* -->
    <!-- end of bench -->

Tables of suites, from docs/results/*.csv, are described in `bench/suite_tables.py`.
"""

from __future__ import annotations

import fnmatch
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench import suite_tables
from bench.harness import RESULTS, ROOT, three_digits

_BLOCK = re.compile(
    r"(?P<begin><!-- bench: (?P<words>[^>]*?) -->\n).*?(?P<end><!-- end of bench -->)", re.S
)
_ONLY = "only "


def rewrite(text: str, results: Path, link: str) -> str:
    """Returns a Markdown text with all its tables of measurements regenerated.

    Args:
      text: text of the file.
      results: folder of the result files.
      link: path from the Markdown file to that folder.

    Raises:
      ValueError: if a comment names a unit without figures.
    """

    def table(block: re.Match[str]) -> str:
        return block["begin"] + _table(block["words"], results, link) + block["end"]

    return _BLOCK.sub(table, text)


def _table(words: str, results: Path, link: str) -> str:
    name, *units = (word.strip() for word in words.split(";"))
    patterns = ["*"]
    if units and units[-1].startswith(_ONLY):
        patterns = [word.strip() for word in units.pop().removeprefix(_ONLY).split("|")]
    path = results / f"{name}.json"
    if not path.is_file():
        return f"Not measured yet: `python -m bench.{name}`.\n"
    document = json.loads(path.read_text())
    cells: dict[str, dict[str, Mapping[str, Any]]] = {}
    for row in document["rows"]:
        if any(fnmatch.fnmatchcase(row["figure"], pattern) for pattern in patterns):
            cells.setdefault(row["figure"], {})[row["unit"]] = row
    for unit in units:
        if not any(unit in row for row in cells.values()):
            raise ValueError(f"expected a unit of {path.name}, got {unit!r} in {words!r}")
    head: list[str] = [""]
    for unit in units:
        head += [unit, *(["compared"] if _has_ratio(cells, unit) else [])]
    lines = [head, ["---"] * len(head)]
    for figure, row in cells.items():
        line = [figure]
        for unit in units:
            found = row.get(unit, {})
            line.append(_spread(found) if found else "")
            if _has_ratio(cells, unit):
                line.append(_ratio(found))
        if any(line[1:]):
            lines.append(line)
    made = "".join("| " + " | ".join(line) + " |\n" for line in lines)
    return f"{_caption(document, path, link)}\n\n{made}"


def _has_ratio(cells: Mapping[str, Mapping[str, Mapping[str, Any]]], unit: str) -> bool:
    return any("ratio" in row.get(unit, {}) for row in cells.values())


def _spread(row: Mapping[str, Any]) -> str:
    median, least, most = (three_digits(row[key]) for key in ("median", "least", "most"))
    return median if least == most else f"{median} ({least} to {most})"


def _ratio(row: Mapping[str, Any]) -> str:
    if "ratio" not in row:
        return ""
    ratio = row["ratio"]
    return f"{ratio['median']:.2f} x {row['peer']} ({ratio['least']:.2f} to {ratio['most']:.2f})"


def _caption(document: Mapping[str, Any], path: Path, link: str) -> str:
    about = document["about"]
    rounds = min(len(row["samples"]) for row in document["rows"])
    load = about["load_at_start"]
    return (
        f"[`{about['command']}`]({link}/{path.name}): median (least to most) of {rounds} rounds, "
        f"{about['date'][:10]}, "
        + "".join(f"{gpu}, " for gpu in about.get("gpus", []))
        + f"{about['cores']} x {about['cpu']}, "
        + ("a busy machine." if load is None else f"load at start {load}.")
    )


def documents() -> list[Path]:
    """Returns the Markdown files that may have tables."""
    return [RESULTS / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def main() -> None:
    """Rewrites the documents and prints which ones have changed."""
    for path in documents():
        before = path.read_text()
        after = rewrite(before, RESULTS, os.path.relpath(RESULTS, path.parent))
        after = suite_tables.rewrite(after, ROOT / "docs" / "results")
        if after != before:
            path.write_text(after)
            print(path.relative_to(ROOT))


if __name__ == "__main__":
    main()
