"""How a learner is doing: the line on the screen, the tables on the disk."""

import collections
import dataclasses
import time
from collections.abc import Mapping

import numpy as np

from rl_replicator.runs.metrics import MetricWriter
from rl_replicator.runs.progress_line import LiveLine, clock
from rl_replicator.runs.run_directory import RunDirectory

# Rates are taken over the last seconds, not since the start.
_RATE_WINDOW_SECONDS = 15.0
_SECONDS_BETWEEN_ROWS = 1.0
# Shares of time below this are noise: nobody is waiting.
_WAITING_THRESHOLD = 0.05


@dataclasses.dataclass(frozen=True)
class Pace:
    """A moment of a run.

    Attributes:
      seconds: on a clock of any origin.
      batches: global batches used.
      starved: whether the next batch was not ready; None where none has to be waited for.
    """

    seconds: float
    batches: int
    starved: bool | None


class Reports:
    """Tables in a run's directory and a live line; in the chief process only."""

    def __init__(
        self,
        run: RunDirectory,
        num_steps: int,
        batches_per_step: int,
        global_batch_size: int,
        resume_step: int | None,
    ):
        """Touches no file yet. `resume_step` as in `MetricWriter`."""
        self._writer = MetricWriter(run.path, resume_step, x_axis="steps")
        self._num_steps = num_steps
        self._batches_per_step = batches_per_step
        self._global_batch_size = global_batch_size
        self._line = LiveLine()
        self._paces: collections.deque[Pace] = collections.deque()
        self._sums: dict[str, list[float]] = {}
        self._last_row = self._paused = 0.0
        self._shown: dict[str, str] = {}

    def tick(self, batches: int, starved: bool | None) -> None:
        """Draws the line. To be called often while calls run."""
        now = time.monotonic() - self._paused
        self._paces.append(Pace(now, batches, starved))
        while len(self._paces) > 2 and now - self._paces[0].seconds > _RATE_WINDOW_SECONDS:
            self._paces.popleft()
        if self._line.is_due:
            self._line.show(
                describe(
                    list(self._paces),
                    self._num_steps,
                    self._batches_per_step,
                    self._global_batch_size,
                    list(self._shown.values()),
                )
            )

    def add(self, step: int, metrics: Mapping[str, np.ndarray]) -> None:
        """Takes metrics of one or several steps; writes the means about once in a second."""
        for name, values in metrics.items():
            self._sums.setdefault(name, []).extend(values.tolist())
            if name == next(iter(self._sums)):
                self._shown["metric"] = f"{name} {values[-1]:.4g}"
        if time.monotonic() - self._last_row >= _SECONDS_BETWEEN_ROWS:
            self.flush(step)

    def flush(self, step: int) -> None:
        """Writes what `add` has taken since the last row."""
        if self._sums:
            means = {name: float(np.mean(values)) for name, values in self._sums.items()}
            self._writer.write("train", step, means)
            self._sums = {}
            self._last_row = time.monotonic()

    def add_evaluation(self, step: int, figures: Mapping[str, float], shown: str) -> None:
        """Writes an evaluation; the figure called `shown` appears in the line."""
        self._writer.write("evaluation", step, figures)
        self._shown["evaluation"] = f"{shown} {figures[shown]:.4g} @{step:,}"
        if self._paces:  # The time it took is not part of the pace.
            self._paused = time.monotonic() - self._paces[-1].seconds

    def close(self) -> None:
        """Closes line and tables."""
        self._line.close()
        self._writer.close()


class NoReports:
    """In the place of `Reports` in processes that do not report."""

    def tick(self, batches: int, starved: bool | None) -> None:
        pass

    def add(self, step: int, metrics: Mapping[str, np.ndarray]) -> None:
        pass

    def flush(self, step: int) -> None:
        pass

    def add_evaluation(self, step: int, figures: Mapping[str, float], shown: str) -> None:
        pass

    def close(self) -> None:
        pass


def describe(
    paces: list[Pace],
    num_steps: int,
    batches_per_step: int,
    global_batch_size: int,
    figures: list[str],
) -> str:
    """One line: how far, how good, how fast, and what holds it up.

    Args:
      paces: moments of the last seconds, the newest last.
      num_steps: of the whole run.
      batches_per_step: global batches that a step uses.
      global_batch_size: examples in each.
      figures: what else to show.

    Returns:
      The text, without an end of line.
    """
    first, last = paces[0], paces[-1]
    step = last.batches // batches_per_step
    seconds = last.seconds - first.seconds
    rate = (last.batches - first.batches) / seconds if seconds > 0 else 0.0  # Batches a second.
    left = (num_steps * batches_per_step - last.batches) / rate if rate > 0 else None
    return " | ".join(
        [
            f"{step:,}/{num_steps:,} steps",
            f"ETA {clock(left)}",
            *figures,
            f"{rate / batches_per_step:.3g} steps/s",
            f"{rate * global_batch_size:,.0f} examples/s",
            verdict(paces),
        ]
    )


def verdict(paces: list[Pace]) -> str:
    """What is waited for: the input, or the devices."""
    if paces[-1].batches == paces[0].batches:
        return "starting"
    known = [pace.starved for pace in paces if pace.starved is not None]
    share = sum(known) / len(known) if known else 0.0
    if share > _WAITING_THRESHOLD:
        return f"bottleneck: input (waited for {share:.0%} of the time)"
    return "bottleneck: devices (the input is ahead)" if known else "bottleneck: devices"
