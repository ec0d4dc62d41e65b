"""Evaluations of runs: which are read, their curves and configs, `plot` and `compare`."""

import csv
import errno
import json
import os
from pathlib import Path

import imageio.v3 as imageio
import numpy as np
import pytest

from rl_replicator.cli import results, train
from rl_replicator.errors import DiskError, UsageError
from rl_replicator.runs import comparison, evaluations
from rl_replicator.runs.evaluations import Score
from rl_replicator.runs.run_directory import RunDirectory

RETURN = Score("evaluator", "episode_return")


@pytest.fixture
def make_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def make(name, rows, group="evaluator", options=None, score=RETURN, **identity):
        run = tmp_path / name
        (run / "metrics").mkdir(parents=True)
        identity = {"trainable": "d4pg", **identity}
        config = {"trainable": "d4pg", "identity": identity, "options": options or {}}
        config["score"] = score and score.plain()
        (run / "config.json").write_text(json.dumps(config))
        with (run / "metrics" / f"{group}.csv").open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["environment_steps", "wall_time", "episode_return"])
            writer.writerows([step, step / 10, value] for step, value in rows)
        return run

    return make


def curves(*run_dirs, figure=None):
    return evaluations.curves([evaluations.read(run_dir, figure) for run_dir in run_dirs])


def compared(run_dirs):
    configs = evaluations.configs(curves(*run_dirs))
    pairs = comparison.pairs(configs)
    return configs, pairs, comparison.report(configs, pairs)


def test_seeds_become_one_curve_and_a_step_evaluated_again_counts_once(make_run, caplog):
    one = make_run("a", [(0, 0), (100, 50), (200, 400), (100, 100)], env="a:b", seed=1)
    two = make_run("b", [(0, 10), (50, 60), (150, 260)], env="a:b", seed=2)
    (curve,) = curves(one, two)
    assert (curve.seeds, curve.counted) == (2, "2 seeds")
    np.testing.assert_array_equal(curve.steps, [0, 50, 100, 150])
    np.testing.assert_array_equal(curve.values, [[0, 50, 100, 250], [10, 60, 160, 260]])
    np.testing.assert_array_equal(curve.is_measured, [True, False, False, False])
    # A further run of a seed is not independent: the mean stands for the seed.
    (curve,) = curves(one, two, make_run("again", [(0, 20), (200, 420)], env="a:b", seed=1))
    assert (curve.seeds, curve.counted) == (2, "3 runs of 2 seeds")
    np.testing.assert_array_equal(curve.values[0], [10, 85, 160, 285])
    # A seed without a step in common has no values at the steps of the others.
    (curve,) = curves(one, two, make_run("late", [(9000, 90)], env="a:b", seed=3))
    assert curve.counted == "2 seeds"
    assert "left out: seed 3 has evaluations at 9,000 to 9,000 environment steps" in caplog.text


def test_the_score_of_a_learner_comes_before_its_first_figure(make_run):
    run = make_run("a", [], group="none")
    (run / "metrics" / "evaluation.csv").write_text(
        "steps,wall_time,top_1,loss\n10,1.0,0.5,2.0\n20,2.0,0.75,1.0\n"
    )
    (curve,) = curves(run)
    assert (curve.x_label, curve.y_label, curve.is_lowest_best) == ("steps", "top 1", None)
    np.testing.assert_array_equal(curves(run, figure="loss")[0].values, [[2.0, 1.0]])
    with pytest.raises(UsageError, match="--figure: expected one of top_1, loss, got 'accuracy'"):
        curves(run, figure="accuracy")
    with pytest.raises(UsageError, match="episode return over environment steps, top 1 over steps"):
        curves(run, make_run("b", [(0, 1)]))
    RunDirectory(run).describe("d4pg", {}, {}, Score("evaluation", "loss", False).plain())
    assert [(one.y_label, one.is_lowest_best) for one in curves(run)] == [("loss", True)]


