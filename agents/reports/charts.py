"""Charts as HTML: lines in SVG that take any width, and labels in text that keeps its size.

Colours are classes (`c0`, `c1`, ...), which the style sheet defines for light and dark pages.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from agents.reports.figures import axis_number
from agents.reports.markup import Html, element

# From values to shares of the width or height of a chart.
Scale = Callable[[np.ndarray], np.ndarray]

_COLOURS = 6
# SVG units in both directions; the drawing is stretched to the size of its box.
_SIZE = 1000.0
# More points than this can't be distinguished; they become the means of this many buckets.
_MOST_POINTS = 240
# The points of a line are marked by dots if there are no more than this.
_MOST_DOTS = 40
_MOST_TICKS = 5
# Labels at the ends of lines are kept apart by this share of the height.
_LABEL_GAP = 0.075
# Labels further apart than this share of the width do not touch.
_LABEL_WIDTH = 0.08
# The y-axis begins at zero if the lowest value is below this share of the greatest, and not
# negative.
_ZERO_BELOW = 0.6


@dataclasses.dataclass(frozen=True)
class Line:
    """A line of a chart.

    Attributes:
      label: a short label for its end; may be empty.
      name: the name to show to people.
      colour: number of the colour.
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

    def thinned(self) -> Line:
        """Returns the line with no more points than can be distinguished."""
        if len(self.x) <= _MOST_POINTS:
            return self
        return dataclasses.replace(
            self,
            x=_means(self.x),
            y=_means(self.y),
            low=None if self.low is None else _means(self.low),
            high=None if self.high is None else _means(self.high),
        )


def colour_class(index: int) -> str:
    """Returns the class of the colour of a config."""
    return f"c{index % _COLOURS}"


def chart(
    lines: Sequence[Line], title: str, x_label: str, y_label: str, is_small: bool = False
) -> Html:
    """Returns a chart of lines with bands.

    Args:
      lines: one or more lines.
      title: above the chart.
      x_label: the name of the steps.
      y_label: the name of the figure.
      is_small: whether it is one of many.
    """
    lines = [line.thinned() for line in lines]
    x_ticks, y_ticks = _scales(lines, is_small)
    x_end, bottom, top = max(line.x[-1] for line in lines), y_ticks[0], y_ticks[-1]

    def across(x: np.ndarray) -> np.ndarray:
        return np.asarray(x, np.float64) / max(x_end, 1e-12)

    def down(y: np.ndarray) -> np.ndarray:
        return 1.0 - (np.asarray(y, np.float64) - bottom) / (top - bottom)

    shapes = [_grid(down(np.array(y_ticks)))]
    shapes += [_band(line, across, down) for line in lines if line.low is not None]
    shapes += [_stroke(line, across, down, is_small) for line in lines]
    ends = "; ".join(f"{line.name or y_label}: {axis_number(line.y[-1])}" for line in lines[:8])
    drawing = element(
        "svg", shapes, viewBox=f"0 0 {_SIZE:.0f} {_SIZE:.0f}", preserveAspectRatio="none",
        aria_hidden="true",
    )  # fmt: skip
    plot = element(
        "div",
        drawing,
        [_tick("y", axis_number(y), f"top:{down(np.array(y)):.2%}") for y in y_ticks],
        [_tick("x", axis_number(x), f"left:{across(np.array(x)):.2%}") for x in x_ticks],
        None if is_small else _end_labels(lines, across, down),
        class_="plot",
        role="img",
        aria_label=f"{title}, {y_label} over {x_label}. At the end: {ends}",
        data_chart=_data(lines, x_end, x_label),
    )
    return element(
        "figure",
        element("figcaption", element("b", title), element("span", y_label)),
        plot,
        None if is_small else element("p", x_label, class_="x-label"),
        class_="chart small" if is_small else "chart",
    )


def split_bar(name: str, shares: Mapping[str, float], classes: Mapping[str, str]) -> Html:
    """Returns a bar that shows how a whole is divided, with its legend.

    Args:
      name: the name of the whole.
      shares: the shares of the parts, in [0, 1].
      classes: name of a part -> its class.
    """
    rest = 1.0 - sum(shares.values())
    parts = [*shares.items(), *([("other", rest)] if rest >= 0.005 else [])]
    bar = [
        element("span", class_=classes.get(part, "p-other"), style=f"flex-grow:{share:.4f}")
        for part, share in parts
        if share > 0
    ]
    legend = [
        element(
            "li",
            element("i", class_=classes.get(part, "p-other")),
            f"{part} ",
            element("b", f"{share:.0%}" if share >= 0.01 else "<1%"),
        )
        for part, share in parts
    ]
    return element(
        "div",
        element("h4", name),
        element("div", bar, class_="bar", aria_hidden="true"),
        element("ul", legend, class_="parts"),
        class_="split",
    )


