"""The one way from the first trial of an experiment to its results, and the table on this way."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable
from typing import TextIO

from rl_replicator.errors import continuable
from rl_replicator.experiments.experiment import Experiment
from rl_replicator.experiments.trial import Trial
from rl_replicator.runs.run_directory import RunDirectory

_SECONDS_BETWEEN_DRAWINGS = 2.0


class LiveTable:
    """Draws a table over its previous state; elsewhere than on a terminal, prints what changes."""

    def __init__(self, draw: Callable[[], str], stream: TextIO | None = None):
        """Draws nothing yet.

        Args:
          draw: returns the table.
          stream: where to draw. Default: standard output.
        """
        self._draw = draw
        self._stream = stream or sys.stdout
        self._is_live = self._stream.isatty()
        self._next_drawing = 0.0
        self._height = 0

    def note(self, line: str) -> None:
        """Redraws the table; elsewhere than on a terminal, prints a line that says what is new."""
        if self._is_live:
            self._next_drawing = 0.0
            self.refresh()
        else:
            self._print(line)

    def refresh(self) -> None:
        """Redraws the table on a terminal if it is due: as many lines as fit."""
        if not self._is_live or time.monotonic() < self._next_drawing:
            return
        self._next_drawing = time.monotonic() + _SECONDS_BETWEEN_DRAWINGS
        size = shutil.get_terminal_size()
        # A line that wraps or scrolls could not be drawn over.
        shown = [line[: size.columns - 1] for line in self._draw().splitlines()[: size.lines - 1]]
        self._print(self._up() + "\x1b[J" + "\n".join(shown))
        self._height = len(shown)

    def close(self) -> None:
        """Shows the whole table a last time."""
        self._print(f"{self._up()}\x1b[J{self._draw()}" if self._height else self._draw())
        self._height = 0

    def _up(self) -> str:
        return f"\x1b[{self._height}A" if self._height else ""

    def _print(self, text: str) -> None:
        self._stream.write(text + "\n")
        self._stream.flush()


def run(experiment: Experiment) -> int:
    """Runs the trials that have not ended, and writes the results of all.

    Args:
      experiment: what to run.

    Returns:
      The exit status: that of `Experiment.conclude`, or 128 + signal if a signal ended it.

    Raises:
      DiskError: if the disk is full.
      UsageError: if the directory holds other settings or other files, there is no such cluster, or
        the results cannot be written at the end.
    """
    # Imported here, because Ray takes seconds.
    from rl_replicator.experiments import tuning

    directory, kind = RunDirectory(experiment.run_dir), experiment.kind
    with (
        directory.opened(kind, experiment.identity, experiment.free),
        continuable(f"the {kind} in {experiment.run_dir}"),
    ):
        directory.describe(kind, experiment.identity, experiment.settings)
        trials = experiment.begun()
        table = LiveTable(lambda: experiment.text(trials))

        def note(one: Trial) -> None:
            if line := experiment.noted(trials, one):
                table.note(line)

        number = tuning.run(experiment, trials, note, table.refresh)
        table.close()
        status = experiment.conclude(trials, number is not None)
        if number is not None:
            print(f"stopped; the same command continues the {kind}", flush=True)
            return 128 + number
        return status