def test_what_makes_a_config(make_run):
    """Neither task nor seed, but options that make a difference."""
    runs = [
        make_run(
            f"{env}{seed}",
            [(0, 0)],
            env=env,
            seed=seed,
            agent={"samples": 16.0},
            environment={"observations": [size]},
        )
        for env, seed, size in (("a:b", 0, 4), ("a:b", 1, 4), ("c:d", 0, 24))
    ]
    (config,) = evaluations.configs(curves(*runs))
    assert {task: curve.seeds for task, curve in config.curves.items()} == {"a:b": 2, "c:d": 1}
    assert (config.name, config.settings) == ("d4pg", {})
    for option, values in (("env_engine", ("dm_control", "envpool")), ("actors", (1, 4))):
        others = [
            make_run(f"{option}{value}", [(0, 5)], env="a:b", options={option: value, "steps": 9})
            for value in values
        ]
        configs = evaluations.configs(curves(*others))
        assert [one.settings for one in configs] == [{option: value} for value in values]
    many = [make_run(f"many{n}", [(0, n)], agent=dict.fromkeys("abcd", n)) for n in (1, 2)]
    names = [one.name for one in evaluations.configs(curves(*many))]
    assert names == ["a 1, b 1, 2 more", "a 2, b 2, 2 more"]
    other = make_run("sac", [(0, 1)], trainable="sac", agent={"a": 1})
    assert [one.name for one in evaluations.configs(curves(many[0], other))] == ["d4pg", "sac"]


@pytest.fixture
def run_dirs(make_run):
    """Two configs with two tasks and two seeds each; one seed of the second ends early."""
    found = []
    for n_step, gain in ((5, 100.0), (1, 50.0)):
        for env, best in (("a:b", 0.0), ("c:d", 10.0)):
            for seed in (1, 2):
                last = 100 if (n_step, env, seed) == (1, "a:b", 2) else 200
                rows = [(0, 0), (100, best + gain / 2 + seed), (200, best + gain + 2 * seed)]
                rows = [row for row in rows if row[0] <= last]
                name = f"runs/{env}-{n_step}-{seed}".replace(":", "-")
                found.append(make_run(name, rows, env=env, seed=seed, agent={"n_step": n_step}))
    return found


def test_two_configs_are_compared_where_all_their_runs_have_been(run_dirs):
    (one, other), (pair,), text = compared(run_dirs)
    assert (one.label, one.settings) == ("A", {"agent.n_step": 5})
    assert (other.label, other.name) == ("B", "n step 1")
    assert pair.steps == {"a:b": 100, "c:d": 200}
    # Means at these steps: 51.5 and 113 against 26.5 and 63.
    assert pair.difference.value == pytest.approx((25 + 50) / 2)
    # The extremes, 36 and 39, are drawn in 1 of 256 resamples each.
    assert 36 <= pair.difference.low < 37.5 < pair.difference.high <= 39
    assert pair.improvement.value == 1.0 and pair.verdict == "A is higher"
    text = " ".join(text.split())
    assert text.startswith("config agent.n_step A 5 B 1 task steps ")
    assert " a:b 100 51.5 (51 to 52, 2 seeds) 26.5 (26 to 27, 2 seeds) c:d " in text
    assert " A - B 2 100 to 200 37.5 [3" in text and text.endswith(" 1 [1, 1] A is higher")


def test_a_figure_between_two_evaluations_is_marked(make_run):
    one = make_run("a", [(0, 0), (90, 9), (110, 11)], agent={"n": 1})
    other = make_run("b", [(0, 0), (100, 20)], agent={"n": 2})
    text = " ".join(compared([one, other])[-1].split())
    assert " 100 ~10 20 ~: not measured at this step, but between two evaluations " in text


