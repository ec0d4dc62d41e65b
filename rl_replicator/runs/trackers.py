"""Trackers for a run's metrics, besides CSV files and TensorBoard: `--track NAME`.

A tracker is a class, called with (run directory, name of the x-axis), with the methods of
`Tracker`, from which it may inherit those that it does not need. Trackers of other packages are
entry points of the group `rl_replicator.trackers`.
"""

import contextlib
import difflib
import importlib.util
import logging
import pkgutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from rl_replicator.checkpoints.checkpointer import Checkpointer
from rl_replicator.errors import UsageError
from rl_replicator.runs.run_directory import RunDirectory

GROUP = "rl_replicator.trackers"

_LOG = logging.getLogger("rl_replicator")
# Name, which is also that of the package that it needs -> class.
_OURS = {
    "mlflow": "rl_replicator.runs.tracking_services:MLflowTracker",
    "wandb": "rl_replicator.runs.tracking_services:WandbTracker",
}


class Tracker:
    """Receives the metrics of a run. The methods do nothing."""

    def write(self, group: str, step: int, seconds: float, values: Mapping[str, float]) -> None:
        """Receives a row.

        Args:
          group: name of the table.
          step: position on the x-axis.
          seconds: duration of the run so far.
          values: the values by name.
        """

    def add_files(self, files: Mapping[str, Path]) -> None:
        """Receives files of a run that is complete.

        Args:
          files: files and folders by their name in the tracker, such as `checkpoint/learner`.
        """

    def fail(self) -> None:
        """Notes that the run has failed, before `close`."""

    def close(self) -> None:
        """Ends the run in the tracker."""


class Trackers:
    """The trackers that the settings of a run name. One that fails is left out, with a warning."""

    def __init__(self, run_dir: Path, x_axis: str = ""):
        """Creates the trackers.

        Args:
          run_dir: the run's directory; the option `track` in its config.json names them.
          x_axis: name of the x-axis; "" if they get no rows.
        """
        run = RunDirectory(run_dir)
        names = run.config().get("options", {}).get("track", ()) if run.exists else ()
        self._trackers: dict[str, Tracker] = {}
        for name in names:
            with self._leaving_out(name):
                self._trackers[name] = _load(name)(run_dir, x_axis)

    def each(self, call: Callable[[Tracker], None]) -> None:
        """Calls a function with each tracker, such as `lambda tracker: tracker.close()`."""
        for name, tracker in list(self._trackers.items()):
            with self._leaving_out(name):
                call(tracker)

    @contextlib.contextmanager
    def _leaving_out(self, name: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            # A run of hours must not end because an external server does not respond.
            text = " ".join(str(error).split()) or type(error).__name__
            _LOG.warning("--track %s: left out from now on: %s", name, text)
            self._trackers.pop(name, None)


def add_files(run: RunDirectory, without: str | None = None) -> None:
    """Passes plots, films and the newest checkpoint to the trackers that a run's settings name.

    Args:
      run: the run, which is complete: no process writes its metrics any more.
      without: parts of the checkpoint whose name has this prefix are left out.
    """
    pictures = (path for path in run.path.iterdir() if path.suffix in (".png", ".mp4"))
    # Hidden ones are incomplete files that another process is writing.
    files = {path.name: path for path in pictures if not path.name.startswith(".")}
    newest = Checkpointer(run.checkpoints).latest()
    if newest is not None:
        parts = (part for part in newest.parts if without is None or not part.startswith(without))
        files |= {f"checkpoint/{part}": newest.path / part for part in parts}
    trackers = Trackers(run.path)
    trackers.each(lambda tracker: tracker.add_files(files))
    trackers.each(lambda tracker: tracker.close())


def fail(run: RunDirectory) -> None:
    """Notifies the trackers that a run's settings name that the run has failed.

    Does nothing for a run without metrics, because no tracker has received anything of it. Never
    raises, because the run's own error is the one to show.

    Args:
      run: the run, whose metrics no process writes any more.
    """
    if not (run.path / "metrics").exists():
        return
    try:
        trackers = Trackers(run.path)
        trackers.each(lambda tracker: tracker.fail())
        trackers.each(lambda tracker: tracker.close())
    except Exception as error:  # Such as settings that cannot be read any more.
        _LOG.warning("the trackers could not be notified that the run has failed: %s", error)


def check(names: Sequence[str]) -> None:
    """Checks that trackers of these names exist, and that the packages they need are installed.

    Raises:
      UsageError: if not.
    """
    known = sorted({*_OURS, *metadata.entry_points(group=GROUP).names})
    for name in names:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise UsageError(f"--track: expected one of {', '.join(known)}, got {name!r}{hint}")
        if name in _OURS and importlib.util.find_spec(name) is None:
            raise UsageError(
                f"--track {name}: expected the package {name}, found none; install "
                f"it: pip install 'rl-replicator[{name}]'"
            )


def _load(name: str) -> Any:
    if name in _OURS:
        return pkgutil.resolve_name(_OURS[name])
    (entry,) = metadata.entry_points(group=GROUP, name=name)
    return entry.load()
