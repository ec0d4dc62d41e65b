"""The results of a run: whether it is complete, what its last line says, and how time was lost."""

import logging
from pathlib import Path
from typing import Any

import numpy as np

from agents.nodes.evaluation_figures import counted
from agents.runs.advice import advise
from agents.runs.bottleneck import explain
from agents.runs.options import AgentOptions
from rl_replicator.checkpoints import Checkpointer
from rl_replicator.checkpoints.parts import JsonPart
from rl_replicator.errors import UsageError, check_option
from rl_replicator.runs import plots
from rl_replicator.runs.metrics import read_metrics
from rl_replicator.runs.progress_line import clock
from rl_replicator.runs.run_directory import RunDirectory
from rl_replicator.runs.statistics import number

_LOG = logging.getLogger("agents")
# Below this fraction of its usual speed, the learner stands still or repeats steps.
_STANDS_STILL = 0.5
# The learner stood still at the end if the time since its last row exceeds this many usual
# intervals between two rows.
_ROWS_MISSED = 3


def is_complete(run: RunDirectory, options: AgentOptions) -> bool:
    """Whether a run with a checkpoint has taken all of its steps and was evaluated after them.

    Args:
      run: the run.
      options: the options as they are asked for now.

    Raises:
      ConfigError: if it has taken more steps.
    """
    progress: dict[str, Any] = {}
    Checkpointer(run.checkpoints).restore({"progress": JsonPart(dict, progress.update)})
    done, steps = progress["environment_steps"], options.steps
    # More actors may have taken them. The last, repeated actions of each may exceed the steps.
    excess = options.actors * options.task.action_repeat
    target = run.config()["options"].get("steps", steps)
    if done >= steps and evaluated_at(run) == steps and target <= steps:
        return True
    check_option(
        done < steps + excess or target == steps,
        "steps",
        f"at least {done:,}, which the run in {run.path} has taken",
        f"{steps:,}",
    )
    return False


def evaluated_at(run: RunDirectory) -> float | None:
    """Returns the environment steps of a run at its newest evaluation; None before the first."""
    steps = read_metrics(run.path, "evaluator").get("environment_steps", np.zeros(0))
    return float(steps[-1]) if len(steps) else None


def report(run: RunDirectory, options: AgentOptions, has_times: bool) -> None:
    """Prints and plots the evaluations of a complete run, and gives advice if it learned little.

    Args:
      run: the run.
      options: its options.
      has_times: whether it has measured in this start how its time was spent.
    """
    last = {name: column[-1] for name, column in read_metrics(run.path, "evaluator").items()}
    share = last.get("failed_share", np.nan)
    failed = f", {share:.0%} failed" if np.isfinite(share) else ""
    print(
        f"evaluation return {number(last['episode_return'])} over {counted(last['episodes'])} "
        f"(min {number(last['episode_return_min'])}, "
        f"median {number(last['episode_return_median'])}, "
        f"max {number(last['episode_return_max'])}{failed}) after "
        f"{last['environment_steps']:,.0f} environment steps, {last['learner_steps']:,.0f} learner "
        f"steps, {clock(last['wall_time'])}",
        *advise(run.path, options.plain()),
        *(explain(run.path, options.plain()) if has_times else ()),
        sep="\n",
        flush=True,
    )
    try:
        print(plots.plot([plots.read(run.path)], run.plot), flush=True)
    except (UsageError, OSError) as error:  # The run is complete all the same.
        _LOG.warning("no plot was drawn: %s", error)


def print_goodput(run: RunDirectory, stopped_at: float | None) -> None:
    """Prints what restarts have cost, unless the learner has hardly trained.

    Args:
      run: the run.
      stopped_at: see `lost_seconds`.
    """
    found = lost_seconds(run.path, stopped_at)
    if found is not None:
        lost, trained = found
        share = 1.0 - lost / trained
        told = f"the learner made no progress for {lost:.0f} s of {clock(trained)}"
        print(f"goodput {share:.1%}: {told}", flush=True)


def lost_seconds(run_dir: Path, stopped_at: float | None) -> tuple[float, float] | None:
    """Returns how long the learner made no progress, and how long it has trained.

    It makes no progress while it is down, while it repeats steps that a kill has undone, and while
    it waits for a node that is down. Goodput, the steps kept divided by the steps of an undisturbed
    run in the same time, is 1 minus the ratio of the two.

    Args:
      run_dir: directory of the run.
      stopped_at: seconds after which the run was stopped while it trained; None if it has ended.

    Returns:
      Seconds lost, and seconds from the first row of the learner's metrics to the last one, or to
      the stop if the learner stood still before it; None if there are too few rows.
    """
    table = read_metrics(run_dir, "learner")
    seconds = table.get("wall_time", np.zeros(0))
    duration = np.diff(seconds)
    grown = np.diff(table.get("learner_steps", np.zeros(0)))
    moved = (grown > 0) & (duration > 0)
    if not moved.any():
        return None
    rate = float(np.median(grown[moved] / duration[moved]))
    since = 0.0 if stopped_at is None else stopped_at - seconds[-1]
    if since > _ROWS_MISSED * np.median(duration[moved]):
        duration, grown = np.append(duration, since), np.append(grown, 0.0)
    if len(duration) < 2:
        return None
    # Steps that a kill has undone count as negative ones.
    still = grown < _STANDS_STILL * rate * duration
    lost = duration[still] - grown[still] / rate
    return float(lost.sum()), float(duration.sum())
