"""The plot of a suite's results next to published ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from agents.suites import results
from agents.suites.anchors import Anchors
from agents.suites.results import ResultRow
from rl_replicator.runs import atomic_file

_BAR = "#4c72b0"


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
        published = anchors.mean if name == "mean" else anchors.interquartile_mean
        for index, algorithm in enumerate(anchors.returns):
            value = published(algorithm, marked)
            if value is not None:
                axes.scatter(value, place, marker="|", s=500, lw=2, color=f"C{index + 1}")
    axes.set_yticks(range(len(labels)), labels)
