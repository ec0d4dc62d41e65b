"""What a learner's run reports: the progress line and the tables in its directory."""

import time
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from rl_replicator.runs.metrics import MetricWriter
from rl_replicator.runs.progress_line import ProgressLine, RateWindow, clock, progress_text
from rl_replicator.runs.run_directory import RunDirectory

# A run has about this many rows of training metrics, and a row for at least every so many steps.
# Rows depend on the step and not on the clock, so that equal runs write equal tables.
_ROWS = 1000
_MAX_STEPS_PER_ROW = 100
# A smaller share of time spent waiting is negligible.
_WAITING_THRESHOLD = 0.05


class Reports(Protocol):
    """Takes what the training loop has to say."""

    def tick(self, batches: int, starved: bool | None) -> None:
        """Redraws the line; to be called several times per second while calls run.

        Args:
          batches: global batches used since the start of the run.
          starved: whether the next batch is not ready; None if that is unknown.
        """

    def tick_evaluation(self, step: int, seconds: float) -> None:
        """Redraws the line during an evaluation.

        Args:
          step: steps done.
          seconds: since the evaluation began.
        """

    def add(self, batch: int, metrics: Mapping[str, np.ndarray]) -> None:
        """Takes the metrics of a call.

        Args:
          batch: batches used before the call.
          metrics: [count] each, one for each batch of the call.
        """

    def flush(self, step: int) -> None:
        """Writes the means of what `add` took since the last row.

        Args:
          step: steps done.
        """

    def add_evaluation(self, step: int, figures: Mapping[str, float], shown: str) -> None:
        """Writes an evaluation.

        Args:
          step: steps done.
          figures: by name.
          shown: name of the figure for the line.
        """

    def add_images(self, step: int, images: Mapping[str, np.ndarray]) -> None:
        """Writes images; see `Learner.images`."""

    def state(self) -> dict[str, Any]:
        """Returns the row that is not written yet, as plain data for a checkpoint."""

    def close(self) -> None:
        """Closes the line and the tables."""


