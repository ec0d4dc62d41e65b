"""`rl-replicator suite`: its runs, the table that fills up, results and published returns."""

import csv
import io
import json
import os
from pathlib import Path

import pytest

from agents.cli import suite
from agents.suites import board, results, tasks
from agents.suites.results import ANCHORS, Anchors, ResultRow
from agents.suites.tasks import SUITES, Suite, run_name
from launchpad.engines.ray import cluster
from rl_replicator.cli import main, trainables
from rl_replicator.errors import UsageError
from rl_replicator.experiments import driver
from rl_replicator.experiments.trial import Trial
from rl_replicator.experiments.trial import TrialState as State
from rl_replicator.runs import events
from rl_replicator.runs.run_directory import RunDirectory
from tests.agents.suites.fake_agent import fake, write_run
from tests.distributions import install

pytestmark = pytest.mark.timeout(600)
ROOT = Path(__file__).parents[3]
TASKS = "tests.agents.suites.fake_agent"


@pytest.fixture(scope="module")
def shared_ray(tmp_path_factory):
    """One Ray for all suites of this process, whose workers find the fake agent."""
    site = tmp_path_factory.mktemp("site")
    groups = f"[rl_replicator.trainables]\nfake = {TASKS}:fake\n"
    install(site, "tests-of-suites", "1.0", groups)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join([str(site), str(ROOT)]))
        patch.syspath_prepend(str(site))
        connection = cluster.acquire(None)
        yield
        cluster.release(connection)


@pytest.fixture
def words(tmp_path, monkeypatch, shared_ray):
    """Returns the words of `rl-replicator suite` with the fake agent; @ stands for its module."""
    monkeypatch.chdir(tmp_path)

    def words(*given):
        named = [word.replace("@", f"{TASKS}:") for word in given]
        return ["suite", *named, "--agent", "fake", "--run-dir", "suite"]

    return words


def started(tmp_path):
    path = tmp_path / "suite" / "started.txt"
    return [tuple(line.split()) for line in path.read_text().splitlines()] if path.exists() else []


def rows_of(tmp_path):
    with (tmp_path / "results.csv").open() as file:
        return list(csv.DictReader(file))


@pytest.mark.processes
def test_a_failed_run_does_not_end_the_others_and_what_is_done_is_skipped(tmp_path, words, capsys):
    status = main.main(words("@broken", "@quick", "--seeds", "2", "--steps", "100"))
    output, errors = capsys.readouterr()
    assert status == 1, errors
    tried = [("broken", "1"), ("quick", "1"), ("broken", "2"), ("quick", "2")]
    assert [run[:2] for run in started(tmp_path)] == tried
    why = "failed, ended with status 2: rl-replicator: error: this one"
    assert f"{TASKS}:broken seed 1 {why}" in errors
    assert "2 of 4 runs done, 2 failed" in output
    table = [line.split() for line in output.splitlines()]
    assert [f"{TASKS}:quick", "200", "400", "300"] in table
    assert [f"{TASKS}:broken", "failed", "failed"] in table
    assert "mean of 1 tasks: 300 [200, 400]" in output
    rows = rows_of(tmp_path / "suite")
    assert [(row["seed"], row["environment_steps"], row["return_mean"]) for row in rows] == [
        ("1", "50", "100"),
        ("1", "100", "200"),
        ("2", "50", "200"),
        ("2", "100", "400"),
    ]
    assert {(row["preset"], row["observations"]) for row in rows} == {("default", "state")}
    assert (rows[0]["return_median"], rows[0]["failed_share"]) == ("100.5", "")

    # Repeated: only failed runs are started; the results keep runs that are no longer named.
    (tmp_path / "suite" / "started.txt").unlink()
    assert main.main(words("@quick", "--steps", "100", "--seeds", "2")) == 0
    assert started(tmp_path) == [] and "2 of 2 runs done" in capsys.readouterr().out
    assert main.main(words("@quick", "--steps", "200", "--parallel", "3")) == 0
    assert started(tmp_path) == [("quick", "1", "1")]  # With --parallel 3, on one processor.
    assert [row["seed"] for row in rows_of(tmp_path / "suite")] == ["1", "1", "2", "2"]

    # Other hyper-parameters would mix with those of the existing runs.
    capsys.readouterr()
    assert main.main(words("@quick", "--steps", "200", "--n-step", "3")) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "n_step was 5 and is now 3" in line


def plan(tmp_path, tasks=("a:b",), steps=100, **options):
    return suite.SuitePlan(
        suite=Suite("s", tasks),
        steps=steps,
        seeds=1,
        run_dir=tmp_path,
        agent="fake",
        parallel=1,
        module="rl_replicator.cli.main",
        arguments=(),
        options=options,
        anchors=Anchors({}),
    )


@pytest.fixture
def folder(tmp_path):
    """The directory of a suite of the fake agent, which was run before."""
    RunDirectory(tmp_path).describe("suite", plan(tmp_path).identity, {})
    return tmp_path


