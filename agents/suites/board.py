"""The table of a suite, with a row for each task, and the plot of its results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from agents.suites import results
from agents.suites.results import Anchors, ResultRow
from rl_replicator.experiments.trial import Trial, TrialState
from rl_replicator.runs import atomic_file
from rl_replicator.runs.metrics import read_metrics
from rl_replicator.runs.run_directory import RunDirectory
from rl_replicator.runs.statistics import aligned, number

_BAR = "#4c72b0"
_PREFERRED_ANCHORS = ("D4PG", "DrQ-v2", "SimbaV2 (1)", "BRO (10)", "best known")


def rows_of(run_dir: Path) -> list[ResultRow]:
    """Returns the evaluations of a run so far; none before it has begun."""
    return results.read_run(run_dir) if RunDirectory(run_dir).exists else []


def text(trials: Sequence[Trial], folder: Path, steps: int, anchors: Anchors) -> str:
    """Returns the table.

    A cell is the return of a run after `steps` steps, `failed`, `-` for a run that has not begun,
    or the share of the steps that are taken and the newest evaluation in brackets.

    Args:
      trials: all runs; their values are `env` and `seed`.
      folder: directory of the suite, which holds those of the runs.
      steps: environment steps of a run.
      anchors: published returns to show next to those of the suite.
    """
    tasks = list(dict.fromkeys(one.values["env"] for one in trials))
    seeds = sorted({int(one.values["seed"]) for one in trials})
    cells = {(one.values["env"], int(one.values["seed"])): one for one in trials}
    columns = [
        name for name in _PREFERRED_ANCHORS if set(tasks) & set(anchors.returns.get(name, {}))
    ]
    rows = [["task", *(f"seed {seed}" for seed in seeds), "mean", *columns]]
    means: dict[str, float] = {}
    for task in tasks:
        runs = [cells[task, seed] for seed in seeds if (task, seed) in cells]
        finals = [value for one in runs if (value := _final(one, folder, steps)) is not None]
        if finals:
            means[task] = sum(finals) / len(finals)
        published = [_number(anchors.returns[name].get(task)) for name in columns]
        found = [
            _cell(cells[task, seed], folder, steps) if (task, seed) in cells else ""
            for seed in seeds
        ]
        rows.append([task, *found, _number(means.get(task)), *published])
    if len(means) > 1:
        overall = sum(means.values()) / len(means)
        published = [_number(anchors.measured("mean", name, means)) for name in columns]
        label = f"mean of {len(means)} tasks"
        rows.append([label, *("" for _ in seeds), _number(overall), *published])
    counts = {state: sum(one.state is state for one in trials) for state in TrialState}
    parts = [f"{counts[TrialState.DONE]} of {len(trials)} runs done"]
    for state in (TrialState.RUNNING, TrialState.FAILED):
        if counts[state]:
            parts.append(f"{counts[state]} {state.value}")
    return "\n".join([", ".join(parts), *aligned(rows)])


def _cell(one: Trial, folder: Path, steps: int) -> str:
    if one.state is TrialState.FAILED:
        return "failed"
    final = _final(one, folder, steps)
    if final is not None:
        return number(final)
    taken = _environment_steps(folder / one.name)
    if not taken and one.state is TrialState.WAITING:
        return "-"
    rows = rows_of(folder / one.name)
    newest = f" ({number(rows[-1].return_mean)})" if rows else ""
    return f"{taken / steps:.0%}{newest}"


def _environment_steps(run_dir: Path) -> int:
    """Returns the environment steps of the newest training episode or evaluation of a run."""
    tables = [read_metrics(run_dir, group) for group in ("actor", "evaluator")]
    steps = [table["environment_steps"] for table in tables if table]
    return max((int(column[-1]) for column in steps if len(column)), default=0)


def _final(one: Trial, folder: Path, steps: int) -> float | None:
    """Returns the return of a complete run after `steps` steps, even if it has trained further."""
    found = results.at_end(rows_of(folder / one.name), steps).get(one.values["env"])
    return found[0].return_mean if found else None


def _number(value: float | None) -> str:
    return "" if value is None else number(value)


def draw(rows: Sequence[ResultRow], steps: int, anchors: Anchors, path: Path) -> None:
    """Draws the return of each task with the anchors, and the measures over all tasks.

    Args:
      rows: evaluations of the suite.
      steps: environment steps of a complete run; others are left out.
      anchors: published returns at the same number of steps.
      path: the path of the image, a PNG. It is removed if no complete run was evaluated near them.
    """
    # Not pyplot, which chooses a window system and keeps every figure.
    from matplotlib.figure import Figure

    marked = results.at_end(rows, steps)
    if not marked:
        path.unlink(missing_ok=True)  # It is of other steps.
        return
    figure = Figure(figsize=(11, 1.2 + 0.36 * max(len(marked), 6)), dpi=110, layout="constrained")
    tasks, measures = figure.subplots(1, 2, width_ratios=(2, 1))
    _draw_tasks(tasks, marked, anchors)
    _draw_measures(measures, marked, anchors)
    for axes in (tasks, measures):
        axes.set_xlabel(f"return at {steps:,} environment steps")
        axes.grid(axis="x", alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
        axes.invert_yaxis()
    with atomic_file.replacing(path) as new:
        figure.savefig(new, format="png")


def _draw_tasks(axes: Any, marked: Mapping[str, Sequence[ResultRow]], anchors: Anchors) -> None:
    """Bars of this project's mean, its seeds as dots, and a marker for each anchor."""
    places = range(len(marked))
    seeds = [[row.return_mean for row in found] for found in marked.values()]
    means = [sum(found) / len(found) for found in seeds]
    axes.barh(places, means, color=_BAR, alpha=0.45, label="this project, mean")
    dots = [(value, place) for place, found in zip(places, seeds, strict=True) for value in found]
    axes.scatter(*zip(*dots, strict=True), color=_BAR, s=14, zorder=3, label="its seeds")
    for index, (name, returns) in enumerate(anchors.returns.items()):
        known = [(returns[task], place) for place, task in enumerate(marked) if task in returns]
        if known:
            values, at = zip(*known, strict=True)
            axes.scatter(values, at, marker="|", s=110, lw=2, color=f"C{index + 1}", label=name)
    axes.set_yticks(places, list(marked))
    axes.legend(
        frameon=False, fontsize="small", loc="upper left", bbox_to_anchor=(0, -0.1), ncols=4
    )


def _draw_measures(axes: Any, marked: Mapping[str, Sequence[ResultRow]], anchors: Anchors) -> None:
    """Mean and interquartile mean over tasks, with 95 % intervals, and those of the anchors."""
    measured = results.summarize(marked)
    labels = []
    for place, (name, interval) in enumerate(measured.items()):
        labels.append(f"{name}\nof {len(marked)} tasks")
        axes.barh(place, interval.value, color=_BAR, alpha=0.45, height=0.6)
        axes.plot([interval.low, interval.high], [place, place], color=_BAR, lw=3)
        for index, algorithm in enumerate(anchors.returns):
            value = anchors.measured(name, algorithm, marked)
            if value is not None:
                axes.scatter(value, place, marker="|", s=500, lw=2, color=f"C{index + 1}")
    axes.set_yticks(range(len(labels)), labels)
