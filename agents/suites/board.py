"""The table of a suite, with a row for each task."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from agents.suites import results
from agents.suites.results import Anchors, ResultRow
from rl_replicator.experiments.experiment import count
from rl_replicator.experiments.trial import Trial, TrialState
from rl_replicator.runs.metrics import read_metrics
from rl_replicator.runs.run_directory import RunDirectory
from rl_replicator.runs.statistics import aligned, number

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
    parts = [f"{count(trials, TrialState.DONE)} of {len(trials)} runs done"]
    for state in (TrialState.RUNNING, TrialState.FAILED):
        if number_there := count(trials, state):
            parts.append(f"{number_there} {state.value}")
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
