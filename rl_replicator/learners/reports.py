"""The reports of a learner's run: the progress line and the tables in its directory."""

import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from rl_replicator.errors import ConfigError
from rl_replicator.runs.metrics import MetricWriter, space_needed
from rl_replicator.runs.progress_line import ProgressLine, RateWindow, clock, progress_text
from rl_replicator.runs.run_directory import NAMES, RunDirectory, folder_name

# A run writes about `_ROWS` rows of training metrics, and at least one every `_MAX_STEPS_PER_ROW`
# steps. Rows depend on the step and not on the clock, so that equal runs write equal tables.
_ROWS = 1000
_MAX_STEPS_PER_ROW = 100
# A smaller share of time spent waiting is negligible.
_WAITING_THRESHOLD = 0.05


class Reports:
    """Receives the progress and the metrics of the training loop, and writes nothing.

    Used by all processes except the chief, which uses `ChiefReports`.
    """

    def tick(self, batches: int, starved: bool | None) -> None:
        """Redraws the progress line. Call it several times per second while calls run.

        Args:
          batches: number of global batches that the run has used.
          starved: whether the next batch is not ready; None if that is unknown.
        """

    def tick_evaluation(self, step: int, seconds: float) -> None:
        """Redraws the line during an evaluation.

        Args:
          step: number of steps taken.
          seconds: time since the evaluation began.
        """

    def add(self, batch: int, count: int, metrics: Mapping[str, np.ndarray]) -> None:
        """Adds the metrics of a call to the next row.

        Args:
          batch: number of batches that the run used before the call.
          count: number of batches of the call.
          metrics: arrays by name, [count] each: one value for each batch of the call.

        Raises:
          ConfigError: if a metric has the name of a column that every row has.
        """

    def flush(self, step: int) -> None:
        """Writes a row: the means of all metrics that were added since the last one.

        Args:
          step: number of steps taken.
        """

    def add_evaluation(self, step: int, figures: Mapping[str, float], shown: str) -> None:
        """Writes the figures of an evaluation.

        Args:
          step: number of steps taken.
          figures: figures by name.
          shown: name of the figure that the line shows.

        Raises:
          ConfigError: if a figure has the name of a column that every row has.
        """

    def add_images(self, step: int, images: Mapping[str, np.ndarray]) -> None:
        """Writes images.

        Args:
          step: number of steps taken.
          images: see `Learner.images`.

        Raises:
          ConfigError: if they are not images, or a name is not valid for a folder.
        """

    def state(self) -> dict[str, Any]:
        """Returns the sums of the next row as plain data, for a checkpoint."""
        return {}

    def close(self) -> None:
        """Closes the line and the tables."""


class ChiefReports(Reports):
    """Writes the reports, in the chief process."""

    def __init__(
        self,
        run: RunDirectory,
        num_steps: int,
        batches_per_step: int,
        global_batch_size: int,
        resume_step: int,
        seconds: float,
        state: Mapping[str, Any],
    ):
        """Writes no file yet.

        Args:
          run: run directory, to which the tables are written.
          num_steps: number of steps of the whole run.
          batches_per_step: number of global batches that a step uses.
          global_batch_size: number of examples in a global batch.
          resume_step: see `MetricWriter`.
          seconds: see `MetricWriter`.
          state: return value of `state` from the checkpoint; empty for a new run.
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
            rate = self._window.rates()[0]  # Batches per second.
            pace = rate / self._batches_per_step
            examples = f"{rate * self._global_batch_size:,.0f} examples/s"
            figures = [*self._shown.values(), f"{pace:.3g} steps/s", examples]
            figures.append(verdict(*self._window.growth()))
            step = batches // self._batches_per_step
            self._line.show(progress_text(step, self._num_steps, pace, figures))

    def tick_evaluation(self, step: int, seconds: float) -> None:
        self._line.show(f"{step:,}/{self._num_steps:,} steps | evaluating for {clock(seconds)}")

    def add(self, batch: int, count: int, metrics: Mapping[str, np.ndarray]) -> None:
        self._writer.check("train", metrics)  # The first row may come many steps later.
        for i in range(count):
            for name, values in metrics.items():
                pair = self._sums.setdefault(name, [0.0, 0])
                pair[0] += float(values[i])
                pair[1] += 1
            step, rest = divmod(batch + i + 1, self._batches_per_step)
            if rest == 0 and step % self._steps_per_row == 0:
                self.flush(step)
        if (
            metrics and batch % self._batches_per_step == 0
        ):  # The line shows the first phase's first metric.
            name, values = next(iter(metrics.items()))
            self._shown["metric"] = f"{name} {values[-1]:.4g}"

    def flush(self, step: int) -> None:
        if self._sums:
            means = {name: total / count for name, (total, count) in self._sums.items()}
            self._writer.write("train", step, means)
            self._sums = {}

    def add_evaluation(self, step: int, figures: Mapping[str, float], shown: str) -> None:
        self._writer.write("evaluation", step, figures)
        self._shown["evaluation"] = f"evaluation {shown} {figures[shown]:.4g} @{step:,}"
        if self._last_tick:  # Excludes the evaluation's time from the rates.
            self._paused = time.monotonic() - self._last_tick

    def add_images(self, step: int, images: Mapping[str, np.ndarray]) -> None:
        import tensorflow as tf

        checked = {name: _checked(self._run, name, image) for name, image in images.items()}
        for name, image in checked.items():
            path = self._run.path / name / f"{step:07d}.png"
            with space_needed():
                path.parent.mkdir(exist_ok=True)
                path.write_bytes(tf.io.encode_png(image).numpy())
            self._writer.write_image(name, step, name, image)

    def state(self) -> dict[str, Any]:
        return {name: list(pair) for name, pair in self._sums.items()}

    def close(self) -> None:
        self._line.close()
        self._writer.close()


def _checked(run: RunDirectory, name: str, image: Any) -> np.ndarray:
    """Returns an image of `Learner.images`; raises `ConfigError` if it or its name is invalid."""
    is_taken = name in NAMES or (run.path / name).is_file()
    if folder_name(name) != name or not name.strip(".") or is_taken:
        raise ConfigError(
            f"expected names from images() of letters, digits, '_', '-' and '.', none of them a "
            f"file of the run, got {name!r}: it is the name of a folder; rename it"
        )
    pixels = np.asarray(image)
    if pixels.dtype != np.uint8 or pixels.ndim != 3 or pixels.shape[-1] not in (1, 3):
        raise ConfigError(
            f"expected uint8 [height, width, 1 or 3] from images(), got {name!r}: {pixels.dtype} "
            f"{list(pixels.shape)}; scale it to 0..255, and cast it"
        )
    return pixels


def verdict(batches: int, known: int, starved: int) -> str:
    """Names the bottleneck: the input, or the devices.

    Args:
      batches: number of batches used within the window.
      known: number of ticks within the window at which the state of the input was known.
      starved: number of those ticks at which the next batch was not ready.

    Returns:
      The text for the progress line.
    """
    if not batches:
        return "starting"
    if not known:
        return "bottleneck: devices"
    share = starved / known
    if share > _WAITING_THRESHOLD:
        return f"bottleneck: input (waited for {share:.0%} of the time)"
    return "bottleneck: devices (the input is ahead)"
