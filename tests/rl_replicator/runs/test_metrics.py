"""Curves that survive new columns, resumes and kills."""

import contextlib
import resource
import time

import imageio.v3
import numpy as np
import pytest
from tensorboard.backend.event_processing import event_accumulator

import rl_replicator as rr
from rl_replicator.runs import metrics


def test_rows_and_late_columns(tmp_path):
    writer = metrics.MetricWriter(tmp_path, "environment_steps")
    writer.write("learner", 10, {"loss": 0.5})
    writer.write("learner", 20, {"loss": np.float32(0.25), 'a, "b"': 1e-20})
    writer.write("learner", 30, {'a, "b"': float("nan")})
    read = metrics.read_metrics(tmp_path, "learner")  # While it is being written.
    assert list(read) == ["environment_steps", "wall_time", "loss", 'a, "b"']
    assert read["environment_steps"].dtype == np.int64
    assert read["environment_steps"].tolist() == [10, 20, 30]
    np.testing.assert_array_equal(read["loss"], [0.5, 0.25, np.nan])
    np.testing.assert_array_equal(read['a, "b"'], [np.nan, 1e-20, np.nan])
    assert (np.diff(read["wall_time"]) >= 0).all()
    assert metrics.read_metrics(tmp_path, "nothing") == {}
    writer.close()
    assert list((tmp_path / "tensorboard" / "learner").glob("events*"))


def test_resume_drops_what_will_be_made_again(tmp_path):
    writer = metrics.MetricWriter(tmp_path, "steps")
    for step in (0, 10, 20, 30):
        writer.write("eval", step, {"return": step})
    writer.write("other", 30, {"x": 1})
    writer.close()
    writer = metrics.MetricWriter(tmp_path, "steps", resume_step=20)
    writer.write("eval", 25, {"return": -1, "new": 5})
    writer.close()
    read = metrics.read_metrics(tmp_path, "eval")
    assert read["steps"].tolist() == [0, 10, 20, 25]
    assert read["return"].tolist() == [0, 10, 20, -1]
    assert metrics.read_metrics(tmp_path, "other")["steps"].tolist() == [30]  # It has no new rows.
    with pytest.raises(rr.ConfigError, match="expected x-axis 'frames'"):
        metrics.MetricWriter(tmp_path, "frames").write("eval", 1, {"x": 1})


def test_a_metric_of_any_name_survives_a_resume(tmp_path):
    names = ("a\nb", "a\r\nb", "a\u2028b", "a\x0cb", 'a,"b"')
    for step in (1, 2):
        with contextlib.closing(metrics.MetricWriter(tmp_path, "steps")) as writer:
            writer.write("train", step, dict.fromkeys(names, step))
    read = metrics.read_metrics(tmp_path, "train")
    assert [read[name].tolist() for name in names] == [[1, 2]] * len(names)


def test_what_is_refused(tmp_path):
    """A metric named like another column, and a group that is no name of a file."""
    writer = metrics.MetricWriter(tmp_path, "steps")
    expected = "than steps, wall_time, learner_steps, .* of metrics/eval.csv already, .* "
    for name in ("steps", "wall_time", "learner_steps"):
        with pytest.raises(rr.ConfigError, match=f"{expected}'{name}'"):
            writer.write("eval", 1, {"loss": 2, name: 3}, {"learner_steps": 5})
    with pytest.raises(rr.ConfigError, match="expected a group of letters"):
        writer.write("a/b", 1, {"x": 1})
    assert not list(tmp_path.iterdir())
    writer.write("eval", 1, {"loss": 2}, {"learner_steps": 5})
    read = metrics.read_metrics(tmp_path, "eval")
    assert list(read) == ["steps", "wall_time", "learner_steps", "loss"]
    assert read["learner_steps"] == [5] and read["steps"] == [1]
    writer.close()


