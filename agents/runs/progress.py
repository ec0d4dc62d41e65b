"""The progress line of an agent's run."""

import os
import time
from typing import TextIO

from agents.nodes.counter import Progress
from agents.runs import bottleneck
from rl_replicator.runs.progress_line import ProgressLine, RateWindow, progress_text
from rl_replicator.runs.statistics import number


class AgentProgressLine:
    """Shows the progress of a run, with rates over the last seconds."""

    def __init__(self, stream: TextIO | None = None):
        """Draws nothing yet.

        Args:
          stream: where to draw. Default: standard error.
        """
        self._line = ProgressLine(stream)
        self._window = RateWindow()
        self._is_filling = False

    def show(self, progress: Progress) -> None:
        """Draws the newest progress, if it is due."""
        was_filling, self._is_filling = self._is_filling, progress.learner_steps == 0
        if was_filling and not self._is_filling:
            self._window = RateWindow()  # Actors were faster without the learner.
        self._window.add(time.monotonic(), progress.environment_steps, progress.learner_steps)
        self._line.show(describe(progress, *self._window.rates()))

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
    parts = []
    if progress.episode_return is not None:
        parts.append(f"return {number(progress.episode_return)}")
    if progress.evaluation_return is not None:
        evaluation = number(progress.evaluation_return)
        parts.append(f"evaluation {evaluation} @{progress.evaluation_step:,}")
    parts.append(f"learner {learner_rate:.0f}/s")
    parts.append(f"actors {actor_rate:.0f}/s")
    parts.append(verdict(progress, is_moving=actor_rate > 0 or learner_rate > 0))
    # The rate while the replay fills is not that of the rest of the run.
    lasting_rate = actor_rate if progress.learner_steps else 0.0
    return progress_text(progress.environment_steps, progress.total_steps, lasting_rate, parts)


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
    slowest = bottleneck.find(actors, learner)
    if slowest is None:
        return "bottleneck: none, both are busy"
    waits = f"actors wait {actors:.0%}, the learner {learner:.0%}"
    load, processors = os.getloadavg()[0], len(os.sched_getaffinity(0))
    # The load is that of the whole machine.
    is_overloaded = processors == os.cpu_count() and load > processors
    if slowest == "replay" and is_overloaded:  # Everything waits for them, even the replay.
        return f"bottleneck: processors (load {load:.0f} on {processors}; {waits})"
    return f"bottleneck: {slowest} ({waits})"
