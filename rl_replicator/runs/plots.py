"""The plot of the evaluations of runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rl_replicator.runs import atomic_file, evaluations
from rl_replicator.runs.evaluations import ComparedConfig, EvaluatedRun

_MOST_COLUMNS = 3
_BAND = "line: mean over seeds, band: lowest to highest seed"


def plot(runs: Sequence[EvaluatedRun], output: Path) -> Path:
    """Draws evaluations over steps into a PNG; see `draw`.

    Args:
      runs: the runs from `evaluations.read`.
      output: path of the image; its directory is created.

    Returns:
      `output`.

    Raises:
      UsageError: see `evaluations.curves`.
      OSError: if the image cannot be written.
    """
    draw(evaluations.configs(evaluations.curves(runs)), output)
    return output


def draw(configs: Sequence[ComparedConfig], output: Path) -> None:
    """Draws a panel for each task into a PNG, with a line for each config.

    Args:
      configs: at least one.
      output: path of the image; its directory is created.

    Raises:
      OSError: if the image cannot be written.
    """
    # Not pyplot, which chooses a GUI backend and keeps every figure.
    from matplotlib.figure import Figure

    tasks = evaluations.tasks_of(configs)
    columns = min(len(tasks), _MOST_COLUMNS)
    rows = -(-len(tasks) // columns)
    canvas = Figure(figsize=(2 + 6 * columns, 5 * rows), dpi=120, layout="constrained")
    places = list(canvas.subplots(rows, columns, squeeze=False).flat)
    for axes, task in zip(places, tasks, strict=False):
        _draw_task(axes, task, configs)
    for axes in places[len(tasks) :]:
        axes.set_visible(False)
    with atomic_file.replacing(output) as new:
        canvas.savefig(new, format="png")


def _draw_task(axes: Any, task: str, configs: Sequence[ComparedConfig]) -> None:
    drawn = [(place, one) for place, one in enumerate(configs) if task in one.curves]
    curves = [one.curves[task] for _, one in drawn]
    for (place, one), curve in zip(drawn, curves, strict=True):
        name = f"{one.label}: {one.name} " if len(configs) > 1 else ""
        axes.plot(
            curve.steps,
            curve.values.mean(axis=0),
            color=f"C{place}",
            marker="o" if len(curve.steps) <= 40 else None,
            markersize=3,
            label=f"{name}({curve.counted})" if name else curve.counted,
        )
        if curve.seeds > 1:
            low, high = curve.values.min(axis=0), curve.values.max(axis=0)
            axes.fill_between(curve.steps, low, high, color=f"C{place}", alpha=0.2, lw=0)
    trained = {str(one.identity.get("trainable", "")) for _, one in drawn} - {""}
    axes.set_title(" on ".join(filter(None, (*(trained if len(trained) == 1 else ()), task))))
    axes.set_xlabel(curves[0].x_label)
    axes.set_ylabel(f"{curves[0].y_label} (evaluation)")
    axes.xaxis.set_major_formatter(lambda steps, _: f"{steps:,.0f}")
    axes.set_xlim(left=0)
    if all(curve.values.min() >= 0 for curve in curves):
        axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    several = any(curve.seeds > 1 for curve in curves)
    axes.legend(loc="lower right", frameon=False, title=_BAND if several else None)