class ChiefReports:
    """The reports of the chief process: see `Reports`."""

    def __init__(
        self,
        run: RunDirectory,
        num_steps: int,
        batches_per_step: int,
        global_batch_size: int,
        resume_step: int | None,
        seconds: float,
        state: Mapping[str, Any],
    ):
        """Touches no file yet.

        Args:
          run: where the tables go.
          num_steps: steps of the whole run.
          batches_per_step: global batches that a step uses.
          global_batch_size: examples in each.
          resume_step: as for `MetricWriter`.
          seconds: as for `MetricWriter`.
          state: what `state` returned when the checkpoint was written.
        """
        self._run = run
        self._writer = MetricWriter(run.path, "steps", resume_step, seconds)
        self._num_steps = num_steps
        self._batches_per_step = batches_per_step
        self._global_batch_size = global_batch_size
        self._steps_per_row = min(_MAX_STEPS_PER_ROW, max(1, num_steps // _ROWS))
        self._line = ProgressLine()
        self._window = RateWindow()
        self._known_ticks = self._starved_ticks = 0
        self._last_tick = self._paused = 0.0
        self._sums = {name: list(pair) for name, pair in state.items()}
        self._shown: dict[str, str] = {}

    def tick(self, batches: int, starved: bool | None) -> None:
        self._last_tick = time.monotonic() - self._paused
        self._known_ticks += starved is not None
        self._starved_ticks += bool(starved)
        self._window.add(self._last_tick, batches, self._known_ticks, self._starved_ticks)
        if self._line.is_due:
            self._line.show(
                describe(
                    batches,
                    self._num_steps,
                    self._batches_per_step,
                    self._global_batch_size,
                    self._window,
                    list(self._shown.values()),
                )
            )

    def tick_evaluation(self, step: int, seconds: float) -> None:
        self._line.show(f"{step:,}/{self._num_steps:,} steps | evaluating for {clock(seconds)}")

    def add(self, batch: int, metrics: Mapping[str, np.ndarray]) -> None:
        count = len(next(iter(metrics.values())))
        for i in range(count):
            for name, values in metrics.items():
                pair = self._sums.setdefault(name, [0.0, 0])
                pair[0] += float(values[i])
                pair[1] += 1
            step, rest = divmod(batch + i + 1, self._batches_per_step)
            if rest == 0 and step % self._steps_per_row == 0:
                self.flush(step)
        if batch % self._batches_per_step == 0:  # Of the first phase, the first metric.
            name, values = next(iter(metrics.items()))
            self._shown["metric"] = f"{name} {values[-1]:.4g}"

    def flush(self, step: int) -> None:
        if self._sums:
            means = {name: total / count for name, (total, count) in self._sums.items()}
            self._writer.write("train", step, means)
            self._sums = {}

    def add_evaluation(self, step: int, figures: Mapping[str, float], shown: str) -> None:
        self._writer.write("evaluation", step, figures)
        self._shown["evaluation"] = f"{shown} {figures[shown]:.4g} @{step:,}"
        if self._last_tick:  # The time that the evaluation took does not count for the rates.
            self._paused = time.monotonic() - self._last_tick

    def add_images(self, step: int, images: Mapping[str, np.ndarray]) -> None:
        import tensorflow as tf

        for name, image in images.items():
            path = self._run.path / name / f"{step:07d}.png"
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(tf.io.encode_png(image).numpy())
            self._writer.write_image(name, step, name, image)

    def state(self) -> dict[str, Any]:
        return {name: list(pair) for name, pair in self._sums.items()}

    def close(self) -> None:
        self._line.close()
        self._writer.close()


class NoReports:
    """The reports of all other processes: nothing."""

    def tick(self, batches: int, starved: bool | None) -> None:
        pass

    def tick_evaluation(self, step: int, seconds: float) -> None:
        pass

    def add(self, batch: int, metrics: Mapping[str, np.ndarray]) -> None:
        pass

    def flush(self, step: int) -> None:
        pass

    def add_evaluation(self, step: int, figures: Mapping[str, float], shown: str) -> None:
        pass

    def add_images(self, step: int, images: Mapping[str, np.ndarray]) -> None:
        pass

    def state(self) -> dict[str, Any]:
        return {}

    def close(self) -> None:
        pass


def describe(
    batches: int,
    num_steps: int,
    batches_per_step: int,
    global_batch_size: int,
    window: RateWindow,
    figures: Sequence[str],
) -> str:
    """Returns one line: how far, how good, how fast, and what is the bottleneck.

    Args:
      batches: global batches used since the start of the run.
      num_steps: steps of the whole run.
      batches_per_step: global batches that a step uses.
      global_batch_size: examples in each.
      window: of the counters batches, ticks at which the state of the input was known, and ticks at
        which the input was starved.
      figures: what else to show.

    Returns:
      The text, without an end of line.
    """
    rate = window.rates()[0]  # Batches per second.
    return progress_text(
        batches // batches_per_step,
        num_steps,
        rate / batches_per_step,
        [
            *figures,
            f"{rate / batches_per_step:.3g} steps/s",
            f"{rate * global_batch_size:,.0f} examples/s",
            verdict(*window.growth()),
        ],
    )


def verdict(batches: int, known: int, starved: int) -> str:
    """Names the bottleneck: the input, or the devices.

    Args:
      batches: used within the window.
      known: ticks within it at which the state of the input was known.
      starved: those at which the next batch was not ready.
    """
    if not batches:
        return "starting"
    if not known:
        return "bottleneck: devices"
    share = starved / known
    if share > _WAITING_THRESHOLD:
        return f"bottleneck: input (waited for {share:.0%} of the time)"
    return "bottleneck: devices (the input is ahead)"
