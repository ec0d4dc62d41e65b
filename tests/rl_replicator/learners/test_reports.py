"""The pace in the progress line, and the rows of the tables."""

import itertools
import types

import numpy as np
import pytest

from rl_replicator.errors import ConfigError
from rl_replicator.learners import reports
from rl_replicator.runs.metrics import read_metrics
from rl_replicator.runs.run_directory import RunDirectory


def make(path, num_steps=100, state=None):
    return reports.ChiefReports(RunDirectory(path), num_steps, 2, 8, 0, 0.0, state or {})


def test_an_evaluation_does_not_change_the_pace(tmp_path, monkeypatch, capfd):
    now = 100.0
    monkeypatch.setattr(reports, "time", types.SimpleNamespace(monotonic=lambda: now))
    made = make(tmp_path)
    made.tick(0, False)
    assert "0/100 steps | ETA - |" in capfd.readouterr().err
    now += 5
    made.tick(40, False)
    now += 30
    made.add_evaluation(20, {"accuracy": 0.5}, "accuracy")
    made._line._next_line = 0.0
    made.tick(40, False)
    line = capfd.readouterr().err
    assert (
        "20/100 steps | ETA 0:20 | evaluation accuracy 0.5 @20 | 4 steps/s | 64 examples/s | "
        in line
    )
    assert line.endswith("bottleneck: devices (the input is ahead)\n")
    now += 5
    made.tick(80, True)
    made._line._next_line = 0.0
    made.tick(80, True)
    assert "4 steps/s | 64 examples/s | bottleneck: input (waited for 50%" in capfd.readouterr().err
    made.close()


def test_rows_depend_on_the_steps_alone(tmp_path):
    """A run of 4000 steps has a row every 4 steps, however they are divided into calls."""
    values = np.arange(24.0)
    tables = []
    for name, cuts in (("whole", [0, 24]), ("cut", [0, 1, 7, 8, 24])):
        made = make(tmp_path / name, num_steps=4000)
        for start, end in itertools.pairwise(cuts):
            made.add(start, end - start, {"loss": values[start:end]})
            if end == 7:  # Stopped here, and resumed.
                state = made.state()
                made.close()
                made = make(tmp_path / name, num_steps=4000, state=state)
        made.close()
        table = read_metrics(tmp_path / name, "train")
        tables.append((table["steps"].tolist(), table["loss"].tolist()))
    assert tables[0] == tables[1] == ([4, 8, 12], [3.5, 11.5, 19.5])


def test_a_metric_named_like_a_column_is_refused_before_the_first_row(tmp_path):
    with pytest.raises(ConfigError, match="of metrics/train.csv already, got a metric 'wall_time'"):
        make(tmp_path, num_steps=100_000).add(0, 1, {"wall_time": np.zeros(1)})


@pytest.mark.parametrize(
    ("name", "image", "message"),
    [
        ("val/samples", np.zeros([8, 8, 3], np.uint8), "'.', .* got 'val/samples'"),
        ("..", np.zeros([8, 8, 3], np.uint8), "got '..'"),
        ("best", np.zeros([8, 8, 3], np.uint8), "none of them a file of the run, got 'best'"),
        (".lock", np.zeros([8, 8, 3], np.uint8), "none of them a file of the run, got '.lock'"),
        ("a", np.zeros([8, 8, 3]), r"got 'a': float64 \[8, 8, 3\]; scale it to 0..255"),
        ("a", np.zeros([8, 8], np.uint8), r"got 'a': uint8 \[8, 8\]"),
    ],
)
def test_what_is_no_image_is_refused_before_anything_is_written(tmp_path, name, image, message):
    made = make(tmp_path / "run")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / ".lock").touch()
    with pytest.raises(ConfigError, match=message):
        made.add_images(10, {"good": np.zeros([2, 2, 1], np.uint8), name: image})
    assert [path.name for path in tmp_path.rglob("*")] == ["run", ".lock"]
    made.add_images(10, {"good": np.zeros([2, 2, 1], np.uint8)})
    made.close()
    assert (tmp_path / "run" / "good" / "0000010.png").exists()
