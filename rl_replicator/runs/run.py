"""The life of a run, which agents and learners share: opened, begun, trained, and ended.

Listeners are notified of it.
"""

import contextlib
import dataclasses
import shutil
import signal
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from rl_replicator.checkpoints import Checkpointer
from rl_replicator.errors import UsageError
from rl_replicator.runs import events, trackers
from rl_replicator.runs.evaluations import Score
from rl_replicator.runs.metrics import read_metrics
from rl_replicator.runs.plain_data import flat
from rl_replicator.runs.run_directory import LENGTHS, RunDirectory

# Options that say where a run is.
_PLACE = ("run_dir", "resume")


class RunListener:
    """Is notified of a run: remembers it, and passes its evaluations on.

    Attributes:
      run: the run's directory; None before it has started.
    """

    def __init__(self, on_evaluation: Callable[[Mapping[str, float]], None] | None = None):
        """Stores the function.

        Args:
          on_evaluation: called with the figures of each evaluation; None to call nothing.
        """
        self.run: RunDirectory | None = None
        self._on_evaluation = on_evaluation

    def started(self, run: RunDirectory) -> None:
        """Called when the run's directory exists, before the first step."""
        self.run = run

    def evaluated(self, figures: Mapping[str, float]) -> None:
        """Called after each evaluation, in the thread that has started the run.

        Args:
          figures: the evaluation's row of the metrics, by column.
        """
        if self._on_evaluation is not None:
            self._on_evaluation(figures)


SILENT = RunListener()


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


@dataclasses.dataclass(frozen=True)
class Run:
    """A run whose directory this process has locked. Made by `opened`.

    Attributes:
      directory: its directory.
      trainable: name of what is trained.
      identity: the settings that distinguish it from other runs.
      is_continued: whether there is a checkpoint from which it continues.
    """

    directory: RunDirectory
    trainable: str
    identity: Mapping[str, Any]
    is_continued: bool

    def announce(self) -> None:
        """Prints whether the run is new, and where it is."""
        how = "continuing" if self.is_continued else "training"
        print(f"{how} in {self.directory.path}", flush=True)

    def begin(self, options: Mapping[str, Any], score: Score | None) -> None:
        """Records that the run starts or continues. Call it once nothing refuses the options.

        Args:
          options: all options as requested, as plain data: a later command takes them from here.
          score: the figure that measures how good the run is, if there is one.
        """
        plain_score = None if score is None else score.plain()
        asked = {name: value for name, value in flat(options).items() if name not in _PLACE}
        before = flat(self.directory.config()["options"]) if self.is_continued else asked
        self.directory.describe(self.trainable, self.identity, options, plain_score)
        how = events.CONTINUED if self.is_continued else events.STARTED
        told = [
            f"--{name.replace('_', '-')} {value}"
            for name, value in asked.items()
            if (name in LENGTHS and value is not None) or value != before.get(name)
        ]
        events.record(self.directory.path, events.RUN, how, " ".join(told))

    @contextlib.contextmanager
    def failures_recorded(self) -> Iterator[None]:
        """Records an error that ends the run inside the context."""
        path = self.directory.path
        try:
            yield
        except BaseException as error:
            events.record(path, events.RUN, events.FAILED, f"{type(error).__name__}: {error}")
            if isinstance(error, Exception):
                trackers.fail(self.directory)
            raise

    def stop(self, signal_number: int | None) -> int:
        """Records that the run was stopped before its end.

        Args:
          signal_number: the signal that stopped it; None if the program around it has ended.

        Returns:
          The exit status.
        """
        name = "" if signal_number is None else signal.Signals(signal_number).name
        events.record(self.directory.path, events.RUN, events.STOPPED, name)
        return 128 + (signal_number or signal.SIGTERM)

    def finish(self, without: str | None = None) -> int:
        """Gives the files of the complete run to its trackers, and records its end.

        Args:
          without: part of the checkpoints that the trackers do not get.

        Returns:
          The exit status.
        """
        trackers.add_files(self.directory, without)
        events.record(self.directory.path, events.RUN, events.FINISHED)
        return 0

    @property
    def has_recorded_end(self) -> bool:
        """Whether its end was recorded; False if it was killed between its last step and that."""
        return events.is_finished(events.read(self.directory.path))


@contextlib.contextmanager
def opened(
    directory: RunDirectory,
    trainable: str,
    identity: Mapping[str, Any],
    listener: RunListener,
    free: Collection[str] = (),
) -> Iterator[Run]:
    """Opens a run, locks out other processes, and sets damaged checkpoints aside.

    If a new run is refused inside the context before its first step, or fails before it has begun,
    nothing is left of it.

    Args:
      directory: see `run_directory.choose`.
      trainable: name of what is trained.
      identity: see `RunDirectory.opened`.
      listener: is told that the run has started.
      free: see `RunDirectory.opened`.

    Yields:
      The run.

    Raises:
      UsageError: see `RunDirectory.opened`.
      CheckpointError: see `Checkpointer.set_aside_damaged`.
    """
    is_new_folder = not directory.path.exists()
    with directory.opened(trainable, identity, free) as is_there:
        listener.started(directory)
        checkpointer = Checkpointer(directory.checkpoints)
        newest = checkpointer.set_aside_damaged()
        try:
            yield Run(directory, trainable, identity, newest is not None)
        except Exception as error:
            has_trained = not checkpointer.is_empty or read_metrics(directory.path, "train")
            # Other errors of a run that has begun are recorded in it.
            is_refused = isinstance(error, UsageError) or not events.read(directory.path)
            if is_refused and not is_there and not has_trained:
                _empty(directory.path)
                if is_new_folder:
                    directory.path.rmdir()
            raise


def _empty(folder: Path) -> None:
    """Removes the contents of a folder, but not the folder, which may be the user's."""
    for path in folder.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()