def test_noise_is_no_difference(make_run):
    random = np.random.default_rng(0)
    dirs = [
        make_run(f"{n_step}-{seed}", [(100, value)], env="a:b", seed=seed, agent={"n": n_step})
        for n_step in (1, 2)
        for seed, value in enumerate(random.normal(500, 100, 5))
    ]
    _, (pair,), _ = compared(dirs)
    assert pair.verdict == "not distinguishable with these seeds"
    assert pair.improvement.low < 0.5 < pair.improvement.high


@pytest.mark.parametrize(
    ("scores", "improvement", "verdict"),
    [
        ([None, Score("evaluator", "episode_return", False)], "0 [0, 0]", "B is lower"),
        ([None, RETURN], "1 [1, 1]", "A is higher"),
        ([Score("evaluator", "another")] * 2, "-", "A is higher"),
        ([RETURN, Score("evaluator", "episode_return", False)], "-", "A is higher"),
    ],
)
def test_the_direction_of_the_score_decides_which_is_better(make_run, scores, improvement, verdict):
    dirs = [
        make_run(f"{n}{s}", [(10, value + s)], seed=s, config={"n": n}, score=score)
        for n, value, score in zip((1, 2), (90.0, 10.0), scores, strict=True)
        for s in (1, 2)
    ]
    _, (pair,), text = compared(dirs)
    assert pair.difference.value == 80.0
    assert (str(pair.improvement), pair.verdict) == (improvement, verdict)
    assert text.endswith(verdict)


def test_one_seed_has_no_interval_however_many_the_others_have(make_run):
    """Nor have two runs of the same seed."""
    runs = [
        make_run(f"{env}{n}{seed}-{again}", [(10, 10 * n + seed + again)], env=env, seed=seed, a=n)
        for env in ("a", "c")
        for n, seeds, repeats in ((1, 2, 1), (2, 1 if env == "a" else 2, 2))
        for seed in range(seeds)
        for again in range(repeats)
    ]
    _, (pair,), text = compared(runs)
    assert pair.verdict == "one seed: no interval"
    assert "20.5 (2 runs of 1 seed)" in text and "[" not in text.splitlines()[-1]


def test_configs_are_compared_only_at_steps_of_both(make_run):
    """A curve has no figure before its first evaluation, nor after its last one."""
    tables = {1: [(500, 5), (1000, 10)], 5: [(10000, 100), (20000, 200)], 9: [(500, 1), (20000, 1)]}
    dirs = [
        make_run(f"{n}-{env}", rows, env=env, agent={"n": n})
        for n, rows in tables.items()
        for env in ("a", "b")
        if (n, env) != (9, "b")
    ]
    _, found, text = compared(dirs)
    assert [pair.steps for pair in found] == [{}, {"a": 1000}, {"a": 20000}]
    rows = [line.split() for line in text.splitlines()]
    assert ["a", "1,000", "10", "-", "~1"] in rows and ["a", "20,000", "-", "200", "1"] in rows
    assert ["b", *["none", "in", "common", "-", "-", "-"]] in rows
    assert [*["A", "-", "B", "0", "-", "-", "-", "no", "steps", "in", "common"]] in rows
    assert [*["B", "-", "C", "1", "20,000", "199", "-", "one", "seed:", "no", "interval"]] in rows


def _colours(path):
    """Pixels of the picture that are neither grey, black nor white."""
    pixels = imageio.imread(path)[..., :3].astype(int)
    return int(np.sum(pixels.max(-1) - pixels.min(-1) > 60)), pixels.shape


