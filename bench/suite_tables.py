"""Makes the tables of suites' results in Markdown files from docs/results/*.csv.

A table stands between two comments, the first of which defines its contents:

    <!-- results: dmc14.csv at 100000 500000; pixels.csv -->
    <!-- end of results -->

It has a row for each task of each file at each of the numbers of environment steps, and the mean
over the tasks of a file if all of them have been evaluated there. `python -m bench.tables` makes
them; copy the `results.csv` of a suite to docs/results/ first.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import get_type_hints

import numpy as np

from agents.suites import results
from agents.suites.results import Anchors, ResultRow
from rl_replicator.errors import UsageError
from rl_replicator.runs import statistics
from rl_replicator.runs.progress_line import clock

_BLOCK = re.compile(
    r"(?P<begin><!-- results: (?P<sources>[^>]*?) -->\n).*?(?P<end><!-- end of results -->)", re.S
)
_SOURCE = re.compile(r"(?P<file>[\w.-]+\.csv) at (?P<marks>[\d ]+)")
# SimbaV2 (1) draws as many samples per step as D4PG by default.
_ANCHORS = ("D4PG", "SimbaV2 (1)", "DrQ-v2", "best known")
_HEAD = (
    *("task", "seeds", "environment steps", "updates a step", "return", "failed", "clock"),
    *(f"{name}, published" if name != "best known" else name for name in _ANCHORS),
)


def rewrite(text: str, directory: Path) -> str:
    """Returns a Markdown text with all its tables of results regenerated.

    Args:
      text: the text of the file.
      directory: the directory of the result files and of `anchors.csv`.

    Raises:
      UsageError: if a comment cannot be read, or names no result file.
    """

    def table(block: re.Match[str]) -> str:
        lines = _table(block["sources"], directory)
        return block["begin"] + "\n".join(lines) + "\n" + block["end"]

    return _BLOCK.sub(table, text)


def read(path: Path) -> list[ResultRow]:
    """Reads what `agents.suites.results.write` wrote."""
    kinds = get_type_hints(ResultRow)
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    return [ResultRow(**{name: kinds[name](row[name] or "nan") for name in kinds}) for row in rows]


def _table(sources: str, directory: Path) -> list[str]:
    lines: list[Sequence[str]] = []
    for source in sources.split(";"):
        match = _SOURCE.fullmatch(source.strip())
        if match is None:
            raise UsageError(
                f"expected 'FILE.csv at STEPS ...' in a comment 'results:', got {source.strip()!r}"
            )
        path = directory / match["file"]
        if not path.exists():
            raise UsageError(f"expected a result file {path}, found none")
        marks = [int(mark) for mark in match["marks"].split()]
        lines += _rows(read(path), marks, directory)
    # A column that is empty in all rows is left out.
    used = [index for index, name in enumerate(_HEAD) if any(line[index] for line in lines)]
    cells = [_HEAD, ["---"] * len(_HEAD), *lines]
    return ["| " + " | ".join(row[index] for index in used) + " |" for row in cells]


def _rows(
    rows: Sequence[ResultRow], marks: Sequence[int], directory: Path
) -> Iterator[Sequence[str]]:
    by_task: dict[str, list[ResultRow]] = {}
    for row in rows:
        by_task.setdefault(row.task, []).append(row)
    for mark in marks:
        at_mark: dict[str, list[ResultRow]] = {}
        for task, found in by_task.items():
            chosen = results.at_mark(found, mark).get(task, [])
            if chosen:
                at_mark[task] = chosen
                yield _row(task, chosen, mark, _anchors(chosen, mark, directory))
        if 1 < len(at_mark) == len(by_task):
            yield _mean(at_mark, mark, _anchors(rows, mark, directory))


def _anchors(rows: Sequence[ResultRow], steps: int, directory: Path) -> Anchors:
    return Anchors.read(directory / "anchors.csv", rows[0].observations, steps)


def _row(task: str, rows: Sequence[ResultRow], steps: int, anchors: Anchors) -> Sequence[str]:
    returns = [row.return_mean for row in rows]
    text = f"{np.mean(returns):.0f}"
    if len(rows) > 1:
        text += f" ({min(returns):.0f} to {max(returns):.0f})"
    first = rows[0]
    about = [word for word in (first.observations, first.agent, first.preset) if word not in _USUAL]
    clocks = sorted({clock(row.clock_seconds) for row in rows}, key=lambda text: (len(text), text))
    return (
        ", ".join([task, *about]),
        ", ".join(str(row.seed) for row in rows),
        f"{steps:,}",
        f"{np.mean([row.learner_steps / row.environment_steps for row in rows]):.2f}",
        text,
        _share(rows),
        clocks[0] if len(clocks) == 1 else f"{clocks[0]} to {clocks[-1]}",
        *(_number(anchors.returns.get(name, {}).get(task)) for name in _ANCHORS),
    )


# Values that are too common to be named in a row.
_USUAL = ("state", "d4pg", "default")


def _mean(at_mark: dict[str, list[ResultRow]], steps: int, anchors: Anchors) -> Sequence[str]:
    interval = statistics.bootstrap(
        statistics.mean,
        [np.array([row.return_mean for row in rows]) for rows in at_mark.values()],
    )
    published = (_number(anchors.measured("mean", name, at_mark)) for name in _ANCHORS)
    empty = [""] * (len(_HEAD) - len(_ANCHORS) - 5)
    return (
        f"mean of {len(at_mark)} tasks",
        *("", f"{steps:,}", "", str(interval)),
        *(*empty, *published),
    )


def _share(rows: Sequence[ResultRow]) -> str:
    """Returns the share of failed episodes over all seeds; empty if it was not recorded."""
    shares = [row.failed_share for row in rows]
    return "" if any(np.isnan(shares)) else f"{np.mean(shares):.0%}"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.0f}"