def test_an_unfinished_row_is_mended(tmp_path):
    writer = metrics.MetricWriter(tmp_path, "environment_steps")
    writer.write("eval", 1, {"return": 2})
    writer.close()
    with (tmp_path / "metrics" / "eval.csv").open("a") as file:
        file.write("2,0.3,4")
    assert metrics.read_metrics(tmp_path, "eval")["return"].tolist() == [2]
    writer = metrics.MetricWriter(tmp_path, "environment_steps")
    writer.write("eval", 3, {"return": 6})
    assert metrics.read_metrics(tmp_path, "eval")["return"].tolist() == [2, 6]
    writer.close()


def test_all_groups_share_one_clock_that_a_resume_continues(tmp_path):
    writer = metrics.MetricWriter(tmp_path, "steps", seconds=100.0)
    writer.write("train", 1, {"x": 1})
    time.sleep(0.01)
    writer.write("eval", 1, {"x": 1})
    train, evaluation = (
        metrics.read_metrics(tmp_path, group)["wall_time"][0] for group in ("train", "eval")
    )
    assert 100 <= train < evaluation <= writer.seconds < 160
    writer.close()


@pytest.mark.parametrize("change", [0, -3600, 3600])
def test_tensorboard_hides_what_a_resume_makes_again_whatever_the_clock(
    tmp_path, monkeypatch, change
):
    now = time.time()
    for value, resume, steps in ((1.0, None, (10, 20, 30)), (2.0, 20, (25, 35)), (3.0, 25, (30,))):
        monkeypatch.setattr(time, "time", lambda now=now: now)
        monkeypatch.setattr(time, "time_ns", lambda now=now: int(now * 1e9))
        with contextlib.closing(metrics.MetricWriter(tmp_path, "steps", resume)) as writer:
            for step in steps:
                writer.write("eval", step, {"return": value})
                writer.write_image("images", step, "grid", np.full([4, 5, 3], step, np.uint8))
        now += change
    board = event_accumulator.EventAccumulator(str(tmp_path / "tensorboard" / "eval"))
    board.Reload()
    points = [(event.step, event.value) for event in board.Scalars("return")]
    assert points == [(10, 1.0), (20, 1.0), (25, 2.0), (30, 3.0)]
    board = event_accumulator.EventAccumulator(str(tmp_path / "tensorboard" / "images"))
    board.Reload()
    assert [image.step for image in board.Images("grid")] == [10, 20, 25, 30]
    pixels = imageio.v3.imread(board.Images("grid")[-1].encoded_image_string)
    assert (pixels == 30).all() and pixels.shape == (4, 5, 3)
    assert not (tmp_path / "metrics" / "images.csv").exists()


@contextlib.contextmanager
def limited(kind, most):
    """Lowers a limit of this process."""
    soft, hard = resource.getrlimit(kind)
    resource.setrlimit(kind, (most, hard))
    try:
        yield
    finally:
        resource.setrlimit(kind, (soft, hard))


def test_a_disk_without_space_is_an_error_and_no_wait(tmp_path):
    writer = metrics.MetricWriter(tmp_path, "environment_steps")
    image = np.random.default_rng(0).integers(256, size=[40, 40, 3], dtype=np.uint8)
    with (
        pytest.raises(rr.DiskError, match=r"File too large.*\(ulimit -f\)"),
        limited(resource.RLIMIT_FSIZE, 4096),
    ):
        for step in range(30):
            writer.write_image("eval", step, "observation", image)


def test_too_many_open_files_are_no_full_disk(tmp_path):
    writer = metrics.MetricWriter(tmp_path, "steps")
    match = r"raise the limit on open files \(ulimit -n\), then"
    with pytest.raises(rr.DiskError, match=match), limited(resource.RLIMIT_NOFILE, 0):
        writer.write("train", 1, {"loss": 1.0})


def test_every_row_is_passed_to_the_operating_system_at_once(tmp_path):
    """So that a kill loses none."""
    writer = metrics.MetricWriter(tmp_path, "environment_steps")
    for step in range(10):
        writer.write("eval", step, {"x": step})
    assert metrics.read_metrics(tmp_path, "eval")["x"].tolist() == list(range(10))
    board = event_accumulator.EventAccumulator(str(tmp_path / "tensorboard" / "eval"))
    board.Reload()
    assert [event.value for event in board.Scalars("x")] == list(range(10))
    writer.close()
