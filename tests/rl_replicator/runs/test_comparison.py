"""Several configs, compared: settings, figures, tests and curves."""

import csv
import json

import imageio.v3 as imageio
import numpy as np
import pytest

from rl_replicator.errors import UsageError
from rl_replicator.runs import comparison, plots
from rl_replicator.runs.score import Score

RETURN = Score("evaluator", "episode_return")


@pytest.fixture
def make_run(tmp_path):
    def make(name, rows, group="evaluator", options=None, score=RETURN, **identity):
        run = tmp_path / name
        (run / "metrics").mkdir(parents=True)
        config = {"trainable": "d4pg", "identity": identity, "options": options or {}}
        config["score"] = score and score.plain()
        (run / "config.json").write_text(json.dumps(config))
        with (run / "metrics" / f"{group}.csv").open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["environment_steps", "wall_time", "episode_return"])
            writer.writerows([step, step / 10, value] for step, value in rows)
        return run

    return make


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
                name = f"{env}-{n_step}-{seed}".replace(":", "-")
                found.append(make_run(name, rows, env=env, seed=seed, agent={"n_step": n_step}))
    return found


def _configs(run_dirs):
    return comparison.configs([plots.read(run_dir) for run_dir in run_dirs])


def test_tasks_and_seeds_belong_to_one_config(run_dirs):
    one, other = _configs(run_dirs)
    assert (one.label, one.settings) == ("A", {"agent.n_step": 5})
    assert (other.label, other.settings) == ("B", {"agent.n_step": 1})
    assert {task: curve.seeds for task, curve in one.curves.items()} == {"a:b": 2, "c:d": 2}


def test_a_number_has_one_spelling(make_run):
    """The command line stores 16.0 for a real number; Python and TOML store what was written."""
    spellings = ({"samples": 16, "layers": [1.0]}, {"samples": 16.0, "layers": [1]})
    found = [
        make_run(f"{seed}", [(0, 0), (100, 900 * seed)], env="a:b", seed=seed, agent=agent)
        for seed, agent in enumerate(spellings)
    ]
    other = make_run("2", [(0, 0), (100, 5)], env="a:b", seed=0, agent={"samples": 16.5})
    one, _ = _configs([*found, other])
    assert one.curves["a:b"].seeds == 2 and one.curves["a:b"].values[:, -1].mean() == 450
    assert one.settings == {"agent.layers": [1], "agent.samples": 16}


def test_two_configs_are_compared_where_all_their_runs_have_been(run_dirs):
    (pair,) = comparison.pairs(_configs(run_dirs))
    assert pair.steps == {"a:b": 100, "c:d": 200}
    # Means at these steps: 51.5 and 113 against 26.5 and 63.
    assert pair.difference.value == pytest.approx((25 + 50) / 2)
    # The extremes, 36 and 39, are drawn in 1 of 256 resamples each.
    assert 36 <= pair.difference.low < 37.5 < pair.difference.high <= 39
    assert pair.improvement.value == 1.0 and pair.verdict == "A is higher"
    text = " ".join(comparison.report(*_read(run_dirs)).split())
    assert text.startswith("config agent.n_step A 5 B 1 task steps ")
    assert " a:b 100 51.5 (51 to 52, 2 seeds) 26.5 (26 to 27, 2 seeds) c:d " in text
    assert " A - B 2 100 to 200 37.5 [3" in text and text.endswith(" 1 [1, 1] A is higher")


def _read(run_dirs):
    compared = _configs(run_dirs)
    return compared, comparison.pairs(compared)


def test_noise_is_no_difference(make_run):
    random = np.random.default_rng(0)
    dirs = [
        make_run(f"{n_step}-{seed}", [(100, value)], env="a:b", seed=seed, agent={"n": n_step})
        for n_step in (1, 2)
        for seed, value in enumerate(random.normal(500, 100, 5))
    ]
    (pair,) = comparison.pairs(_configs(dirs))
    assert pair.verdict == "not distinguishable with these seeds"
    assert pair.improvement.low < 0.5 < pair.improvement.high


