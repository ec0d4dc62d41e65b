"""Figures of runs."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rl_replicator.errors import UsageError
from rl_replicator.runs.metrics import read_metrics
from rl_replicator.runs.run_directory import RunDirectory

_GROUP, _STEPS, _RETURN = "evaluator", "environment_steps", "episode_return"
_BAND = "line: mean over seeds, band: lowest to highest seed"


@dataclasses.dataclass(frozen=True)
class Curve:
    """The evaluations of runs that differ in nothing but their seed.

    Attributes:
      settings: what the runs share.
      seeds: how many runs there are.
      steps: [T] environment steps, increasing; as far as the shortest run goes.
      returns: [seeds, T] return at these steps, interpolated between a run's own evaluations.
    """

    settings: Mapping[str, Any]
    seeds: int
    steps: np.ndarray
    returns: np.ndarray


def curves(run_dirs: Sequence[Path]) -> list[Curve]:
    """Reads runs, and puts those together that share all settings but the seed.

    Raises:
      UsageError: if one is not a run, or has not been evaluated yet.
    """
    groups: dict[str, list[tuple[np.ndarray, np.ndarray]]] = {}
    for run_dir in run_dirs:
        settings = _settings(run_dir)
        groups.setdefault(json.dumps(settings, sort_keys=True), []).append(_read(run_dir))
    found = []
    for key, runs in groups.items():
        end = min(steps[-1] for steps, _ in runs)
        steps = np.unique(np.concatenate([steps for steps, _ in runs]))
        steps = steps[(steps <= end) & (steps >= max(own[0] for own, _ in runs))]
        if not steps.size:  # The seeds' evaluations do not overlap at all.
            steps = np.array([end])
        returns = np.stack([np.interp(steps, own, values) for own, values in runs])
        found.append(Curve(json.loads(key), len(runs), steps, returns))
    return found


def plot_returns(run_dirs: Sequence[Path], output: Path) -> Path:
    """Draws return over environment steps, one line for each set of settings, into a PNG.

    Args:
      run_dirs: directories of runs. Those that differ in their seed only become one line with a
        band from the lowest to the highest seed.
      output: where the picture goes; its directory is made.

    Returns:
      `output`.

    Raises:
      UsageError: if a directory is not that of an evaluated run.
    """
    # Not pyplot: it keeps figures, and picks a window system.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    drawn = curves(run_dirs)
    labels = _labels([curve.settings for curve in drawn])
    figure = Figure(figsize=(8, 5), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    for curve, label in zip(drawn, labels, strict=True):
        seeds = "1 seed" if curve.seeds == 1 else f"{curve.seeds} seeds"
        mean = curve.returns.mean(axis=0)
        marker = "o" if len(curve.steps) <= 40 else None
        (line,) = axes.plot(
            curve.steps,
            mean,
            marker=marker,
            markersize=3,
            label=f"{label} ({seeds})" if label else seeds,
        )
        if curve.seeds > 1:
            low, high = curve.returns.min(axis=0), curve.returns.max(axis=0)
            axes.fill_between(curve.steps, low, high, color=line.get_color(), alpha=0.2, lw=0)
    axes.set_title(_title([curve.settings for curve in drawn]))
    axes.set_xlabel("environment steps")
    axes.set_ylabel("evaluation return (mean of the episodes)")
    axes.xaxis.set_major_formatter(lambda steps, _: f"{steps:,.0f}")
    axes.set_xlim(left=0)
    if all(curve.returns.min() >= 0 for curve in drawn):
        axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    several = any(curve.seeds > 1 for curve in drawn)
    axes.legend(loc="lower right", frameon=False, title=_BAND if several else None)
    output.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(output, format="png")
    return output


def _settings(run_dir: Path) -> dict[str, Any]:
    """What makes this run the run it is, apart from the seed; and on how many replicas it ran."""
    config = RunDirectory(run_dir).config()
    settings = _flat(config["identity"])
    if "replicas" in config.get("options", {}):
        settings["replicas"] = config["options"]["replicas"]
    return {name: value for name, value in settings.items() if name != "seed"}


def _flat(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat = {}
    for name, value in settings.items():
        nested = _flat(value, f"{prefix}{name}.") if isinstance(value, Mapping) else None
        flat.update({f"{prefix}{name}": value} if nested is None else nested)
    return flat


def _read(run_dir: Path) -> tuple[np.ndarray, np.ndarray]:
    """Steps and returns of one run, [T] each, with increasing steps."""
    table = read_metrics(run_dir, _GROUP)
    steps = np.asarray(table.get(_STEPS, ()), np.float64)
    returns = np.asarray(table.get(_RETURN, ()), np.float64)
    known = np.isfinite(returns)  # A row may hold other figures only.
    if not known.any():
        raise UsageError(
            f"expected evaluations in {run_dir}, got none yet; the run writes the first one to "
            f"metrics/{_GROUP}.csv"
        )
    steps, returns = steps[known], returns[known]
    # A run that was killed and resumed may have evaluated a step twice: the later one counts.
    last = {step: index for index, step in enumerate(steps)}
    order = [last[step] for step in sorted(last)]
    return steps[order], returns[order]


def _labels(settings: Sequence[Mapping[str, Any]]) -> list[str]:
    """For each line of the figure, the settings in which it differs from the others."""
    names = sorted({name for one in settings for name in one})
    differing = [name for name in names if len({repr(one.get(name)) for one in settings}) > 1]
    if not differing:
        return ["" for _ in settings]
    return [", ".join(f"{name}={one.get(name)}" for name in differing) for one in settings]


def _title(settings: Sequence[Mapping[str, Any]]) -> str:
    words = []
    for name in ("trainable", "env"):
        values = {str(one[name]) for one in settings if name in one}
        words += sorted(values) if len(values) == 1 else []
    return " on ".join(words) or "Evaluation return"
