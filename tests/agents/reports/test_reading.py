"""Runs are grouped by config and figure; unreadable runs are left out with a reason."""

import dataclasses
import json

import numpy as np
import pytest

from agents.config import resolved
from agents.reports import reading
from rl_replicator.cli import trainables
from rl_replicator.runs import events
from rl_replicator.runs.metrics import MetricWriter
from rl_replicator.runs.run_directory import RunDirectory


def test_runs_are_grouped_by_config_and_figure(make_run, make_learner_run):
    runs = [
        make_run("one", {100: 10.0, 200: 30.0}, seed=1, n_step=5),
        make_run("two", {100: 20.0, 200: 50.0}, seed=2, n_step=5),
        make_run("other", {100: 5.0}, n_step=1),
        make_learner_run("learner", {10: 2.0, 20: 1.0}, {20: 0.75}),
    ]
    found = reading.read(runs)
    agents, learners = found.families
    assert (agents.x_label, agents.y_label) == ("environment steps", "episode return")
    assert [config.label for config in found.configs] == ["A", "B", "C"]
    assert [config.settings for config in agents.configs] == [
        {"agent.n_step": 5},
        {"agent.n_step": 1},
    ]
    curve = agents.configs[0].curves["a:b"]
    np.testing.assert_array_equal(curve.values, [[10, 30], [20, 50]])
    assert (learners.x_label, learners.y_label) == ("steps", "accuracy")
    assert list(found.places) == [0, 0, 1, 2]
    assert [run.path.name for run in found.runs_of(0)] == ["one", "two"]
    assert [run.is_complete for run in found.runs] == [True, True, False, True]
    assert [run.steps for run in found.runs] == [200, 200, 100, 20]


def test_the_directory_of_a_suite_stands_for_its_runs(make_run, tmp_path):
    for seed in (1, 2):
        make_run(f"suite/seed{seed}", {100: 1.0}, seed=seed)
    found = reading.read([tmp_path / "suite", tmp_path / "suite" / "seed1"])
    assert [run.path.name for run in found.runs] == ["seed1", "seed2"]


def test_a_run_behind_a_link_has_the_name_of_the_link(make_run, tmp_path):
    link = tmp_path / "baseline"
    link.symlink_to(make_run("out", {100: 1.0}))
    assert [run.name for run in reading.read([link]).runs] == ["baseline"]


def test_training_stands_in_before_the_first_evaluation(make_learner_run):
    (family,) = reading.read([make_learner_run("gan", {10: 2.0, 20: 1.0}, {})]).families
    assert family.y_label == "loss (training)"
    assert family.configs[0].curves[""].is_lowest_best is None
    np.testing.assert_array_equal(family.configs[0].curves[""].values, [[2.0, 1.0]])


def test_a_run_without_an_evaluation_belongs_to_its_config(make_run):
    def make(name, n_step, seed, is_evaluated=True):
        run = make_run(name, {100: 1.0} if is_evaluated else {}, seed=seed, n_step=n_step)
        writer = MetricWriter(run, "environment_steps")
        writer.write("actor", 20, {"episode_return": 0.5})
        writer.close()
        return run

    begun, new = make("begun", 1, 3, is_evaluated=False), make("new", 9, 1, is_evaluated=False)
    runs = [begun, make("one", 1, 1), new, make("two", 1, 2), make("other", 5, 1)]
    found = reading.read(runs)
    assert {run.path.name: place for run, place in zip(found.runs, found.places, strict=True)} == {
        "begun": 0, "one": 0, "new": 2, "two": 0, "other": 1
    }  # fmt: skip
    evaluated, training = found.families
    assert (evaluated.is_evaluated, training.is_evaluated) == (True, False)
    assert [config.label for config in found.configs] == ["A", "B", "C"]
    assert evaluated.configs[0].curves["a:b"].seeds == 2


def test_a_run_without_an_evaluation_belongs_to_the_first_figure_of_its_config(make_learner_run):
    first, other = (make_learner_run(name, {}, {20: 0.5}) for name in ("first", "other"))
    begun = make_learner_run("begun", {10: 2.0}, {})
    config = json.loads((other / "config.json").read_text())
    config["score"]["figure"] = "loss"
    (other / "config.json").write_text(json.dumps(config))
    found = reading.read([first, other, begun])
    assert [family.y_label for family in found.families] == ["accuracy", "loss"]
    assert list(found.places) == [0, 1, 0]


def test_a_run_in_epochs_is_complete_at_the_end_that_its_score_names(make_learner_run):
    runs = [make_learner_run(name, {}, {step: 0.5}) for name, step in (("a", 20), ("b", 10))]
    for run in runs:
        config = json.loads((run / "config.json").read_text())
        config["options"] = {"epochs": 2}
        config["score"]["end"] = 20
        (run / "config.json").write_text(json.dumps(config))
    found = reading.read(runs).runs
    assert [(run.total_steps, run.is_complete) for run in found] == [(20, True), (20, False)]