def write(folder, task="a:b", seed=1, evaluations=((100, 7),)):
    write_run(folder / run_name(task, seed), task, seed, evaluations)
    return folder / run_name(task, seed)


def test_other_runs_in_its_folder_are_left_out(folder, capsys):
    """A copy, a run of another agent, and one that cannot be read."""
    write(folder)
    for name in ("copy", "other", "broken"):
        write_run(folder / name, "a:b", 1, [(100, 900)])
    config = json.loads((folder / "other" / "config.json").read_text())
    (folder / "other" / "config.json").write_text(json.dumps({**config, "trainable": "sac"}))
    (folder / "broken" / "config.json").write_text("{")
    assert driver.run(plan(folder)) == 0
    output, errors = capsys.readouterr()
    assert "mean of 1 tasks: 7" in output and "1 of 1 runs done" in output
    first, *rest = errors.splitlines()
    assert first.startswith(f"left out {folder / 'broken'}: expected a run's settings in")
    assert rest == [
        f"left out {folder / name}: it is not a run of this suite" for name in ("copy", "other")
    ]
    assert [row["return_mean"] for row in rows_of(folder)] == ["7"]


def test_what_counts_in_the_summary(folder, capsys):
    """The runs that are asked for, at the steps that are asked for; all are in the results."""
    for task, seed in (("a:b", 1), ("a:b", 2)):
        write(folder, task, seed, [(100, seed)])
    write(folder, "c:d", evaluations=[(50, 7), (200, 9)])
    assert driver.run(plan(folder, ("a:b", "c:d"))) == 0
    output, errors = capsys.readouterr()
    assert (
        "mean of 1 tasks: 1\n" in output
        and "results.csv, of all runs there; 'rl-replicator plot" in output
    )
    assert errors.splitlines() == [
        "c:d seed 1 has no evaluation near 100 steps, and is left out of the means: it was trained "
        "for more"
    ]
    assert len(rows_of(folder)) == 4


@pytest.mark.processes
def test_a_run_that_was_killed_after_its_last_evaluation_is_continued(folder, words):
    """It may lack its plot or film; the continued run makes them, and records its end."""
    path = write(folder, f"{TASKS}:quick")
    config = json.loads((path / "config.json").read_text())
    options = {"env": f"{TASKS}:quick", "steps": 100, "seed": 1, "run_dir": str(path)}
    (path / "config.json").write_text(json.dumps({**config, "options": options}))
    events.record(path, events.RUN, events.STARTED)
    assert driver.run(plan(folder, (f"{TASKS}:quick",))) == 0
    assert [row["return_mean"] for row in rows_of(folder)] == ["100", "200"]


def test_a_suite_goes_on_with_other_options_that_do_not_change_what_is_learned(tmp_path):
    write(tmp_path)
    RunDirectory(tmp_path).describe("suite", plan(tmp_path, n_step=5).identity, {})
    for keep in (2, 3):
        free = {"keep_checkpoints": keep, "track": ["wandb"] * keep, "env_timeout": 100.0 * keep}
        assert driver.run(plan(tmp_path, n_step=5, **free)) == 0
    with pytest.raises(UsageError, match=r"other settings \(n_step was 5 and is now 3\)"):
        driver.run(plan(tmp_path, n_step=3, keep_checkpoints=4))


def test_tasks_are_made_as_the_runs_make_them(tmp_path, monkeypatch):
    """Frames alone can be observed with `--pixels`."""
    plans = []
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(trainables, "load", lambda name: fake)
    monkeypatch.setattr(driver, "run", lambda plan: plans.append(plan) or 0)
    assert suite.suite([f"{TASKS}:pictures", "--pixels"]) == 0
    assert plans[0].suite.tasks == (f"{TASKS}:pictures",)
    with pytest.raises(ValueError, match="train from frames with --pixels"):
        suite.suite([f"{TASKS}:pictures"])


PUBLISHED = Anchors({"D4PG": {"a:b": 30.0, "c:d": 10.0}, "SAC (1)": {"a:b": 5.0}})


def make(tmp_path, task, seed, state, evaluations=()):
    name = run_name(task, seed)
    if evaluations:
        write_run(tmp_path / name, task, seed, evaluations)
    return Trial(name, {"env": task, "seed": str(seed)}, state)


def text(trials, tmp_path):
    return [line.split() for line in board.text(trials, tmp_path, 100, PUBLISHED).splitlines()]


def test_the_table(tmp_path):
    trials = [
        make(tmp_path, "a:b", 1, State.DONE, [(50, 5), (99, 20), (200, 80)]),
        make(tmp_path, "a:b", 2, State.DONE, [(100, 40)]),
        make(tmp_path, "c:d", 1, State.RUNNING, [(50, 0.4567)]),
        make(tmp_path, "c:d", 2, State.WAITING),
        make(tmp_path, "e:f", 1, State.FAILED, [(99, 5)]),
    ]
    assert text(trials, tmp_path) == [
        ["2", "of", "5", "runs", "done,", "1", "running,", "1", "failed"],
        ["task", "seed", "1", "seed", "2", "mean", "D4PG"],
        ["a:b", "20", "40", "30", "30"],  # At the mark, also of a run that has more steps.
        ["c:d", "50%", "(0.457)", "-", "10"],
        ["e:f", "failed"],
    ]
    # The mean over tasks with results, and the published algorithm's mean over the same tasks.
    trials[2] = make(tmp_path, "c:d", 1, State.DONE, [(100, 50)])
    assert text(trials, tmp_path)[-1] == [*["mean", "of", "2", "tasks", "40", "20"]]


