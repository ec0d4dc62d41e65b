"""Other places for metrics: what is written there, and what happens if that fails."""

import contextlib
import importlib.metadata
import json
import logging
from pathlib import Path

import pytest
from tensorboard.backend.event_processing import event_accumulator

from rl_replicator.checkpoints import Checkpointer
from rl_replicator.checkpoints.parts import JsonPart
from rl_replicator.errors import UsageError
from rl_replicator.runs import trackers
from rl_replicator.runs.metrics import MetricWriter, read_metrics
from rl_replicator.runs.run_directory import RunDirectory
from tests.waiting import wait_until


def make_run(path, *names, **options):
    path.mkdir(exist_ok=True)
    options = {**options, "track": names, "agent": {"n_step": 3}}
    RunDirectory(path).describe("td3", {"seed": 1}, options)
    return path


def write(run_dir, resume_step=None, steps=(10, 20)):
    writer = MetricWriter(run_dir, "environment_steps", resume_step)
    for step in steps:
        writer.write("actor", step, {"return": step / 4})
    writer.write("evaluator", steps[-1], {"return": float("nan")})
    writer.close()


def test_rows_that_were_discarded_stay_so(tmp_path):
    """The run is continued twice without a row of this group, each time after a checkpoint."""
    run_dir = make_run(tmp_path / "run")
    write(run_dir, steps=(10, 20))
    for resume_step in (15, 25):
        writer = MetricWriter(run_dir, "environment_steps", resume_step)
        writer.discard_beyond_resume("evaluator")
        writer.write("actor", resume_step + 1, {"return": 1.0})
        writer.close()
    assert read_metrics(run_dir, "evaluator")["environment_steps"].tolist() == []
    board = event_accumulator.EventAccumulator(str(run_dir / "tensorboard" / "evaluator"))
    board.Reload()
    assert board.Scalars("return") == []
    assert read_metrics(run_dir, "actor")["environment_steps"].tolist() == [10, 16, 26]


class Kept(trackers.Tracker):
    """Keeps its rows."""

    rows: list = []

    def __init__(self, run_dir, x_axis):
        assert x_axis in ("environment_steps", "")

    def write(self, group, step, seconds, values):
        self.rows.append((group, step, values["return"]))


class Failing(Kept):
    """A tracker whose server stops answering."""

    rows: list = []

    def write(self, *row):
        self.rows.append(row)
        raise ConnectionError("no route\nto host")

    def close(self):
        raise AssertionError("it was left out")


@pytest.fixture
def registered(monkeypatch):
    names = {"kept": "Kept", "failing": "Failing"}
    entries = importlib.metadata.EntryPoints(
        importlib.metadata.EntryPoint(name, f"{__name__}:{kind}", trackers.GROUP)
        for name, kind in names.items()
    )
    monkeypatch.setattr(trackers.metadata, "entry_points", lambda **kw: entries.select(**kw))


@pytest.mark.usefixtures("registered")
def test_one_that_fails_is_left_out_and_the_run_goes_on(tmp_path, caplog):
    trackers.check(["failing", "kept"])
    with caplog.at_level(logging.WARNING):
        write(make_run(tmp_path / "run", "failing", "kept"))
    assert len(Failing.rows) == 1 and Kept.rows[:2] == [("actor", 10, 2.5), ("actor", 20, 5.0)]
    assert "--track failing: left out from now on: no route to host" in caplog.text


def test_packages_are_checked_before_a_run(monkeypatch):
    monkeypatch.setattr(trackers.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"expected the package mlflow, .*rl-replicator\[mlflow\]"):
        trackers.check(["mlflow"])


def records_of(run_dir):
    """The records of a run, once its service has written them all."""
    from wandb.proto import wandb_internal_pb2
    from wandb.sdk.internal import datastore

    (file,) = run_dir.glob("wandb/offline-run-*/*.wandb")

    def read():
        store, records = datastore.DataStore(), []
        store.open_for_scan(str(file))
        while (data := store.scan_data()) is not None:
            records.append(wandb_internal_pb2.Record())
            records[-1].ParseFromString(data)
        return records

    wait_until(lambda: any(one.WhichOneof("record_type") == "exit" for one in read()), 60)
    return read()


def complete(run_dir):
    """Makes what a complete run has: a film, a plot, and checkpoints with a replay."""
    run = RunDirectory(run_dir)
    for step in (1, 2):
        parts = {name: JsonPart(lambda step=step: step, None) for name in ("learner", "replay-1")}
        Checkpointer(run.checkpoints).save(step, parts)
    (run_dir / "evaluation.mp4").write_bytes(b"a film")
    (run_dir / "evaluation.png").write_bytes(b"a plot")
    (run_dir / "best.txt").write_text("neither")
    (run_dir / ".evaluation-1a2b3c4d.partial.mp4").write_bytes(b"a film that a `video` writes now")
    trackers.add_files(run, without="replay")
    return run