def _means(values: np.ndarray) -> np.ndarray:
    return np.array([bucket.mean() for bucket in np.array_split(values, _MOST_POINTS)])


def _scales(lines: Sequence[Line], is_small: bool) -> tuple[list[float], list[float]]:
    """Returns the ticks of both axes; those of the y-axis span it."""
    # A part of Matplotlib that opens no window and keeps no figure.
    from matplotlib.ticker import MaxNLocator

    low = min(float(np.min(line.y if line.low is None else line.low)) for line in lines)
    high = max(float(np.max(line.y if line.high is None else line.high)) for line in lines)
    if 0 <= low < _ZERO_BELOW * high:
        low = 0.0
    if not high > low:
        low, high = low - max(abs(low), 1.0) / 2, high + max(abs(high), 1.0) / 2
    steps = [1, 2, 2.5, 5, 10]
    y_ticks = MaxNLocator(3 if is_small else _MOST_TICKS, steps=steps).tick_values(low, high)
    end = max(float(line.x[-1]) for line in lines)
    x_ticks = MaxNLocator(2 if is_small else _MOST_TICKS - 1, steps=steps, integer=True)
    return [x for x in x_ticks.tick_values(0, end) if 0 <= x <= end], [float(y) for y in y_ticks]


def _tick(axis: str, text: str, style: str) -> Html:
    return element("span", text, class_=f"{axis}-tick", style=style)


def _grid(heights: np.ndarray) -> Html:
    path = "".join(f"M0 {_unit(y)}H{_SIZE:.0f}" for y in heights)
    return element("path", d=path, class_="grid")


def _unit(share: float) -> str:
    return f"{_SIZE * share:.1f}".removesuffix(".0")


def _points(x: np.ndarray, y: np.ndarray) -> str:
    return "L".join(f"{_unit(a)} {_unit(b)}" for a, b in zip(x, y, strict=True))


def _band(line: Line, across: Scale, down: Scale) -> Html:
    assert line.low is not None and line.high is not None
    x = across(line.x)
    upper, lower = _points(x, down(line.high)), _points(x[::-1], down(line.low)[::-1])
    return element("path", d=f"M{upper}L{lower}Z", class_=f"band {colour_class(line.colour)}")


def _stroke(line: Line, across: Scale, down: Scale, is_small: bool) -> Html:
    x, y = across(line.x), down(line.y)
    colour = colour_class(line.colour)
    style = f"line {colour}{' dashed' if line.colour >= _COLOURS else ''}"
    drawn = element("path", d=f"M{_points(x, y)}", class_=style)
    if is_small or len(x) > _MOST_DOTS:
        return drawn
    # Zero-length lines with round ends: circles would be stretched with the drawing.
    dots = "".join(f"M{_unit(a)} {_unit(b)}h0" for a, b in zip(x, y, strict=True))
    return Html(drawn + element("path", d=dots, class_=f"dots {colour}"))


def _end_labels(lines: Sequence[Line], across: Scale, down: Scale) -> list[Html]:
    """Names the lines where they end, so that colours are not the only key."""
    placed: list[tuple[float, float]] = []
    found = []
    for line in sorted(lines, key=lambda one: down(one.y[-1])):
        if line.label:
            left, height = float(across(line.x[-1])), float(down(line.y[-1]))
            near = [other for x, other in placed if abs(x - left) < _LABEL_WIDTH]
            height = max([height, *(other + _LABEL_GAP for other in near)])
            placed.append((left, height))
            style = f"left:{left:.2%};top:{height:.2%}"
            label = element(
                "span", line.label, class_=f"end {colour_class(line.colour)}", style=style
            )
            found.append(label)
    return found


def _data(lines: Sequence[Line], x_end: float, x_label: str) -> str:
    """Returns what the page's script shows under the pointer, as JSON."""

    def numbers(values: np.ndarray) -> list[float]:
        return [float(f"{value:.5g}") for value in values]

    return json.dumps(
        {
            "end": float(x_end),
            "unit": x_label,
            "lines": [
                {
                    "name": line.name,
                    "colour": colour_class(line.colour),
                    "x": [round(float(x)) for x in line.x],
                    "y": numbers(line.y),
                    **(
                        {}
                        if line.low is None or line.high is None
                        else {"low": numbers(line.low), "high": numbers(line.high)}
                    ),
                }
                for line in lines
            ],
        },
        separators=(",", ":"),
    )