class _Terminal(io.StringIO):
    def isatty(self):
        return True


def test_a_terminal_is_drawn_over():
    stream, lines = _Terminal(), ["head", "one"]
    table = driver.LiveTable(lambda: "\n".join(lines), stream)
    table.refresh()
    lines.append("two")
    table.refresh()  # Not due yet.
    table.note("two is new")
    table.close()
    first, second, last = stream.getvalue().split("\x1b[J")[1:]
    assert (first, second) == ("head\none\n\x1b[2A", "head\none\ntwo\n\x1b[3A")
    assert last == "head\none\ntwo\n"
    stream = io.StringIO()
    table = driver.LiveTable(lambda: "all", stream)
    table.refresh()
    table.note("two is new")
    table.close()
    assert stream.getvalue() == "two is new\nall\n"


def test_runs_in_the_order_of_their_start():
    names = [one.name for one in tasks.trials(["dm:manipulation/reach_site", "c:d"], 2)]
    site = "dm-manipulation-reach_site"
    assert names == [f"{site}-seed1", "c-d-seed1", f"{site}-seed2", "c-d-seed2"]


def row(steps, mean=1.0):
    return ResultRow(
        *("td3", "paper", "state", "walker:walk", 1, steps, steps // 4),
        *(mean, mean, mean, mean, 0.0, 10, 60.0),
    )


@pytest.mark.parametrize(
    ("steps", "nearest"),
    [
        ((90_168, 100_048, 110_032), 100_048),  # Leases end at multiples of the action repeat.
        ((99_950, 100_000, 100_010), 100_000),
        ((98_000, 102_000), 98_000),
        ((97_999, 102_001), None),
    ],
)
def test_a_run_counts_with_its_evaluation_that_is_nearest_to_the_mark(steps, nearest):
    for rows in ([row(step) for step in steps], [row(step) for step in steps[::-1]]):
        found = results.at_mark(rows, 100_000).get("walker:walk", [])
        assert [one.environment_steps for one in found] == ([nearest] if nearest else [])
    # Of two evaluations after equal steps, the later one counts.
    (found,) = results.at_mark([row(100_000, 1.0), row(100_000, 2.0)], 100_000)["walker:walk"]
    assert found.return_mean == 2.0


@pytest.mark.parametrize(
    ("steps", "means"),
    [
        (100_000, {"D4PG": 318, "SAC (1)": 435, "SimbaV2 (1)": 593, "BRO (10)": 696}),
        (500_000, {"D4PG": 695, "SAC (1)": 718, "SimbaV2 (0.5)": 826, "BRO (10)": 830}),
    ],
)
def test_published_means_are_those_that_the_publications_sum_up_to(steps, means):
    anchors = Anchors.read(ANCHORS, "state", steps)
    for name, mean in means.items():
        found = anchors.measured("mean", name, SUITES["dmc14"].tasks)
        assert found == pytest.approx(mean, abs=0.5)
    for algorithm, names in (("D4PG", ["walker:walk", "dog:walk"]), ("D4PG", []), ("PPO", ["a:b"])):
        assert anchors.measured("mean", algorithm, names) is None  # A mean needs all tasks.
    for name, (algorithm, observations) in {
        "dmc14": ("MR.Q (0.5)", "state"),
        "dmc-hard": ("MR.Q (0.5)", "state"),
        "dmc-pixels": ("MR.Q", "pixels"),
    }.items():
        anchors = Anchors.read(ANCHORS, observations, 500_000)
        assert anchors.measured("interquartile mean", algorithm, SUITES[name].tasks)


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("task,score\nwalker:walk,3\n", "line 2: 'updates_per_step'"),
        ("HEADa:b,state,SAC,1,1e3,3.5,there", "line 3: invalid literal for int.*'1e3'"),
        ("HEADa:b,state,SAC,1,1000", "line 3: "),
        ("HEADa:b,state,S\xe4C,1,1000,3.5,there", "a.csv: 'utf-8' codec"),
    ],
)
def test_another_file_of_published_returns_is_refused(tmp_path, text, place):
    head = "task,observations,algorithm,updates_per_step,environment_steps,return_mean,source\n"
    head += "a:b,state,SAC,1,1000,3.5,there\n"
    path = tmp_path / "a.csv"
    path.write_bytes(text.replace("HEAD", head).encode("latin-1"))
    with pytest.raises(UsageError, match=f"--anchors: expected the columns .*{place}"):
        Anchors.read(path, "state", 1000)