def test_weights_and_biases_gets_rows_films_plots_the_newest_checkpoint_and_failures(
    tmp_path, monkeypatch
):
    import wandb

    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.setenv("WANDB__SERVICE_WAIT", "110")  # It starts a process.
    monkeypatch.setenv("WANDB_DATA_DIR", str(tmp_path))  # Stages artifacts there.
    monkeypatch.chdir(run_dir := make_run(tmp_path / "run", "wandb"))
    writer = MetricWriter(Path(), "environment_steps")
    for step in (10, 20):
        writer.write("actor", step, {"return": step / 4})
    complete(Path())  # The writer stays open, as in a node of the process.
    failed = make_run(tmp_path / "failed", "wandb")
    MetricWriter(failed, "environment_steps").write("actor", 10, {"return": 2.5})
    first = (failed / "wandb-run").read_text()
    trackers.fail(RunDirectory(failed))
    assert (failed / "wandb-run").read_text() == first  # By which it is continued.
    # Its service, a process, may hold records for long after `finish` has returned. This ends it.
    wandb.teardown()
    (ending,) = (r.exit for r in records_of(failed) if r.WhichOneof("record_type") == "exit")
    assert ending.exit_code == 1
    records = records_of(run_dir)
    found, config = [], []
    for record in records:
        if record.WhichOneof("record_type") == "history":
            items = {"/".join(i.nested_key) or i.key: i.value_json for i in record.history.item}
            found.append(items)
        if record.WhichOneof("record_type") == "run":
            config += [item.key for item in record.run.config.update]
            assert record.run.display_name == "run" and len(record.run.run_id) == 16
    rows = [row for row in found if "actor/return" in row]
    assert [json.loads(row["actor/return"]) for row in rows] == [2.5, 5.0]
    assert [json.loads(row["actor/environment_steps"]) for row in rows] == [10, 20]
    assert {"trainable", "options"} <= {*config}
    (artifact,) = (r.artifact for r in records if r.WhichOneof("record_type") == "artifact")
    files = {entry.path: entry for entry in artifact.manifest.contents}
    assert {*files} == {"evaluation.mp4", "evaluation.png", "checkpoint/learner/state.json"}
    assert Path(files["checkpoint/learner/state.json"].local_path).read_text() == "2"
    assert any("video-file" in value for row in found for value in row.values())


def test_a_failure_before_the_first_row_begins_nothing(tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "server").as_uri())
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    run_dir = make_run(tmp_path / "run", "mlflow")
    trackers.fail(RunDirectory(run_dir))
    assert not (tmp_path / "server").exists()
    write(run_dir)
    (run_dir / "config.json").write_text("{")  # The run's own error is the one to show.
    trackers.fail(RunDirectory(run_dir))
    assert "trackers could not be notified that the run has failed" in caplog.text


@pytest.mark.usefixtures("registered")
def test_a_tracker_without_files_and_failures_goes_on(tmp_path, caplog):
    run_dir = make_run(tmp_path / "run", "kept")
    with caplog.at_level(logging.WARNING):
        complete(run_dir)
        trackers.fail(RunDirectory(run_dir))
    assert not caplog.records and not (tmp_path / "run/metrics").exists()


def test_mlflow_in_a_folder(tmp_path, monkeypatch):
    import mlflow  # Takes a second.

    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    run_dir = make_run(tmp_path / "run", "mlflow", shares={"50%": 0.25})
    monkeypatch.chdir(run_dir)
    write(Path())
    write(run_dir, resume_step=20, steps=(30,))  # Continues the same run.
    client = mlflow.MlflowClient((run_dir / "mlflow").as_uri())
    experiment = client.get_experiment_by_name("rl-replicator")
    (run,) = client.search_runs([experiment.experiment_id])
    history = client.get_metric_history(run.info.run_id, "actor/return")
    assert [(metric.step, metric.value) for metric in history] == [(10, 2.5), (20, 5.0), (30, 7.5)]
    assert run.info.run_name == "run" and run.info.status == "FINISHED"
    assert run.data.params["agent.n_step"] == "3" and run.data.params["shares.50_"] == "0.25"
    with contextlib.closing(MetricWriter(run_dir, "environment_steps", 30)) as writer:
        writer.write("learner", 40, {"loss (Huber, \u03b4=1)": 2.0})
        assert client.get_run(run.info.run_id).info.status == "RUNNING"
    assert client.get_run(run.info.run_id).data.metrics["learner/loss _Huber_ \u03b4_1_"] == 2.0
    complete(run_dir)
    names = [file.path for file in client.list_artifacts(run.info.run_id)]
    assert sorted(names) == ["checkpoint", "evaluation.mp4", "evaluation.png"]
    folder = client.download_artifacts(run.info.run_id, "checkpoint", str(tmp_path))
    files = [path for path in Path(folder).rglob("*") if path.is_file()]
    assert [path.relative_to(folder).as_posix() for path in files] == ["learner/state.json"]
    assert files[0].read_text() == "2"
    trackers.fail(RunDirectory(run_dir))
    assert client.get_run(run.info.run_id).info.status == "FAILED"