@pytest.mark.parametrize(
    ("lacking", "accuracies"), [("score", {}), ("options", {20: 0.5})], ids=["score", "length"]
)
def test_a_run_that_does_not_say_when_it_ends_is_complete_when_it_has_finished(
    make_learner_run, lacking, accuracies
):
    """A run that evaluates nothing has no score."""
    run = make_learner_run("one", {10: 2.0, 20: 1.0}, accuracies)
    config = json.loads((run / "config.json").read_text())
    del config[lacking]
    (run / "config.json").write_text(json.dumps(config))
    told = (events.STARTED, events.FINISHED, events.CONTINUED, events.FINISHED)
    for event, is_complete in zip(told, (False, True, False, True), strict=True):
        events.record(run, events.RUN, event)
        assert [one.is_complete for one in reading.read([run]).runs] == [is_complete]


def test_another_figure(make_run):
    run = make_run("one", {100: 10.0})
    (family,) = reading.read([run], "episode_return_max").families
    assert family.configs[0].curves["a:b"].values == [[11.0]]
    (left_out,) = reading.read([run], "accuracy").left_out
    assert "expected one of the figures episode_return, " in str(left_out)


def test_a_table_that_is_none_of_the_run_is_skipped(make_run):
    run = make_run("one", {100: 1.0})
    (run / "metrics" / "notes.csv").write_text("a,b\n1,2\n")
    (run / "metrics" / "remarks.csv").write_text("when,what\ntoday,lower loss\n")
    assert [one.path for one in reading.read([run]).runs] == [run]


@pytest.mark.parametrize(
    ("file", "content", "reason"),
    [
        (None, None, "but there is no "),
        ("config.json", "{", "expected a run's settings in "),
        ("metrics/evaluator.csv", None, "it has no metrics yet"),
        ("metrics/evaluator.csv", "environment_steps,wall_time\n", "it has no metrics yet"),
        ("metrics/evaluator.csv", "environment_steps,wall_time,x\none,2,3\n", "ValueError: inv"),
        ("metrics/evaluator.csv", "steps,wall_time,x\n1,2,nan\n", "no finite value of x yet"),
        ("metrics/evaluator.csv", "\0\n", "expected whole files, got "),
    ],
)
def test_what_cannot_be_read_is_left_out_in_one_line(make_run, tmp_path, file, content, reason):
    good, bad = make_run("good", {100: 1.0}), tmp_path / "bad"
    if file is not None:
        bad = make_run("bad", {100: 1.0})
        for group in ("learner", "evaluator"):
            (bad / "metrics" / f"{group}.csv").unlink()
        if content is not None:
            (bad / file).write_text(content)
    found = reading.read([bad, good])
    (left_out,) = found.left_out
    assert str(bad) in str(left_out) and reason in str(left_out) and "\n" not in str(left_out)
    assert [run.path for run in found.runs] == [good]


@pytest.fixture
def make_pixel_run(tmp_path):
    """Makes a run from pixels with the config that the agent's command writes."""

    def make(name, env, repeat=None, **agent):
        plain = {"env": env, "pixels": True, "frame": {"action_repeat": repeat}, "agent": agent}
        options = trainables.load("d4pg").options_from(plain)
        found = resolved(options.agent, {}, options.task.action_repeat)
        identity = dataclasses.replace(options, agent=found).identity
        run = RunDirectory(tmp_path / name)
        run.path.mkdir()
        run.describe("d4pg", identity, options.plain(), options.score.plain())
        writer = MetricWriter(run.path, "environment_steps")
        writer.write("evaluator", 100, {"episode_return": 1.0})
        writer.close()
        return run.path

    return make


def test_the_action_repeats_of_tasks_make_no_configs(make_pixel_run):
    """The discount of an action follows from its length unless the user sets one."""
    runs = [
        make_pixel_run("cartpole", "cartpole:swingup"),
        make_pixel_run("cheetah", "cheetah:run"),
        make_pixel_run("longer", "walker:walk", repeat=4),
        make_pixel_run("asked", "cartpole:swingup", discount=0.99),
        make_pixel_run("asked-too", "cheetah:run", discount=0.99),
    ]
    found = reading.read(runs)
    assert list(found.places) == [0, 0, 1, 2, 2]
    assert [config.settings for config in found.configs] == [
        {"agent.discount": "auto", "pixels.action_repeat": None},
        {"agent.discount": "auto", "pixels.action_repeat": 4},
        {"agent.discount": 0.99, "pixels.action_repeat": None},
    ]
