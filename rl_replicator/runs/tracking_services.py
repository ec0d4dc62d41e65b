"""The trackers for Weights & Biases and for MLflow.

Variables such as `WANDB_MODE=offline` and `MLFLOW_TRACKING_URI` are respected; without the latter,
MLflow writes to the run's directory. The packages are imported when a tracker is made.
"""

import os
import re
import secrets
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rl_replicator.runs import atomic_file
from rl_replicator.runs.plain_data import flat
from rl_replicator.runs.run_directory import RunDirectory, options_used

# The project of Weights & Biases, and the experiment of MLflow.
_PROJECT = "rl-replicator"
# Run id -> the run, while this process has it open. A second one with the same id is refused, and
# in a run in threads, the node that wrote the metrics still has it open when `add_files` is called.
_OPEN: dict[str, Any] = {}
# MLflow refuses longer values.
_LONGEST = 500
# Characters that it refuses in the names of metrics and parameters.
_REFUSED = re.compile(r"[^\w.:/ -]")


class WandbTracker:
    """A run of Weights & Biases, with the settings and the state of git; see `Tracker`."""

    def __init__(self, run_dir: Path, x_axis: str):
        """Begins or continues the run in Weights & Biases.

        Args:
          run_dir: the run's directory, where the files of an offline run go.
          x_axis: name of the x-axis.
        """
        self._x_axis = x_axis
        self._known: set[str] = set()
        self._exit_code = 0
        run_id = _id_of(run_dir)
        if run_id not in _OPEN:
            _OPEN[run_id] = self._begin(run_dir, run_id)
        self._run = _OPEN[run_id]

    @staticmethod
    def _begin(run_dir: Path, run_id: str) -> Any:
        import wandb

        return wandb.init(
            project=None if wandb.setup().settings.project else _PROJECT,
            dir=str(run_dir),
            name=RunDirectory(run_dir).name,
            id=run_id,
            resume="allow",
            reinit="create_new",
            config=RunDirectory(run_dir).config(),
        )

    def write(self, group: str, step: int, seconds: float, values: Mapping[str, float]) -> None:
        """Logs a row; every group has its own x-axis."""
        axis = f"{group}/{self._x_axis}"
        if group not in self._known:
            self._known.add(group)
            self._run.define_metric(f"{group}/*", step_metric=axis)
        row = {f"{group}/{name}": value for name, value in values.items()}
        self._run.log({axis: step, f"{group}/wall_time": seconds, **row})

    def add_files(self, files: Mapping[str, Path]) -> None:
        """Logs one artifact with all files, and the films among them as media too."""
        import wandb

        artifact = wandb.Artifact(f"run-{self._run.id}", type="run")
        for name, path in files.items():
            if path.is_dir():
                artifact.add_dir(str(path), name)
            else:
                artifact.add_file(str(path), name)
                if path.suffix == ".mp4":
                    self._run.log({name: wandb.Video(str(path))})
        self._run.log_artifact(artifact)

    def fail(self) -> None:
        """Notes that the run has failed."""
        self._exit_code = 1

    def close(self) -> None:
        """Ends the run in Weights & Biases."""
        _OPEN.pop(self._run.id, None)
        self._run.finish(self._exit_code)


def _id_of(run_dir: Path) -> str:
    """Returns the id of a run: drawn once and kept in its directory, which may be moved.

    The path is not unique: runs in two containers may have the same one.
    """
    stored = run_dir / "wandb-run"
    if not stored.exists():
        with atomic_file.replacing(stored) as new:  # A kill here must not leave an empty id.
            new.write_text(secrets.token_hex(8))
    return stored.read_text()


class MLflowTracker:
    """A run of MLflow, with the settings as parameters; see `Tracker`."""

    def __init__(self, run_dir: Path, x_axis: str):
        """Begins or continues the run in MLflow.

        Args:
          run_dir: the run's directory.
          x_axis: unused: all metrics in MLflow have the same x-axis, the step.
        """
        import mlflow

        del x_axis
        self._status = "FINISHED"
        uri = os.environ.get("MLFLOW_TRACKING_URI")
        if uri is None:  # A folder, which needs no database.
            os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
            uri = (run_dir / "mlflow").resolve().as_uri()
        self._client = mlflow.MlflowClient(uri)
        stored = run_dir / "mlflow-run"
        if stored.exists():
            self._run_id = stored.read_text()
            self._client.update_run(self._run_id, status="RUNNING")
            return
        run = RunDirectory(run_dir)
        found = self._client.get_experiment_by_name(_PROJECT)
        experiment = found.experiment_id if found else self._client.create_experiment(_PROJECT)
        begun = self._client.create_run(experiment, run_name=run.name)
        self._run_id = begun.info.run_id
        with atomic_file.replacing(stored) as new:  # A kill here must not leave an empty id.
            new.write_text(self._run_id)
        for name, value in flat(options_used(run.config())).items():
            name = _REFUSED.sub("_", name)
            self._client.log_param(self._run_id, name, str(value)[:_LONGEST])

    def write(self, group: str, step: int, seconds: float, values: Mapping[str, float]) -> None:
        """See `Tracker`."""
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        metrics = [
            Metric(_REFUSED.sub("_", f"{group}/{name}"), value, now, step)
            for name, value in {"wall_time": seconds, **values}.items()
        ]
        self._client.log_batch(self._run_id, metrics=metrics)

    def add_files(self, files: Mapping[str, Path]) -> None:
        """Logs the files as artifacts of the run."""
        for name, path in files.items():
            if path.is_dir():
                self._client.log_artifacts(self._run_id, str(path), name)
            else:
                self._client.log_artifact(self._run_id, str(path))

    def fail(self) -> None:
        """Notes that the run has failed."""
        self._status = "FAILED"

    def close(self) -> None:
        """Ends the run in MLflow."""
        self._client.set_terminated(self._run_id, self._status)
