"""Figures of the replay in the newest checkpoint of a run."""

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from agents.policies.policy import load_policy
from agents.replay.checkpoint import part_name, read_items, read_tables
from agents.replay.transitions import TABLE
from rl_replicator.checkpoints.parts import JsonPart
from rl_replicator.errors import UsageError
from rl_replicator.runs.plain_data import flat
from rl_replicator.runs.run_directory import RunDirectory


class _StoredReplay:
    """Reads the table of a replay server from its part of a checkpoint; saves nothing."""

    def save(self, folder: Path) -> None:
        raise NotImplementedError

    def restore(self, folder: Path) -> None:
        # With `--online-fraction`, there is another one, of the recorded transitions.
        (self.table,) = (t for t in read_tables(folder) if t.table_name == TABLE)
        items = [item for item in read_items(folder) if item.table == TABLE]
        self.priorities = np.array([item.priority for item in items])
        self.times_sampled = np.array([item.times_sampled for item in items])


def read(run_dir: Path) -> dict[str, Any]:
    """Reads the replay of a run's newest checkpoint.

    Args:
      run_dir: directory of the run.

    Returns:
      Nested figures by name, as JSON has them. Ages are in environment steps: a transition is one
      action younger than the one that was inserted before it. Transitions that were repeated to
      fill an item count too: Reverb does not distinguish them. Of overlapping windows, each counts
      the transitions by which it follows the one before.

    Raises:
      UsageError: if there is no run, no checkpoint, or no replay that can be read.
    """
    run = RunDirectory(run_dir)
    identity = run.config()["identity"]
    if identity.get("deterministic"):
        raise UsageError(
            "expected the replay of a run without --deterministic, got one that Reverb did not "
            "write; start a run without it"
        )
    policy = load_policy(run_dir)
    if not hasattr(policy.agent, "layout"):
        raise UsageError(
            f"expected an agent whose replay has a layout, as OffPolicyAgent, got {run_dir} of "
            f"{identity['trainable']}"
        )
    length = policy.agent.layout.period
    shards = int(identity.get("replay_shards", 1))
    stored = {part_name(shard): _StoredReplay() for shard in range(shards)}
    progress: dict[str, Any] = {}
    checkpoint = run.checkpointer().restore({"progress": JsonPart(dict, progress.update), **stored})
    replays = list(stored.values())
    priorities = np.concatenate([replay.priorities for replay in replays])
    sizes = [length * len(replay.priorities) for replay in replays]
    steps_each = shards * policy.task.action_repeat
    ages = np.concatenate([np.arange(size)[::-1] * steps_each for size in sizes])
    if identity.get("prefill") is not None:  # Recorded transitions were never taken.
        ages = ages[ages < int(progress["environment_steps"])]
    if identity.get("offline") is not None:
        ages = ages[:0]
    exponent = replays[0].table.sampler.prioritized.priority_exponent
    mass = np.sort(priorities**exponent)[::-1]
    top = mass[: math.ceil(0.01 * len(mass))].sum() / mass.sum() if len(mass) else None
    times = np.concatenate([replay.times_sampled for replay in replays])
    return {
        "run": str(run_dir),
        "checkpoint": checkpoint.path.name,
        "environment_steps": int(progress["environment_steps"]),
        "transitions": sum(sizes),
        "transitions_per_item": length,
        "capacity": length * sum(replay.table.max_size for replay in replays),
        "inserted": length * sum(replay.table.rate_limiter.insert_count for replay in replays),
        "samples_per_insert": replays[0].table.rate_limiter.samples_per_insert,
        "age": _spread(ages),
        "times_sampled": {
            **_spread(times),
            "never_share": float(np.mean(times == 0)) if len(times) else None,
        },
        "priority": {
            "exponent": exponent,
            **_spread(priorities),
            "mass_of_top_1_percent": None if top is None else float(top),
        },
    }


def _spread(values: np.ndarray) -> dict[str, float | None]:
    if not len(values):
        return {"min": None, "median": None, "max": None}
    found = {"min": values.min(), "median": np.median(values), "max": values.max()}
    return {name: float(value) for name, value in found.items()}


def lines(figures: Mapping[str, Any]) -> Iterator[str]:
    """Yields a line for each figure that `read` returned, by dotted name."""
    for name, value in flat(figures).items():
        text = str(value)
        if not isinstance(value, str) and value is not None:
            text = f"{value:,.0f}" if value == int(value) else f"{value:.4g}"
        yield f"{name:<32}{text}"
