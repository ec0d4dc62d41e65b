"""The table of a suite: one row for each task, one column for each seed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TextIO

from agents.suites import results
from agents.suites.anchors import Anchors
from agents.suites.progress import RunStatus, State
from rl_replicator.runs.live_table import LiveTable, aligned
from rl_replicator.runs.statistics import number

_PREFERRED_ANCHORS = ("D4PG", "DrQ-v2", "SimbaV2 (1)", "BRO (10)", "best known")


def text(statuses: Sequence[RunStatus], steps: int, anchors: Anchors) -> str:
    """Returns the table.

    A cell is the return of a run after `steps` steps, `failed`, `-` for a run that has not begun,
    or the share of the steps that are taken and the newest evaluation in brackets.

    Args:
      statuses: the statuses of all runs.
      steps: environment steps of a run.
      anchors: published returns to show next to those of the suite.
    """
    tasks = list(dict.fromkeys(status.run.task for status in statuses))
    seeds = sorted({status.run.seed for status in statuses})
    cells = {(status.run.task, status.run.seed): status for status in statuses}
    columns = [
        name for name in _PREFERRED_ANCHORS if set(tasks) & set(anchors.returns.get(name, {}))
    ]
    rows = [["task", *(f"seed {seed}" for seed in seeds), "mean", *columns]]
    means: dict[str, float] = {}
    for task in tasks:
        runs = [cells[task, seed] for seed in seeds if (task, seed) in cells]
        finals = [value for run in runs if (value := _final(run, steps)) is not None]
        if finals:
            means[task] = sum(finals) / len(finals)
        rows.append(
            [
                task,
                *(_cell(cells[task, s], steps) if (task, s) in cells else "" for s in seeds),
                _number(means.get(task)),
                *(_number(anchors.returns[name].get(task)) for name in columns),
            ]
        )
    if len(means) > 1:
        overall = sum(means.values()) / len(means)
        published = [_number(anchors.mean(name, means)) for name in columns]
        label = f"mean of {len(means)} tasks"
        rows.append([label, *("" for _ in seeds), _number(overall), *published])
    return "\n".join([_headline(statuses), *aligned(rows)])


def _headline(statuses: Sequence[RunStatus]) -> str:
    counts = {state: sum(one.state is state for one in statuses) for state in State}
    parts = [f"{counts[State.DONE]} of {len(statuses)} runs done"]
    for state in (State.RUNNING, State.FAILED):
        if counts[state]:
            parts.append(f"{counts[state]} {state.value}")
    return ", ".join(parts)


def _cell(status: RunStatus, steps: int) -> str:
    if status.state is State.FAILED:
        return "failed"
    final = _final(status, steps)
    if final is not None:
        return number(final)
    taken = status.environment_steps()
    if not taken and status.state is State.WAITING:
        return "-"
    rows = status.rows()
    newest = f" ({number(rows[-1].return_mean)})" if rows else ""
    return f"{taken / steps:.0%}{newest}"


def _final(status: RunStatus, steps: int) -> float | None:
    """Returns the return of a complete run after `steps` steps, even if it has trained further."""
    found = results.at_end(status.rows(), steps).get(status.run.task)
    return found[0].return_mean if found else None


def _number(value: float | None) -> str:
    return "" if value is None else number(value)


class Board:
    """Redraws the table on a terminal; elsewhere, prints it whenever a run has ended."""

    def __init__(
        self,
        statuses: Sequence[RunStatus],
        steps: int,
        anchors: Anchors,
        stream: TextIO | None = None,
    ):
        """Draws nothing yet.

        Args:
          statuses: the statuses of all runs, which change.
          steps: environment steps of a run.
          anchors: published returns to show next to those of the suite.
          stream: where to draw. Default: standard output.
        """
        self._statuses, self._steps, self._anchors = statuses, steps, anchors
        self._table = LiveTable(stream)

    def note(self, status: RunStatus) -> None:
        """Shows that the state of a run has changed."""
        if self._table.is_live:
            self._table.expedite()
            self.refresh()
            return
        about = f": {status.reason}" if status.reason else ""
        self._table.print(f"{status.run} is {status.state.value}{about}")
        has_ended = status.state in (State.DONE, State.FAILED)
        if has_ended and any(one.state is State.WAITING for one in self._statuses):
            self._table.print(self._text())

    def refresh(self) -> None:
        """Redraws the table on a terminal, if it is due."""
        if not self._table.is_due():
            return
        lines = self._text().splitlines()
        lines += [f"{one.run} failed, {one.reason}" for one in self._statuses if one.reason]
        self._table.refresh(lines)

    def close(self) -> None:
        """Shows the whole table a last time."""
        self._table.close(self._text())

    def _text(self) -> str:
        return text(self._statuses, self._steps, self._anchors)
