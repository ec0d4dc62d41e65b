"""Numbers, as a report writes them."""

import math

from rl_replicator.runs.statistics import Interval

_MINUS = "−"
_UNITS = ((1e9, "G"), (1e6, "M"), (1e3, "k"))


def number(value: float) -> str:
    """Writes a figure with three or four significant digits."""
    if not math.isfinite(value):
        return "–"
    size = abs(value)
    if size >= 100:
        text = f"{value:,.0f}"
    elif size >= 10:
        text = f"{value:.1f}"
    elif size >= 0.01 or size == 0:
        text = f"{value:.3g}"
    else:
        text = f"{value:.1e}"
    return text.replace("-", _MINUS)


def axis_number(value: float) -> str:
    """Writes a figure as short as possible: 250k, 0.5, −20."""
    size = abs(value)
    for unit, letter in _UNITS:
        if size >= unit and size >= 10_000:
            return f"{value / unit:.4g}{letter}".replace("-", _MINUS)
    text = f"{value:.1e}" if 0 < size < 1e-3 else f"{value:.4g}"
    return text.replace("-", _MINUS)


def interval(one: Interval) -> str:
    """Writes a measure with its confidence interval, if it has one."""
    if not math.isfinite(one.low):
        return number(one.value)
    return f"{number(one.value)} [{number(one.low)}, {number(one.high)}]"


def size(count: float) -> str:
    """Writes a number of bytes."""
    return f"{count / 1e6:.1f} MB" if count >= 1e5 else f"{count / 1e3:.0f} kB"


def ago(seconds: float) -> str:
    """Writes how long ago something was."""
    for unit, name in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= unit:
            return f"{seconds / unit:.0f} {name} ago"
    return f"{max(seconds, 0):.0f} s ago"
