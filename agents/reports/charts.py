"""Charts as SVG, whose colours the style sheet of the page defines for light and dark pages."""

from __future__ import annotations

import dataclasses
import io
import re
from collections.abc import Sequence

import matplotlib
import numpy as np
from markupsafe import Markup
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

COLOURS = 6
# What Matplotlib draws with -> what the page has in its place. No other colour is used.
_LINES = [f"#c0ffe{index}" for index in range(COLOURS)]
_INK, _GRID = "#c0ffea", "#c0ffeb"
_VARIABLES = {
    _INK: "var(--soft)",
    _GRID: "var(--grid)",
    **{colour: f"var(--c{index})" for index, colour in enumerate(_LINES)},
}
_STYLE = {
    "axes.axisbelow": True,
    "axes.edgecolor": _GRID,
    "axes.grid": True,
    "axes.grid.axis": "y",
    **{f"axes.spines.{side}": False for side in ("left", "right", "top", "bottom")},
    "grid.color": _GRID,
    "svg.fonttype": "none",
    **{f"{axis}tick.color": _INK for axis in "xy"},
    **{f"{axis}tick.major.size": 0 for axis in "xy"},
}
# More points cannot be distinguished; they become the means of so many groups.
_MOST_POINTS = 240
# The points of a line are marked if there are no more.
_MOST_MARKS = 40
# Names at the ends of lines are kept apart by this share of the height.
_NAME_GAP = 0.08
# The y-axis begins at zero if the lowest value is below this share of the greatest.
_ZERO_BELOW = 0.6


@dataclasses.dataclass(frozen=True)
class Line:
    """A line of a chart.

    Attributes:
      label: a short name for its end; may be empty.
      name: its name.
      colour: number of its colour.
      x: [T], increasing.
      y: [T].
      low: [T] lower edge of its band; None without one.
      high: [T] upper edge.
    """

    label: str
    name: str
    colour: int
    x: np.ndarray
    y: np.ndarray
    low: np.ndarray | None = None
    high: np.ndarray | None = None


def chart(lines: Sequence[Line], size: tuple[float, float], description: str) -> Markup:
    """Draws lines with bands over a number of steps.

    Args:
      lines: one or more lines.
      size: width and height, in inches of Matplotlib; text has a fixed size in inches.
      description: what the chart shows, for people who do not see it.

    Returns:
      An SVG that takes the width of its place.
    """
    text_size = 10.5 - 0.35 * size[0]  # Wide charts are enlarged more.
    with matplotlib.rc_context({**_STYLE, "font.size": text_size}):
        figure = Figure(figsize=size, layout="constrained")
        axes = figure.add_subplot()
        for line in lines:
            _draw(axes, line)
        if 0 <= axes.dataLim.y0 < _ZERO_BELOW * axes.dataLim.y1:
            axes.set_ylim(0)
        axes.set_xlim(0)
        bins = 5 if size[1] > 2 else 2
        axes.xaxis.set_major_locator(MaxNLocator(bins, integer=True))
        axes.yaxis.set_major_locator(MaxNLocator(bins))
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_formatter(FuncFormatter(lambda value, _: axis_number(value)))
        _name_ends(axes, lines)
        file = io.StringIO()
        nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        figure.savefig(file, format="svg", transparent=True, metadata=nothing)
    text = file.getvalue()
    text = re.sub(r' id="[a-z]+_\d+"', "", text[text.index("<svg") :])  # Not unique on a page.
    for colour, variable in _VARIABLES.items():
        text = text.replace(colour, variable)
    ends = "; ".join(f"{line.name}: {axis_number(line.y[-1])}" for line in lines)
    label = Markup('<svg role="img" aria-label="{}"').format(f"{description}. At the end: {ends}")
    return label + Markup(text.removeprefix("<svg"))


def axis_number(value: float) -> str:
    """Writes a figure as short as possible: 250k, 0.5, 1e-05."""
    for unit, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= max(unit, 10_000):
            return f"{value / unit:.4g}{letter}"
    return f"{value:.4g}"


def _draw(axes: matplotlib.axes.Axes, line: Line) -> None:
    x, y = _thinned(line.x), _thinned(line.y)
    colour = _LINES[line.colour % COLOURS]
    marker = "o" if len(x) <= _MOST_MARKS else ""
    style = "-" if line.colour < COLOURS else "--"
    axes.plot(x, y, color=colour, marker=marker, markersize=2.5, linestyle=style, lw=1.4)
    if line.low is not None and line.high is not None:
        low, high = _thinned(line.low), _thinned(line.high)
        axes.fill_between(x, low, high, color=colour, alpha=0.16, lw=0)


def _thinned(values: np.ndarray) -> np.ndarray:
    if len(values) <= _MOST_POINTS:
        return values
    return np.array([group.mean() for group in np.array_split(values, _MOST_POINTS)])


def _name_ends(axes: matplotlib.axes.Axes, lines: Sequence[Line]) -> None:
    """Names the lines where they end, so that colours are not the only key."""
    gap, lowest = _NAME_GAP * float(np.ptp(axes.get_ylim())), -np.inf
    for line in sorted(lines, key=lambda one: float(one.y[-1])):
        lowest = max(float(line.y[-1]), lowest + gap)
        place, colour = (float(line.x[-1]), lowest), _LINES[line.colour % COLOURS]
        axes.annotate(
            line.label, place, xytext=(5, 0), textcoords="offset points",
            va="center", color=colour, weight="bold",
        )  # fmt: skip
