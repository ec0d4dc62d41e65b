"""Metrics for MLflow. `MLFLOW_TRACKING_URI` is respected; default: in the run directory."""

import os
import re
import time
from collections.abc import Mapping
from pathlib import Path

from rl_replicator.runs import atomic_file
from rl_replicator.runs.plain_data import flat
from rl_replicator.runs.run_directory import RunDirectory, options_used

_EXPERIMENT = "rl-replicator"
_RUN_ID = "mlflow-run"
# MLflow refuses longer values.
_LONGEST = 500
# Characters that it refuses in the names of metrics and parameters.
_REFUSED = re.compile(r"[^\w.:/ -]")


class MLflowTracker:
    """A run of MLflow, with the settings as parameters and the commit; see `Tracker`."""

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
        stored = run_dir / _RUN_ID
        if stored.exists():
            self._run_id = stored.read_text()
            self._client.update_run(self._run_id, status="RUNNING")
            return
        run = RunDirectory(run_dir)
        found = self._client.get_experiment_by_name(_EXPERIMENT)
        experiment = found.experiment_id if found else self._client.create_experiment(_EXPERIMENT)
        begun = self._client.create_run(experiment, tags=_commit(), run_name=run.name)
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


def _commit() -> dict[str, str]:
    """Returns the commit of the working directory, if it is in a repository, as MLflow's tag.

    MLflow itself looks where the program is, which is in an environment that git ignores.
    """
    try:
        import git  # MLflow needs it too. Without the program `git`, the import fails.
    except ImportError:
        return {}
    try:
        head = git.Repo(search_parent_directories=True).head
        return {"mlflow.source.git.commit": head.commit.hexsha}
    except (git.InvalidGitRepositoryError, ValueError):  # ValueError: no commit yet.
        return {}
