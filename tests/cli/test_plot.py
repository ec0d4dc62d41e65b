"""Curves and the figure."""

import csv
import errno
import json
import os
from pathlib import Path

import imageio.v3 as imageio
import numpy as np
import pytest

from rl_replicator.cli import compare, plot
from rl_replicator.errors import DiskError, UsageError
from rl_replicator.runs import plots
from rl_replicator.runs.run_directory import RunDirectory
from rl_replicator.runs.score import Score


@pytest.fixture
def make_run(tmp_path):
    def make(name, rows, seed=1, **identity):
        run = tmp_path / name
        (run / "metrics").mkdir(parents=True)
        identity = {"trainable": "d4pg", "env": "cartpole:swingup", "seed": seed, **identity}
        (run / "config.json").write_text(
            json.dumps({"trainable": "d4pg", "identity": identity, "options": {}})
        )
        with open(run / "metrics" / "evaluator.csv", "w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["environment_steps", "wall_time", "episode_return"])
            writer.writerows([step, step / 10, value] for step, value in rows)
        return run

    return make


def _curves(*run_dirs, figure=None):
    return plots.curves([plots.read(run_dir, figure) for run_dir in run_dirs])


def test_seeds_become_one_curve(make_run):
    one = make_run("a", [(0, 0), (100, 100), (200, 400)], seed=1)
    two = make_run("b", [(0, 10), (50, 60), (150, 260)], seed=2)
    (curve,) = _curves(one, two)
    assert curve.seeds == 2
    np.testing.assert_array_equal(curve.steps, [0, 50, 100, 150])
    np.testing.assert_array_equal(curve.values, [[0, 50, 100, 250], [10, 60, 160, 260]])


def test_a_seed_without_a_step_in_common_is_left_out(make_run, caplog):
    """It has no values at the steps of the others."""
    rows = [(1000, 10), (2000, 20)]
    runs = [make_run("a", rows), make_run("b", rows, seed=2), make_run("c", [(9000, 90)], seed=3)]
    (curve,) = _curves(*runs)
    assert curve.counted == "2 seeds" and curve.steps.tolist() == [1000, 2000]
    assert "left out seed 3: expected evaluations of seed 3 on cartpole:swingup at" in caplog.text
    (curve,) = _curves(runs[0], runs[2])  # A tie: one seed at each step.
    assert curve.counted == "1 seed" and curve.values.tolist() == [[90]]


def test_runs_of_one_seed_count_once(make_run):
    """They are not independent: their mean stands for the seed."""
    runs = [make_run(str(last), [(0, 0), (100, last)], seed=1) for last in (10, 30)]
    (curve,) = _curves(*runs)
    assert (curve.runs, curve.seeds, curve.counted) == (2, 1, "2 runs of 1 seed")
    np.testing.assert_array_equal(curve.values, [[0, 20]])
    (curve,) = _curves(*runs, make_run("other", [(0, 0), (100, 5)], seed=2))
    assert (curve.seeds, curve.counted) == (2, "3 runs of 2 seeds")
    np.testing.assert_array_equal(curve.values, [[0, 20], [0, 5]])


def test_other_settings_become_other_curves(make_run):
    one = make_run("a", [(0, 0), (100, 100)], agent={"n_step": 5})
    two = make_run("b", [(0, 0), (100, 50)], agent={"n_step": 1})
    first, second = _curves(one, two)
    assert (first.seeds, second.seeds) == (1, 1)
    assert plots.short_labels([first.settings, second.settings]) == ["n step 5", "n step 1"]
    assert plots._title([first.settings, second.settings]) == "d4pg on cartpole:swingup"


def test_a_legend_names_what_matters():
    def one(trainable="d4pg", env="a:b", **agent):
        settings = {f"agent.{name}": value for name, value in agent.items()}
        return {"trainable": trainable, "env": env, **settings}

    many = dict.fromkeys("abcdef", 1)
    assert plots.short_labels([one(**many)]) == [""]
    assert plots.short_labels([one(**many), one("sac", g=2)]) == ["d4pg", "sac"]
    assert plots.short_labels([one(), one(env="c:d")]) == ["a:b", "c:d"]
    assert plots.short_labels([one(**many), one(a=2)]) == ["a 1, b 1, 4 more", "a 2, no b, 4 more"]
    # Lines that share a name are distinguished by as many settings as needed.
    grid = [{"a": a, "b": a, "x.rate": c, "y.rate": a} for a, c in ((1, 1), (1, 2), (2, 1))]
    labels = [
        "a 1, b 1, x.rate 1, 1 more",
        "a 1, b 1, x.rate 2, 1 more",
        "a 2, b 2, x.rate 1, 1 more",
    ]
    assert plots.short_labels(grid) == labels
    assert plots.short_labels([one(n=1), one("sac"), one(n=3), one("sac", env="c:d")]) == [
        "d4pg, a:b, n 1",
        "sac, a:b",
        "d4pg, a:b, n 3",
        "sac, c:d",
    ]


def test_a_step_evaluated_again_after_a_resume_counts_once(make_run):
    (curve,) = _curves(make_run("a", [(0, 1), (100, 7), (50, 4), (100, 9)]))
    np.testing.assert_array_equal(curve.steps, [0, 50, 100])
    np.testing.assert_array_equal(curve.values, [[1, 4, 9]])


def test_a_run_without_evaluations(make_run):
    with pytest.raises(UsageError, match=r"expected evaluations in .*, got none yet"):
        _curves(make_run("a", []))


def test_runs_of_learners_are_plotted_too(make_run):
    run = make_run("a", [])
    (run / "metrics" / "evaluator.csv").unlink()
    (run / "metrics" / "evaluation.csv").write_text(
        "steps,wall_time,top_1,loss\n10,1.0,0.5,2.0\n20,2.0,0.75,1.0\n"
    )
    (curve,) = _curves(run)
    assert (curve.x_label, curve.y_label) == ("steps", "top 1")
    np.testing.assert_array_equal(curve.values, [[0.5, 0.75]])
    (curve,) = _curves(run, figure="loss")
    np.testing.assert_array_equal(curve.values, [[2.0, 1.0]])
    with pytest.raises(UsageError, match="--figure: expected one of top_1, loss, got 'accuracy'"):
        _curves(run, figure="accuracy")
    with pytest.raises(UsageError, match="episode return over environment steps, top 1 over steps"):
        _curves(run, make_run("b", [(0, 1)]))
    RunDirectory(run).describe("d4pg", {}, {}, Score("evaluation", "loss", False).plain())
    (curve,) = _curves(run)  # The score takes precedence over the first figure.
    assert (curve.y_label, curve.is_lowest_best) == ("loss", True)
    assert _curves(run, figure="top_1")[0].is_lowest_best is None


def _colours(path):
    """Pixels of the picture that are neither grey, black nor white."""
    pixels = imageio.imread(path)[..., :3].astype(int)
    return int(np.sum(pixels.max(-1) - pixels.min(-1) > 60)), pixels.shape


def test_command_draws(command, make_run, tmp_path):
    rows = [(step, step / 2) for step in range(0, 1001, 100)]
    single = make_run("a", rows)
    done = command("plot", single)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"{single / 'evaluation.png'}\n"
    line, shape = _colours(single / "evaluation.png")
    assert shape == (600, 960, 3)
    assert line > 500
    other = make_run("b", [(step, value * 0.4) for step, value in rows], seed=2)
    done = command("plot", single, other, "--out", "deep/both.png")
    assert (done.returncode, done.stdout, done.stderr) == (0, "deep/both.png\n", "")
    band, _ = _colours(tmp_path / "deep" / "both.png")
    assert band > 300


def test_a_full_disk_leaves_the_image_of_before(make_run, tmp_path, monkeypatch):
    def fail(self, path, **_):
        Path(path).write_bytes(b"part")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    for n_step in (1, 3):
        make_run(f"runs/{n_step}", [(0, 1), (100, 7)], agent={"n_step": n_step})
    before, words = tmp_path / "before.png", [str(tmp_path / "runs"), "--out"]
    before.write_text("before")
    monkeypatch.setattr("matplotlib.figure.Figure.savefig", fail)
    for command in (plot, compare):
        with pytest.raises(DiskError, match=r"cannot write the plot to .*No space left"):
            command.run([*words, str(before)])
    assert before.read_text() == "before"
    assert {path.name for path in tmp_path.iterdir()} == {"before.png", "runs"}


def test_folders_are_entered_and_unusable_runs_left_out(command, make_run, tmp_path):
    """As `report` and `compare` do."""
    make_run("runs/good", [(0, 1), (100, 7)])
    make_run("runs/bad", [])
    (tmp_path / "no-run").mkdir()
    done = command("plot", "runs", "no-run")
    assert (done.returncode, done.stdout) == (0, "evaluation.png\n")
    first, second = done.stderr.splitlines()
    assert first.startswith("left out runs/bad: expected evaluations in runs/bad, got none yet")
    assert second.startswith(
        "left out no-run: expected the directory of a run, but there is no no-run/"
    )
    done = command("plot", "runs/bad", "no-run")
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert "expected evaluations in runs/bad" in line and "no no-run/config.json" in line
