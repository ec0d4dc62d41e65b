"""What a run tells its user: its progress line, its results, and the time that was lost."""

import logging
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from agents.nodes.counter import Progress
from agents.nodes.evaluator import counted
from agents.runs.advice import advise, explain, find_bottleneck
from agents.runs.options import AgentOptions
from rl_replicator.checkpoints import Checkpointer
from rl_replicator.checkpoints.parts import JsonPart
from rl_replicator.errors import UsageError, check_option
from rl_replicator.runs import evaluations, plots
from rl_replicator.runs.metrics import read_metrics
from rl_replicator.runs.progress_line import ProgressLine, RateWindow, clock, progress_text
from rl_replicator.runs.run_directory import RunDirectory
from rl_replicator.runs.statistics import number

_LOG = logging.getLogger("agents")
# Below this fraction of its usual speed, the learner stands still or repeats steps.
_STANDS_STILL = 0.5
# The learner stood still at the end if the time since its last row exceeds this many usual
# intervals between two rows.
_ROWS_MISSED = 3


class AgentProgressLine:
    """Shows the progress of a run, with rates over the last seconds."""

    def __init__(
        self, describe: Callable[[Progress, float, float], str], stream: TextIO | None = None
    ):
        """Draws nothing yet.

        Args:
          describe: makes the text; `describe` or `describe_offline`.
          stream: where to draw. Default: standard error.
        """
        self._describe = describe
        self._line = ProgressLine(stream)
        self._window = RateWindow()
        self._is_filling = False

    def show(self, progress: Progress) -> None:
        """Draws the newest progress, if it is due."""
        was_filling, self._is_filling = self._is_filling, progress.learner_steps == 0
        if was_filling and not self._is_filling:
            self._window = RateWindow()  # Actors were faster without the learner.
        self._window.add(time.monotonic(), progress.environment_steps, progress.learner_steps)
        self._line.show(self._describe(progress, *self._window.rates()))

    def close(self) -> None:
        """Ends the line and keeps its last text."""
        self._line.close()


def describe(progress: Progress, actor_rate: float, learner_rate: float) -> str:
    """Returns one line: how far, how good, how fast, and what is the bottleneck.

    Args:
      progress: the newest progress.
      actor_rate: environment steps per second.
      learner_rate: learner steps per second.

    Returns:
      The text, without an end of line.
    """
    parts = _returns(progress)
    parts.append(f"learner {learner_rate:.0f}/s")
    parts.append(f"actors {actor_rate:.0f}/s")
    parts.append(verdict(progress, is_moving=actor_rate > 0 or learner_rate > 0))
    # The rate while the replay fills is not that of the rest of the run.
    lasting_rate = actor_rate if progress.learner_steps else 0.0
    return progress_text(progress.environment_steps, progress.total_steps, lasting_rate, parts)


def describe_offline(progress: Progress, actor_rate: float, learner_rate: float) -> str:
    """Returns the line of a run without actors, whose steps are the learner's; see `describe`."""
    del actor_rate
    parts = [*_returns(progress), f"learner {learner_rate:.0f}/s"]
    if progress.learner_steps == 0 or progress.steps_done:
        parts.append("last evaluation" if progress.steps_done else "starting")
    return progress_text(progress.environment_steps, progress.total_steps, learner_rate, parts)


def _returns(progress: Progress) -> list[str]:
    parts = []
    if progress.episode_return is not None:
        parts.append(f"return {number(progress.episode_return)}")
    if progress.evaluation_return is not None:
        evaluation = number(progress.evaluation_return)
        parts.append(f"evaluation {evaluation} @{progress.evaluation_step:,}")
    return parts


def verdict(progress: Progress, is_moving: bool = True) -> str:
    """Names the bottleneck: the side for which the other one waits.

    If both wait, it is the replay, or the machine's processors if its load exceeds their number.

    Args:
      progress: the newest progress.
      is_moving: whether steps were taken in the last seconds.
    """
    if progress.steps_done:
        return "last evaluation"
    # A continued run has steps before any of its nodes has reported a wait.
    has_reports = progress.actor_waiting > 0 or progress.learner_waiting > 0
    if progress.environment_steps == 0 or not (is_moving or has_reports):
        return "starting"
    if progress.learner_steps == 0:
        return "filling the replay"
    actors, learner = progress.actor_waiting, progress.learner_waiting
    slowest = find_bottleneck(actors, learner)
    if slowest is None:
        return "bottleneck: none, both are busy"
    waits = f"actors wait {actors:.0%}, the learner {learner:.0%}"
    load, processors = os.getloadavg()[0], len(os.sched_getaffinity(0))
    # The load is that of the whole machine.
    is_overloaded = processors == os.cpu_count() and load > processors
    if slowest == "replay" and is_overloaded:  # Everything waits for them, even the replay.
        return f"bottleneck: processors (load {load:.0f} on {processors}; {waits})"
    return f"bottleneck: {slowest} ({waits})"


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
    evaluated_at = read_metrics(run.path, "evaluator").get("environment_steps", np.zeros(0))
    is_evaluated = not options.env or evaluated_at[-1:].tolist() == [steps]
    if done >= steps and is_evaluated and target <= steps:
        return True
    check_option(
        done < steps + excess or target == steps,
        "steps",
        f"at least {done:,}, which the run in {run.path} has taken",
        f"{steps:,}",
    )
    return False


def report(run: RunDirectory, options: AgentOptions, has_times: bool) -> None:
    """Prints and plots the evaluations of a complete run, and gives advice if it learned little.

    Args:
      run: the run.
      options: its options.
      has_times: whether it has measured in this start how its time was spent.
    """
    if not options.env:
        print(f"trained on {options.offline}; not evaluated, without --env", flush=True)
        return
    last = {name: column[-1] for name, column in read_metrics(run.path, "evaluator").items()}
    share = last.get("failed_share", np.nan)
    failed = f", {share:.0%} failed" if np.isfinite(share) else ""
    taken = f"{last['environment_steps']:,.0f} environment steps, "
    if options.offline is not None:
        taken = ""
    print(
        f"evaluation return {number(last['episode_return'])} over {counted(last['episodes'])} "
        f"(min {number(last['episode_return_min'])}, "
        f"median {number(last['episode_return_median'])}, "
        f"max {number(last['episode_return_max'])}{failed}) after "
        f"{taken}{last['learner_steps']:,.0f} learner steps, {clock(last['wall_time'])}",
        *(advise(run.path, options.plain()) if options.offline is None else ()),
        *(explain(run.path, options.plain()) if has_times else ()),
        *_age(run.path),
        sep="\n",
        flush=True,
    )
    try:
        print(plots.plot([evaluations.read(run.path)], run.plot), flush=True)
    except (UsageError, OSError) as error:  # The run is complete all the same.
        _LOG.warning("no plot was drawn: %s", error)


def _age(run_dir: Path) -> list[str]:
    """Returns a line on how old the data of a learner were that takes each item once."""
    table = read_metrics(run_dir, "learner")
    if "data_age" not in table:
        return []
    mean, most = np.nanmean(table["data_age"]), np.nanmax(table["data_age_max"])
    return [f"age of the data: {mean:.1f} learner steps on average, at most {most:.0f}"]


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
