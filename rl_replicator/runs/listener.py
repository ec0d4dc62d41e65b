"""Notifications of a run's progress for callers from Python."""

from collections.abc import Callable, Mapping

from rl_replicator.runs.metrics import read_metrics
from rl_replicator.runs.run_directory import RunDirectory


class RunListener:
    """Ignores all notifications; the base class of listeners."""

    def started(self, run: RunDirectory) -> None:
        """Called when the run's directory exists, before the first step."""

    def evaluated(self, figures: Mapping[str, float]) -> None:
        """Called after each evaluation, in the thread that has started the run.

        Args:
          figures: the evaluation's row of the metrics, by column.
        """


SILENT = RunListener()


class Evaluations(RunListener):
    """Passes evaluations on to a function, and remembers the run.

    Attributes:
      run: the run's directory; None before it has started.
    """

    def __init__(self, on_evaluation: Callable[[Mapping[str, float]], None] | None):
        """Stores the function.

        Args:
          on_evaluation: called with the figures of each evaluation; None to call nothing.
        """
        self.run: RunDirectory | None = None
        self._on_evaluation = on_evaluation

    def started(self, run: RunDirectory) -> None:
        """Remembers the run."""
        self.run = run

    def evaluated(self, figures: Mapping[str, float]) -> None:
        """Passes the figures on."""
        if self._on_evaluation is not None:
            self._on_evaluation(figures)


class NewRows:
    """Reads the rows that a table of metrics has gained since the last read."""

    def __init__(self, run: RunDirectory, group: str):
        """Skips the existing rows.

        Args:
          run: the run.
          group: name of the table.
        """
        self._run, self._group = run, group
        self._known: set[tuple[float, ...]] = set()
        self.read()

    def read(self) -> list[dict[str, float]]:
        """Returns the new rows, the oldest first, each by column."""
        columns = read_metrics(self._run.path, self._group)
        rows = zip(*(column.tolist() for column in columns.values()), strict=True)
        new = []
        for row in rows:
            # Step and time: a run that continues from its last checkpoint writes later steps again.
            if row[:2] not in self._known:
                self._known.add(row[:2])
                new.append(dict(zip(columns, row, strict=True)))
        return new
