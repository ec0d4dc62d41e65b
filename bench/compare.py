"""Prints what has become slower between two result files, or two folders of them.

    python -m bench.compare BEFORE AFTER

Rows with a ratio are compared by it, because the load of the machine does not change it much; rows
without one by their median, unless they are the peer of others. A change of more than 5 % is
printed; if the new median lies within the old spread, the line says so. Exit status: 1 if something
has become slower, 2 if there is nothing to compare.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

TOLERANCE = 0.05

# (figure, unit) -> row.
Rows = Mapping[tuple[str, str], Mapping[str, Any]]


def read(path: Path) -> Rows:
    """Returns the rows of a result file, by figure and unit."""
    rows = json.loads(path.read_text())["rows"]
    return {(row["figure"], row["unit"]): row for row in rows}


def regressions(before: Rows, after: Rows) -> Iterator[str]:
    """Yields a line for each row that is missing, or worse by more than the tolerance."""
    peers = {row["peer"] for row in before.values() if "peer" in row}
    for key, old in before.items():
        new, name = after.get(key), f"{key[0]} [{key[1]}]"
        if new is None:
            yield f"{name}: has no row any more"
            continue
        if "ratio" in old and "ratio" in new:
            was, now, unit = old["ratio"], new["ratio"], f" x {old['peer']}"
        elif old["figure"] in peers:
            continue
        else:
            was, now, unit = old, new, ""
        higher, lower = now["median"], was["median"]
        if not unit and old["better"] == "less":
            higher, lower = lower, higher
        if higher == lower:  # Both may be 0.
            continue
        better = higher / lower if lower else math.inf
        if better < 1 - TOLERANCE:
            is_within = was["least"] <= now["median"] <= was["most"]
            yield (
                f"{name}: {was['median']:.3g} -> {now['median']:.3g}{unit}, {better - 1:+.0%}"
                + (", within the spread of the first file" if is_within else "")
            )


def pairs(before: Path, after: Path) -> list[tuple[Path, Path]]:
    """Returns the files of both that have the same name."""
    if before.is_file() and after.is_file():
        return [(before, after)]
    names = sorted(path.name for path in before.glob("*.json") if (after / path.name).is_file())
    return [(before / name, after / name) for name in names]


def main() -> int:
    """Prints the regressions; returns the exit status."""
    description, _, details = (__doc__ or "").partition("\n")
    parser = argparse.ArgumentParser(
        prog="python -m bench.compare",
        description=description,
        epilog=details,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    options = parser.parse_args()
    found = pairs(options.before, options.after)
    if not found:
        print(
            "expected two result files, or two folders with result files of equal names, got "
            f"{options.before} and {options.after}",
            file=sys.stderr,
        )
        return 2
    is_worse = False
    for old, new in found:
        for line in regressions(read(old), read(new)):
            print(f"{new.stem}: {line}")
            is_worse = True
    if not is_worse:
        print(f"nothing is more than {TOLERANCE:.0%} slower in {len(found)} files")
    return int(is_worse)


if __name__ == "__main__":
    sys.exit(main())