def test_runs_of_learners(make_run):
    one = make_run("a", [(10, 0.5)], group="evaluation", depth=18)
    other = make_run("b", [(10, 0.75)], group="evaluation", depth=50)
    compared, pairs = _read([one, other])
    assert pairs[0].verdict == "one seed: no interval"
    last = comparison.report(compared, pairs).splitlines()[-1]
    assert last.split() == [
        "A",
        "-",
        "B",
        "1",
        "10",
        "-0.25",
        "-",
        "one",
        "seed:",
        "no",
        "interval",
    ]


@pytest.mark.parametrize(
    ("is_highest_best", "improvement", "verdict"),
    [(False, 1.0, "B is lower"), (True, 0.0, "A is hi")],
)
def test_the_direction_of_the_score_decides_which_is_better(
    make_run, is_highest_best, improvement, verdict
):
    """The runs of one config are of an earlier version, which did not store it."""
    score = Score("evaluator", "episode_return", is_highest_best)
    dirs = [
        make_run(f"{n}{s}", [(10, value + s)], seed=s, config={"n": n}, score=told)
        for n, value, told in ((1, 90.0, None), (2, 10.0, score))
        for s in (1, 2)
    ]
    _, (pair,) = _read(dirs)
    assert pair.difference.value == 80.0 and pair.verdict.startswith(verdict)
    assert pair.improvement.value == 1.0 - improvement
    assert comparison.pairs(_configs(dirs[::-1]))[0].improvement.value == improvement


@pytest.mark.parametrize(
    "scores",
    [
        [Score("evaluator", "another")] * 2,
        [None, None],
        [RETURN, Score("evaluator", "episode_return", is_highest_best=False)],
    ],
)
def test_without_a_direction_no_config_is_better(make_run, scores):
    dirs = [
        make_run(f"{n}{s}", [(10, 9.0 * n + s)], seed=s, config={"n": n}, score=score)
        for n, score in zip((1, 2), scores, strict=True)
        for s in (1, 2)
    ]
    compared, (pair,) = _read(dirs)
    assert pair.difference.value == -9.0 and pair.verdict == "B is higher"
    assert np.isnan(pair.improvement.value)
    assert comparison.report(compared, [pair]).split()[-4:] == ["-", "B", "is", "higher"]


@pytest.mark.parametrize("tasks", [("a:b",), ("a:b", "c:d")])
def test_one_seed_of_one_config_has_no_interval(make_run, tasks):
    """Its spread is not known, however many seeds the other config and the other tasks have."""
    runs = [
        make_run(f"{env[0]}{n}{seed}", [(100, 10 * n + seed)], env=env, seed=seed, agent={"n": n})
        for env in tasks
        for n, seeds in ((1, 2), (2, 1 if env == "a:b" else 2))
        for seed in range(seeds)
    ]
    compared, (pair,) = _read(runs)
    assert pair.verdict == "one seed: no interval"
    assert not np.isfinite([pair.difference.low, pair.improvement.high]).any()
    assert "[" not in comparison.report(compared, [pair]).splitlines()[-1]


def test_runs_of_one_seed_are_no_seeds(make_run):
    dirs = [
        make_run(f"{n}-{again}", [(100, n + again)], env="a:b", seed=1, agent={"n": n})
        for n in (1, 5)
        for again in (0, 1)
    ]
    compared, (pair,) = _read(dirs)
    assert pair.verdict == "one seed: no interval"
    text = comparison.report(compared, [pair])
    assert "1.5 (2 runs of 1 seed)" in text and "5.5 (2 runs of 1 seed)" in text


