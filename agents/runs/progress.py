"""The live line of a run."""

import collections
import time
from typing import TextIO

from agents.nodes.counter import Progress
from rl_replicator.runs.progress_line import LiveLine, clock

# Rates are taken over the last seconds, not since the start.
_RATE_WINDOW_SECONDS = 15.0
# Shares of time below this are noise: nobody is waiting.
_WAITING_THRESHOLD = 0.05


class ProgressLine:
    """The state of a run, drawn whenever it is due."""

    def __init__(self, stream: TextIO | None = None):
        """Args:
        stream: where to draw; default: standard error.
        """
        self._line = LiveLine(stream)
        self._history: collections.deque[tuple[float, Progress]] = collections.deque()

    def show(self, progress: Progress) -> None:
        """Draws the newest state of the run."""
        now = time.monotonic()
        self._history.append((now, progress))
        while len(self._history) > 2 and now - self._history[0][0] > _RATE_WINDOW_SECONDS:
            self._history.popleft()
        self._line.show(describe(progress, *self._rates()))

    def close(self) -> None:
        """Leaves the last state standing."""
        self._line.close()

    def _rates(self) -> tuple[float, float]:
        (then, first), (now, last) = self._history[0], self._history[-1]
        seconds = max(now - then, 1e-6)
        return (
            (last.environment_steps - first.environment_steps) / seconds,
            (last.learner_steps - first.learner_steps) / seconds,
        )


def describe(progress: Progress, actor_rate: float, learner_rate: float) -> str:
    """One line: how far, how good, how fast, and what holds it up.

    Args:
      progress: of the run.
      actor_rate: environment steps per second.
      learner_rate: learner steps per second.

    Returns:
      The text, without an end of line.
    """
    done, total = progress.environment_steps, progress.total_steps
    left = (total - done) / actor_rate if actor_rate > 0 else None
    parts = [f"{done:,}/{total:,} steps", f"ETA {clock(left)}"]
    if progress.episode_return is not None:
        parts.append(f"return {progress.episode_return:.0f}")
    if progress.evaluation_return is not None:
        parts.append(f"evaluation {progress.evaluation_return:.0f} @{progress.evaluation_step:,}")
    parts.append(f"learner {learner_rate:.0f}/s")
    parts.append(f"actors {actor_rate:.0f}/s")
    parts.append(verdict(progress))
    return " | ".join(parts)


def verdict(progress: Progress) -> str:
    """Who is the bottleneck: the side that is waited for; where both wait, what lies between."""
    if progress.steps_done:
        return "last evaluation"
    if progress.environment_steps == 0:
        return "starting"
    if progress.learner_steps == 0:
        return "filling the replay"
    actors, learner = progress.actor_waiting, progress.learner_waiting
    actors_wait, learner_waits = actors > _WAITING_THRESHOLD, learner > _WAITING_THRESHOLD
    if actors_wait and learner_waits:
        return f"bottleneck: replay (actors wait {actors:.0%}, the learner {learner:.0%})"
    if actors_wait:
        return f"bottleneck: learner (actors wait {actors:.0%} of the time)"
    if learner_waits:
        return f"bottleneck: actors (the learner waits {learner:.0%} of the time)"
    return "bottleneck: none, both are busy"
