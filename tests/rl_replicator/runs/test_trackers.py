"""Other places for metrics: what is written there, and what happens if that fails."""

import importlib.metadata
import json
import logging
import time

import pytest

from rl_replicator.errors import UsageError
from rl_replicator.runs import trackers
from rl_replicator.runs.metrics import MetricWriter, read_metrics
from rl_replicator.runs.run_directory import RunDirectory
from rl_replicator.runs.trackers import registry


def make_run(path, *names):
    path.mkdir(exist_ok=True)
    RunDirectory(path).describe("td3", {"seed": 1}, {"track": names, "agent": {"n_step": 3}})
    return path


def write(run_dir, resume_step=None, steps=(10, 20)):
    writer = MetricWriter(run_dir, "environment_steps", resume_step)
    for step in steps:
        writer.write("actor", step, {"return": step / 4})
    writer.write("evaluator", steps[-1], {"return": float("nan")})
    writer.close()


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_json_lines_and_a_run_that_goes_on_behind_its_checkpoint(tmp_path):
    run_dir = make_run(tmp_path / "run", "jsonl")
    write(run_dir)
    with (run_dir / "metrics/actor.jsonl").open("a") as file:
        file.write('{"environment_steps": 30, "ret')  # A killed process.
    write(run_dir, resume_step=10, steps=(15,))
    rows = lines(run_dir / "metrics/actor.jsonl")
    assert [(row["environment_steps"], row["return"]) for row in rows] == [(10, 2.5), (15, 3.75)]
    assert all(row["wall_time"] >= 0 for row in rows)
    assert lines(run_dir / "metrics/evaluator.jsonl")[-1]["return"] is None
    assert read_metrics(run_dir, "actor")["environment_steps"].tolist() == [10, 15]


def test_without_trackers_there_are_csv_files_only(tmp_path):
    write(make_run(tmp_path / "run"))
    assert sorted(path.name for path in (tmp_path / "run/metrics").iterdir()) == [
        "actor.csv",
        "evaluator.csv",
    ]


class Failing:
    """A tracker whose server stops answering."""

    rows = 0

    def __init__(self, run_dir, x_axis, resume_step):
        pass

    def write(self, group, step, seconds, values):
        Failing.rows += 1
        raise ConnectionError("no route\nto host")

    def close(self):
        raise AssertionError("it was left out")


def test_one_that_fails_is_left_out_and_the_run_goes_on(tmp_path, monkeypatch, caplog):
    entry = importlib.metadata.EntryPoint("failing", f"{__name__}:Failing", registry.GROUP)
    entries = importlib.metadata.EntryPoints([entry])
    monkeypatch.setattr(registry.metadata, "entry_points", lambda **kw: entries.select(**kw))
    trackers.check(["failing", "jsonl"])
    with caplog.at_level(logging.WARNING):
        write(make_run(tmp_path / "run", "failing", "jsonl"))
    assert Failing.rows == 1 and len(lines(tmp_path / "run/metrics/actor.jsonl")) == 2
    assert "--track failing: left out from now on: no route to host" in caplog.text


def test_names_and_packages_are_checked_before_a_run(monkeypatch):
    with pytest.raises(UsageError, match=r"--track: expected one of jsonl, .* did you mean wandb"):
        trackers.check(["wandbb"])
    monkeypatch.setattr(registry.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"expected the package mlflow, .*rl-replicator\[mlflow\]"):
        trackers.check(["mlflow"])


def test_weights_and_biases_offline(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    run_dir = make_run(tmp_path / "run", "wandb")
    write(run_dir)
    (file,) = run_dir.glob("wandb/offline-run-*/*.wandb")
    deadline = time.monotonic() + 30  # Its service writes what it holds after `finish` returns.
    while not (records := _wandb_records(file)) or records[-1].WhichOneof("record_type") != "exit":
        assert time.monotonic() < deadline
        time.sleep(0.1)
    found, config = [], []
    for record in records:
        if record.WhichOneof("record_type") == "history":
            items = {"/".join(i.nested_key) or i.key: i.value_json for i in record.history.item}
            found.append(items)
        if record.WhichOneof("record_type") == "run":
            config += [item.key for item in record.run.config.update]
    rows = [row for row in found if "actor/return" in row]
    assert [json.loads(row["actor/return"]) for row in rows] == [2.5, 5.0]
    assert [json.loads(row["actor/environment_steps"]) for row in rows] == [10, 20]
    assert {"trainable", "options"} <= {*config}


def _wandb_records(file):
    from wandb.proto import wandb_internal_pb2
    from wandb.sdk.internal import datastore

    store, records = datastore.DataStore(), []
    store.open_for_scan(str(file))
    while (data := store.scan_data()) is not None:
        records.append(wandb_internal_pb2.Record())
        records[-1].ParseFromString(data)
    return records


def test_mlflow_in_a_folder(tmp_path, monkeypatch):
    import mlflow  # Takes a second.

    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    run_dir = make_run(tmp_path / "run", "mlflow")
    write(run_dir)
    write(run_dir, resume_step=20, steps=(30,))  # Continues the same run.
    client = mlflow.MlflowClient((run_dir / "mlflow").as_uri())
    experiment = client.get_experiment_by_name("rl-replicator")
    (run,) = client.search_runs([experiment.experiment_id])
    history = client.get_metric_history(run.info.run_id, "actor/return")
    assert [(metric.step, metric.value) for metric in history] == [(10, 2.5), (20, 5.0), (30, 7.5)]
    assert run.data.params["agent.n_step"] == "3"