def test_configs_are_compared_only_at_steps_of_both(make_run):
    """A curve has no figure before its first evaluation, nor after its last one."""
    tables = {1: [(500, 5), (1000, 10)], 5: [(10000, 100), (20000, 200)], 9: [(500, 1), (20000, 1)]}
    dirs = [
        make_run(f"{n}-{env}", rows, env=env, agent={"n": n})
        for n, rows in tables.items()
        for env in ("a", "b")
        if (n, env) != (9, "b")
    ]
    compared, found = _read(dirs)
    assert [pair.steps for pair in found] == [{}, {"a": 1000}, {"a": 20000}]
    assert found[0].verdict == "no steps in common" and np.isnan(found[0].difference.value)
    text = [line.split("  ") for line in comparison.report(compared, found).splitlines()]
    rows = [[cell.strip() for cell in line if cell] for line in text]
    assert ["a", "1,000", "10", "-", "1"] in rows and ["a", "20,000", "-", "200", "1"] in rows
    assert ["b", "none in common", "-", "-", "-"] in rows
    assert ["A - B", "0", "-", "-", "-", "no steps in common"] in rows
    assert ["B - C", "1", "20,000", "199", "-", "one seed: no interval"] in rows


def test_large_figures_are_whole_numbers(make_run):
    runs = [
        make_run(f"{n}-{seed}", [(10, 12_013.6 * n + seed)], seed=seed, config={"n": n})
        for n in (1, 2)
        for seed in (1, 2)
    ]
    text = comparison.report(*_read(runs))
    assert " 12015 (12015 to 12016, 2 seeds) " in text and " -12014 [-12015, -12013] " in text


def test_engines_of_environments_are_configs_too(make_run):
    """They start episodes differently."""
    dirs = [
        make_run(engine, [(10, 1)], env="a:b", options={"env_engine": engine, "steps": 10})
        for engine in ("dm_control", "envpool")
    ]
    assert [one.settings for one in _configs(dirs)] == [
        {"env_engine": "dm_control"},
        {"env_engine": "envpool"},
    ]


@pytest.mark.parametrize("option", ["actors", "envs_per_actor"])
def test_numbers_of_actors_and_environments_are_configs_too(make_run, option):
    dirs = [make_run(f"{n}", [(10, n)], env="a:b", options={option: n}) for n in (1, 4)]
    assert [one.settings for one in _configs(dirs)] == [{option: 1}, {option: 4}]


def test_nothing_to_compare(make_run):
    one = make_run("a", [(10, 1)], env="a:b", seed=1, agent={"n": 1})
    again = make_run("b", [(10, 1)], env="a:b", seed=2, agent={"n": 1})
    with pytest.raises(UsageError, match="expected runs of at least two configs, got one"):
        _configs([one, again])
    elsewhere = make_run("c", [(10, 1)], env="c:d", seed=2, agent={"n": 2})
    with pytest.raises(UsageError, match="expected configs with a task in common, got none"):
        comparison.pairs(_configs([one, elsewhere]))


def test_unusable_runs_are_left_out(run_dirs, make_run, tmp_path, capsys, monkeypatch):
    from rl_replicator.cli import compare

    monkeypatch.chdir(tmp_path)
    bad = make_run("bad", [], env="a:b")
    assert compare.run([*map(str, run_dirs), str(bad)]) == 0
    output = capsys.readouterr()
    assert "A is higher" in output.out
    assert output.err.startswith(f"left out {bad}: expected evaluations in {bad}, got none yet")
    assert output.err.count("\n") == 1
    with pytest.raises(UsageError, match="^expected evaluations in .*bad, got none yet"):
        compare.run([str(bad)])


def test_the_command(run_dirs, tmp_path, capsys, monkeypatch):
    """The directory of a suite stands for its runs."""
    from rl_replicator.cli import compare

    monkeypatch.chdir(tmp_path)
    assert compare.run([str(tmp_path), "--out", "deep/c.png"]) == 0
    output = capsys.readouterr().out
    assert "B is higher" in output and output.endswith("\ndeep/c.png\n")
    image = imageio.imread(tmp_path / "deep" / "c.png")[..., :3].astype(int)
    assert image.shape[1] > 1200  # Two panels.
    assert np.sum(image.max(-1) - image.min(-1) > 60) > 1000  # Colours.
    with pytest.raises(UsageError, match=r"--out: expected a name that ends in \.png"):
        compare.CompareOptions(tuple(run_dirs), out=tmp_path / "c.jpg")