def test_the_commands(run_dirs, make_run, capsys):
    """A folder stands for its runs, and those that cannot be used are left out."""
    make_run("runs/bad", [])
    single = str(run_dirs[0])
    assert results.plot([single]) == 0
    assert capsys.readouterr() == (f"{single}/evaluation.png\n", "")
    pixels, shape = _colours(f"{single}/evaluation.png")
    assert shape == (600, 960, 3) and pixels > 500
    assert results.plot(["runs", "--out", "deep/all.png"]) == 0
    printed, errors = capsys.readouterr()
    assert printed == "deep/all.png\n" and _colours("deep/all.png")[1][1] > 1200  # Two panels.
    why = "expected evaluations with episode_return, got no finite value yet"
    assert errors == f"left out runs/bad: {why}\n"
    assert results.compare(["runs"]) == 0
    printed, errors = capsys.readouterr()
    assert "A is higher" in printed or "B is higher" in printed
    assert printed.endswith("\ncomparison.png\n") and errors.startswith("left out runs/bad")
    assert _colours("comparison.png")[0] > 1000


def test_a_full_disk_leaves_the_image_of_before(run_dirs, tmp_path, monkeypatch):
    def fail(self, path, **_):
        Path(path).write_bytes(b"part")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    before = tmp_path / "before.png"
    before.write_text("before")
    monkeypatch.setattr("matplotlib.figure.Figure.savefig", fail)
    for command in (results.plot, results.compare):
        with pytest.raises(DiskError, match=r"cannot write the plot to .*No space left"):
            command(["runs", "--out", str(before)])
    assert before.read_text() == "before"
    assert {path.name for path in tmp_path.iterdir()} == {"before.png", "runs"}


def describe(path, kind):
    """The directory of a run, a sweep or a suite."""
    path.mkdir(parents=True)
    RunDirectory(path).describe(kind, {}, {})


@pytest.fixture
def sweep_and_suite(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    describe(Path("sweep"), "sweep")
    describe(Path("suite"), "suite")
    for run in ("sweep/trial-000/seed-1", "sweep/trial-001/seed-1", "suite/a-seed1"):
        describe(Path(run), "d4pg")
    (tmp_path / "sweep/logs").mkdir()


def test_which_runs_paths_stand_for(sweep_and_suite):
    trials = [Path("sweep/trial-000/seed-1"), Path("sweep/trial-001/seed-1")]
    assert evaluations.expanded([Path("sweep")]) == trials
    assert evaluations.expanded([Path()]) == [Path("suite/a-seed1"), *trials]
    alone = Path("runs/d4pg/a-seed1-1")  # Where a run lies by default.
    describe(alone, "d4pg")
    assert evaluations.expanded([Path("runs")]) == [alone]
    os.symlink(trials[1], "link")
    given = [trials[1], trials[1].absolute(), Path("link"), Path("sweep")]
    assert evaluations.expanded(given) == [trials[1], trials[0]]  # Each once, in this order.
    describe(Path("empty"), "sweep")
    assert evaluations.expanded([Path("empty")]) == [Path("empty")]
    # A run stands for itself, whatever lies in it, and even if it is damaged.
    describe(trials[0] / "copy", "d4pg")
    assert evaluations.expanded([trials[0]]) == [trials[0]]
    (trials[0] / "config.json").write_text("{")
    assert evaluations.expanded([trials[0]]) == [trials[0]]
    # A link that leads to itself hides no run.
    os.symlink("loop", "loop")
    found, left_out = evaluations.readable(
        [Path("loop"), trials[1]], lambda path: RunDirectory(path).config()["trainable"]
    )
    assert found == ["d4pg"] and "Too many levels of symbolic links" in left_out[Path("loop")]


@pytest.mark.parametrize(
    "command",
    [
        lambda path: results.evaluate([path]),
        lambda path: results.export([path, "--format", "numpy", "--out", "out"]),
        lambda path: train.run(["d4pg", "--run-dir", path]),
    ],
    ids=["eval", "export", "train"],
)
def test_one_of_many_runs_must_be_named(sweep_and_suite, command):
    expected = "one run, got sweep, which holds a sweep; .*, such as sweep/trial-000/seed-1"
    with pytest.raises(UsageError, match=expected):
        command("sweep")
    with pytest.raises(UsageError, match="got suite, which holds a suite; .*, such as suite/a-s"):
        command("suite")
