"""Figures of the replay of a run, for people and for programs."""

import contextlib
import math
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from agents.policies.policy import load_policy
from agents.replay import inspection, stored_tables
from agents.replay.checkpoint import part_name
from rl_replicator.checkpoints.parts import JsonPart
from rl_replicator.errors import UsageError
from rl_replicator.runs.run_directory import RunDirectory

_BINS = 10
_BAR = 40


def read(run_dir: Path) -> dict[str, Any]:
    """Reads the replay of a run's newest checkpoint.

    Args:
      run_dir: directory of the run.

    Returns:
      Nested figures by name, as JSON has them. Ages are in environment steps: a transition is one
      action younger than the one that was inserted before it. Transitions that were repeated to
      fill an item count too: Reverb does not distinguish them.

    Raises:
      UsageError: if there is no run, no checkpoint, or no replay that can be read.
    """
    run = RunDirectory(run_dir)
    identity = run.config()["identity"]
    policy = load_policy(run_dir)
    if not hasattr(policy.agent, "layout"):
        raise UsageError(
            f"expected an agent whose replay has a layout, as OffPolicyAgent, got {run_dir} of "
            f"{identity['trainable']}"
        )
    shards = int(identity.get("replay_shards", 1))
    with _scratch(run_dir) as scratch:
        # Link all parts first: a run that trains removes its checkpoints while they are read.
        folders = {part_name(shard): scratch / part_name(shard) for shard in range(shards)}
        progress: dict[str, Any] = {}
        checkpoint = run.checkpointer().restore(
            {
                "progress": JsonPart(dict, progress.update),
                **{part: stored_tables.LinkedPart(folder) for part, folder in folders.items()},
            }
        )
        stored = [
            inspection.read(policy.agent, folder, scratch / f"{part}-read", shards)
            for part, folder in folders.items()
        ]
    environment_steps = int(progress["environment_steps"])
    steps_per_item = shards * policy.task.action_repeat
    ages = np.concatenate([np.arange(len(s.rewards))[::-1] * steps_per_item for s in stored])
    is_recorded = np.zeros(len(ages), bool)
    if "prefill" in identity:
        is_recorded = ages >= environment_steps
    return {
        "run": str(run_dir),
        "checkpoint": checkpoint.path.name,
        "environment_steps": environment_steps,
        "transitions": len(ages),
        "transitions_per_item": policy.agent.layout.transitions_per_item,
        "capacity": sum(s.max_size for s in stored),
        "inserted": sum(s.num_inserted for s in stored),
        "recorded": int(is_recorded.sum()),
        "samples_per_insert": stored[0].samples_per_insert,
        "age": _spread(ages[~is_recorded]),
        "times_sampled": _times_sampled(np.concatenate([s.times_sampled for s in stored])),
        "priority": _priority(
            np.concatenate([s.priorities for s in stored]), stored[0].priority_exponent
        ),
        "reward": _reward(np.concatenate([s.rewards for s in stored])),
        "terminal_share": _share(np.concatenate([s.discounts for s in stored]) == 0),
    }


@contextlib.contextmanager
def _scratch(run_dir: Path) -> Iterator[Path]:
    """Makes a temporary folder, if possible where files of the run can be linked."""
    try:
        folder = tempfile.TemporaryDirectory(prefix=".replay-", dir=run_dir)
    except OSError:
        folder = tempfile.TemporaryDirectory()
    with folder as path:
        yield Path(path)


def _spread(values: np.ndarray) -> dict[str, float | None]:
    if not len(values):
        return {"min": None, "median": None, "max": None}
    return {
        "min": float(values.min()),
        "median": float(np.median(values)),
        "max": float(values.max()),
    }


def _share(where: np.ndarray) -> float | None:
    return float(where.mean()) if len(where) else None


def _times_sampled(times: np.ndarray) -> dict[str, Any]:
    return {**_spread(times), "never_share": _share(times == 0)}


def _priority(priorities: np.ndarray, exponent: float) -> dict[str, Any]:
    """Returns the spread of priorities, their effect on sampling, and their histogram."""
    mass = np.sort(priorities**exponent)[::-1]
    top = mass[: math.ceil(0.01 * len(mass))].sum() / mass.sum() if len(mass) else None
    positive = priorities[priorities > 0]
    counts, edges = np.zeros(0, int), np.zeros(0)
    if len(positive):
        low, high = float(positive.min()), float(positive.max())
        edges = np.geomspace(low, high, _BINS + 1 if low < high else 2)
        edges[0], edges[-1] = low, high  # Rounding must not exclude a value.
        inner = np.searchsorted(edges[1:-1], positive, side="right")
        counts = np.bincount(inner, minlength=len(edges) - 1)
    return {
        "exponent": exponent,
        **_spread(priorities),
        "mass_of_top_1_percent": None if top is None else float(top),
        "histogram": {"edges": edges.tolist(), "counts": counts.tolist()},
    }


def _reward(rewards: np.ndarray) -> dict[str, Any]:
    if not len(rewards):
        return {**_spread(rewards), "mean": None, "deviation": None}
    mean, deviation = rewards.mean(dtype=np.float64), rewards.std(dtype=np.float64)
    return {**_spread(rewards), "mean": float(mean), "deviation": float(deviation)}


def lines(figures: Mapping[str, Any]) -> Iterator[str]:
    """Yields a table of what `read` returned, line by line."""
    yield (
        f"replay of {figures['run']}, checkpoint {figures['checkpoint']}, after "
        f"{figures['environment_steps']:,} environment steps"
    )
    recorded = f", {figures['recorded']:,} of them from --prefill" if figures["recorded"] else ""
    length = figures["transitions_per_item"]
    repeats = f", with those repeated to fill items of {length}" if length > 1 else ""
    yield _row(
        "transitions", f"{figures['transitions']:,} of {figures['capacity']:,}{recorded}{repeats}"
    )
    yield _row("inserted", f"{figures['inserted']:,}")
    yield _row("samples per insert", f"{figures['samples_per_insert']:g}")
    yield _row("age, environment steps", _text(figures["age"]))
    sampled = figures["times_sampled"]
    yield _row("times sampled", f"{_text(sampled)}; never: {_percent(sampled['never_share'])}")
    yield _row(
        "n-step reward", _text(figures["reward"], ("mean", "deviation", "min", "median", "max"))
    )
    yield _row("terminal", _percent(figures["terminal_share"]))
    priority = figures["priority"]
    yield _row("priority", f"{_text(priority)}; exponent {priority['exponent']:g}")
    yield _row("top 1 % by priority", f"{_percent(priority['mass_of_top_1_percent'])} of samples")
    histogram = priority["histogram"]
    most = max(histogram["counts"], default=0)
    for low, high, count in zip(
        histogram["edges"], histogram["edges"][1:], histogram["counts"], strict=False
    ):
        bar = "#" * round(_BAR * count / most)
        yield _row(f"  {low:.3g} to {high:.3g}", f"{count:>9,} {bar}".rstrip())


def _row(name: str, text: str) -> str:
    return f"{name:<24}{text}"


def _text(values: Mapping[str, Any], names: Sequence[str] = ("min", "median", "max")) -> str:
    if values["min"] is None:
        return "none"
    return ", ".join(f"{name} {_number(values[name])}" for name in names)


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def _percent(share: float | None) -> str:
    return "none" if share is None else f"{100 * share:.1f} %"
