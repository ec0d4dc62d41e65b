"""Creates trackers by name, and writes metrics to them."""

import difflib
import importlib
import importlib.util
import json
import logging
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, Protocol

from rl_replicator.checkpoints.checkpointer import Checkpointer
from rl_replicator.errors import UsageError
from rl_replicator.runs.run_directory import RunDirectory

GROUP = "rl_replicator.trackers"

_LOG = logging.getLogger("rl_replicator")
_CONFIG = "config.json"
# Name -> (class, the package that it needs, or "").
_OURS = {
    "jsonl": ("rl_replicator.runs.trackers.json_lines:JsonLines", ""),
    "mlflow": ("rl_replicator.runs.trackers.mlflow_tracker:MLflowTracker", "mlflow"),
    "wandb": ("rl_replicator.runs.trackers.wandb_tracker:WandbTracker", "wandb"),
}

# Optional methods of `Tracker`.
_OPTIONAL = ("discard", "add_files", "fail")


class Tracker(Protocol):
    """Receives the metrics of a run."""

    def write(self, group: str, step: int, seconds: float, values: Mapping[str, float]) -> None:
        """Receives a row.

        Args:
          group: name of the table.
          step: position on the x-axis.
          seconds: duration of the run so far.
          values: the values by name.
        """

    def discard(self, group: str) -> None:
        """Removes the rows of a table beyond the resume step now, not when the next row is written.

        This method is optional.

        Args:
          group: name of the table.
        """

    def add_files(self, files: Mapping[str, Path]) -> None:
        """Receives files of a run that is complete. This method is optional.

        Args:
          files: files and folders by their name in the tracker, such as `checkpoint/learner`.
        """

    def fail(self) -> None:
        """Notes that the run has failed, before `close`. This method is optional."""

    def close(self) -> None:
        """Ends the run in the tracker."""


class Trackers:
    """The trackers that the settings of a run name. One that fails is left out, with a warning."""

    def __init__(self, run_dir: Path, x_axis: str, resume_step: int | None):
        """Creates the trackers.

        Args:
          run_dir: the run's directory; the option `track` in its config.json names them.
          x_axis: name of the x-axis.
          resume_step: see `MetricWriter`.
        """
        self._trackers: dict[str, Tracker] = {}
        for name in _names_of(run_dir):
            try:
                self._trackers[name] = _load(name)(run_dir, x_axis, resume_step)
            except Exception as error:
                self._leave_out(name, error)

    def write(self, group: str, step: int, seconds: float, values: Mapping[str, float]) -> None:
        """See `Tracker`."""
        self._for_each("write", group, step, seconds, values)

    def discard(self, group: str) -> None:
        """See `Tracker`."""
        self._for_each("discard", group)

    def add_files(self, files: Mapping[str, Path]) -> None:
        """See `Tracker`."""
        self._for_each("add_files", files)

    def fail(self) -> None:
        """See `Tracker`."""
        self._for_each("fail")

    def close(self) -> None:
        """See `Tracker`."""
        self._for_each("close")
        self._trackers.clear()

    def _for_each(self, method: str, *arguments: Any) -> None:
        for name, tracker in list(self._trackers.items()):
            try:
                if method not in _OPTIONAL or hasattr(tracker, method):
                    getattr(tracker, method)(*arguments)
            except Exception as error:
                self._leave_out(name, error)

    def _leave_out(self, name: str, error: Exception) -> None:
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
    trackers = Trackers(run.path, x_axis="", resume_step=None)  # It gets no rows.
    pictures = (path for path in run.path.iterdir() if path.suffix in (".png", ".mp4"))
    # Hidden ones are incomplete files that another process is writing.
    files = {path.name: path for path in pictures if not path.name.startswith(".")}
    newest = Checkpointer(run.checkpoints).latest()
    if newest is not None:
        parts = (part for part in newest.parts if without is None or not part.startswith(without))
        files |= {f"checkpoint/{part}": newest.path / part for part in parts}
    trackers.add_files(files)
    trackers.close()


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
        trackers = Trackers(run.path, x_axis="", resume_step=None)  # It gets no rows.
        trackers.fail()
        trackers.close()
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
        package = _OURS.get(name, ("", ""))[1]
        if package and importlib.util.find_spec(package) is None:
            raise UsageError(
                f"--track {name}: expected the package {package}, found none; install "
                f"it: pip install 'rl-replicator[{name}]'"
            )


def _load(name: str) -> Any:
    if name in _OURS:
        module, _, attribute = _OURS[name][0].partition(":")
        return getattr(importlib.import_module(module), attribute)
    (entry,) = metadata.entry_points(group=GROUP, name=name)
    return entry.load()


def _names_of(run_dir: Path) -> list[str]:
    try:
        config = json.loads((run_dir / _CONFIG).read_text())
    except FileNotFoundError:
        return []
    return list(config.get("options", {}).get("track", ()))
