"""The evaluator: which weights a row belongs to, and episodes that do not end."""

import dataclasses
import functools
import logging
import threading

import dm_env
import numpy as np
import pytest

import launchpad as lp
from agents.environment_loop import evaluation_episode
from agents.learning.weights import EVERYTHING, LEARNER_STEPS, WeightsPart
from agents.nodes.counter import Counter
from agents.nodes.evaluator import EvaluatorNode
from agents.nodes.run_plan import EvaluationSchedule
from rl_replicator.errors import UsageError
from rl_replicator.runs.metrics import read_metrics
from rl_replicator.runs.run_directory import RunDirectory
from tests.agents.nodes.plans import TARGET, make_plan
from tests.agents.still_actor import StillActor


class Policy(StillActor):
    """Asks for weights."""

    def __init__(self, source):
        self._source = source

    def update(self, wait=False):
        assert set(self._source.get_variables(["policy"])) == {"policy/w"}


class Agent:
    discount = 0.5

    def make_evaluator(self, source):
        return Policy(source)


class Learner:
    """Keeps training between calls."""

    def __init__(self, counter):
        self.steps = 0
        self._counter = counter

    def get_variables(self, names):
        assert list(names) == [EVERYTHING]
        self.steps += 16
        self._counter.report_learner(self.steps + 1000, 0.0, {"q_mean": 3.0})
        weights = {"policy/w": np.zeros(2), "explorer/w": np.array(self.steps)}
        return {**weights, f"{LEARNER_STEPS}/count": np.array(self.steps)}


SCHEDULE = EvaluationSchedule(every=100, episodes=1, last_episodes=2)


def record(counter, environment_steps, value, **figures):
    """Records an evaluation of this return."""
    figures = {"episode_return": value, "learner_steps": 7.0, **figures}
    counter.record_evaluation(environment_steps, figures, None, {"policy/w": np.array(value)})


def best_return(run_dir):
    """The return of the best policy that a run has kept."""
    weights = WeightsPart()
    RunDirectory(run_dir).checkpointer(best=True).restore({"weights": weights})
    return weights.get_variables(["policy"])["policy/w"]


def make_node(run_dir, counter, total_steps=500, schedule=SCHEDULE, task=TARGET):
    plan = make_plan(run_dir, total_steps, seed=1, task=task, evaluation=schedule)
    return EvaluatorNode(Agent(), plan, Learner(counter), counter)


def run(node, monkeypatch, *events):
    """Runs a node; before each of its looks, one of the events happens."""
    left = list(events)
    monkeypatch.setattr(lp, "wait_for_stop", lambda seconds: left.pop(0)() and False)
    node.run()


def evaluated(run_dir):
    """The environment steps of all evaluations."""
    return read_metrics(run_dir, "evaluator")["environment_steps"].tolist()


@pytest.fixture
def stops(monkeypatch):
    """The calls of `lp.stop` in a program that nothing else stops."""
    stops = []
    monkeypatch.setattr(lp, "stop_event", threading.Event)
    monkeypatch.setattr(lp, "wait_for_stop", lambda seconds: False)
    monkeypatch.setattr(lp, "stop", lambda: stops.append(True))
    return stops


def test_a_row_has_the_learner_steps_of_the_evaluated_weights(tmp_path, stops):
    counter = Counter(tmp_path, total_steps=500, restored=None)
    node = make_node(tmp_path, counter)
    node.evaluate(300, 1)
    counter.learner_done()
    node.run()
    table = read_metrics(tmp_path, "evaluator")
    assert table["environment_steps"].tolist() == [300, 500] and stops == [True]
    assert table["learner_steps"].tolist() == [16, 32]
    # A constant action follows a target that is uniform in [-1, 1]: rewards between 0.5 and 1.
    assert (table["episode_return_median"] > 10).all() and (table["failed_share"] == 0).all()
    np.testing.assert_allclose(table["q_bias"], 3.0 - table["discounted_return"])
    assert (table["discounted_return"] > 1).all() and (table["discounted_return"] < 2).all()
    starts = read_metrics(tmp_path, "starts")
    assert starts["environment_steps"].tolist() == [300, 500, 500]
    np.testing.assert_allclose(starts["episode_return"][1:].mean(), table["episode_return"][1])
    assert len({*starts["start/observation[0]"]}) == 3  # The first target, and the time left.
    assert (starts["start/observation[1]"] == 1).all()
    # The best checkpoint holds all networks of one step, not only the one that was evaluated.
    best, weights = RunDirectory(tmp_path).checkpointer(best=True), WeightsPart()
    step = best.restore({"weights": weights}).step
    assert weights.get_variables([EVERYTHING]).keys() == {"policy/w", "explorer/w"}
    assert weights.get_variables(["explorer"]) == {"explorer/w": step}


def test_an_episode_is_cut_off_by_steps_of_the_simulator(tmp_path, stops):
    counter = Counter(tmp_path, total_steps=500, restored=None)
    schedule = dataclasses.replace(SCHEDULE, max_episode_steps=8)
    task = dataclasses.replace(TARGET, repeats=2)
    make_node(tmp_path, counter, schedule=schedule, task=task).evaluate(300, 1)
    (found,) = read_metrics(tmp_path, "evaluator")["episode_return"]
    assert 4 < found < 8  # Four actions for two steps each, whose rewards are between 0.5 and 1.


def test_neither_a_new_policy_nor_the_last_one_is_evaluated_early(tmp_path, stops, monkeypatch):
    """A new policy has learned nothing; the last one is final only when the learner is done."""
    counter = Counter(tmp_path, total_steps=500, restored=None)

    def take(steps):
        return lambda: counter.lease(0, steps, 0.0, [])

    run(
        make_node(tmp_path, counter),
        monkeypatch,
        take(0),
        take(100),  # 100 steps, and no learner step.
        lambda: counter.report_learner(7, 0.0, {}),
        take(100),  # 200
        take(50),
        take(250),  # 500: all of them; the replay has not confirmed the last rows.
        lambda: counter.actor_done(0),
        counter.learner_done,
    )
    assert evaluated(tmp_path) == [200, 500] and stops == [True]
    assert read_metrics(tmp_path, "evaluator")["episodes"].tolist() == [1, 2]


def test_an_evaluation_that_a_restarted_counter_has_forgotten_is_made_again(
    tmp_path, stops, monkeypatch
):
    """The evaluator's process keeps running."""

    def new_counter(restored):
        counter = Counter(tmp_path, total_steps=500, restored=restored)
        counter.report_learner(7, 0.0, {})
        return counter

    def take(steps):
        node._counter.lease(0, steps, 0.0, [])

    def restart():
        node._counter = new_counter(snapshot)

    node = make_node(tmp_path, counter := new_counter(None))
    take(90)
    snapshot = counter.snapshot()
    run(
        node,
        monkeypatch,
        lambda: take(20),  # 110: evaluated.
        restart,  # 90
        lambda: take(5),
        lambda: take(10),  # 105: evaluated again.
        lambda: take(45),
        lambda: take(350),
        lambda: node._counter.actor_done(0),
        lambda: node._counter.learner_done(),
    )
    assert evaluated(tmp_path) == [105, 500]


def test_a_run_that_goes_on_keeps_its_last_evaluation(tmp_path, stops, monkeypatch):
    """The last checkpoint is saved before the last evaluation."""
    end, later = 550, 600
    counter = Counter(tmp_path, total_steps=end, restored=None)
    counter.lease(0, end, 0.0, [])
    counter.report_learner(7, 0.0, {})
    snapshot = counter.snapshot()
    assert snapshot["evaluation"]["step"] == 0
    counter.learner_done()
    make_node(tmp_path, counter, end).run()
    # A run that was killed has rows beyond its checkpoint, which do not count.
    record(counter, end + 1, 0.0)

    counter = Counter(tmp_path, total_steps=900, restored=snapshot)
    progress = counter.progress()
    assert progress.evaluation_step == end and progress.evaluation_return > 10
    take = functools.partial(counter.lease, 0, later - end, 0.0, [])
    run(make_node(tmp_path, counter, 900), monkeypatch, int, take, counter.learner_done)
    assert evaluated(tmp_path) == [end, later, 900]
    assert read_metrics(tmp_path, "evaluator")["episodes"].tolist() == [2, 1, 2]


def test_the_best_policy_beyond_a_checkpoint_is_replaced_by_no_worse_one_than_there_was(tmp_path):
    counter = Counter(tmp_path, total_steps=900, restored=None)
    counter.lease(0, 250, 0.0, [])
    record(counter, 200, 4.0)
    snapshot = counter.snapshot()
    record(counter, 300, 9.0)  # Replaces the one of 200 steps.
    counter = Counter(tmp_path, total_steps=900, restored=snapshot)
    record(counter, 300, 1.0)
    assert best_return(tmp_path) == 9.0
    record(counter, 400, 5.0)
    assert best_return(tmp_path) == 5.0


def test_a_damaged_best_policy_is_replaced(tmp_path, caplog):
    counter = Counter(tmp_path, total_steps=900, restored=None)
    counter.lease(0, 500, 0.0, [])
    record(counter, 500, 5.0)
    for path in (tmp_path / "best").glob("*/progress/*"):
        path.write_bytes(b"")
    counter = Counter(tmp_path, total_steps=900, restored=counter.snapshot())
    assert "the next evaluation counts as the best one so far" in caplog.text
    record(counter, 600, 4.0)
    assert best_return(tmp_path) == 4.0


def test_the_best_policy_is_there_before_its_row(tmp_path, stops):
    """A run that is killed in between repeats the evaluation unless its row exists."""
    counter = Counter(tmp_path, total_steps=500, restored=None)
    node = make_node(tmp_path, counter)
    (tmp_path / "metrics" / "evaluator.csv").mkdir(parents=True)  # The row cannot be written.
    with pytest.raises(UsageError, match="cannot write the metrics"):
        node.evaluate(300, 1)
    assert RunDirectory(tmp_path).checkpointer(best=True).latest().step == 16


def test_a_continued_run_knows_the_bias_of_q(tmp_path):
    counter = Counter(tmp_path, total_steps=900, restored=None)
    counter.report_learner(7, 0.0, {"q_mean": 2.0})
    counter = Counter(tmp_path, total_steps=900, restored=counter.snapshot())
    record(counter, 100, 5.0, discounted_return=3.0)
    assert read_metrics(tmp_path, "evaluator")["q_bias"].tolist() == [-1.0]
    # Values that are no returns, such as SAC's, have no bias.
    counter.report_learner(8, 0.0, {"soft_q_mean": 2.0})
    record(counter, 200, 5.0, discounted_return=3.0)
    assert np.isnan(read_metrics(tmp_path, "evaluator")["q_bias"][-1])


class Endless(dm_env.Environment):
    """A reward of 1 in every step, and no last step."""

    def reset(self):
        return dm_env.restart(np.zeros(1, np.float32))

    def step(self, action):
        return dm_env.transition(1.0, np.zeros(1, np.float32))

    def observation_spec(self):
        raise NotImplementedError

    def action_spec(self):
        raise NotImplementedError


@pytest.mark.timeout(60)
def test_an_episode_that_does_not_end_is_cut_off(caplog):
    with caplog.at_level(logging.WARNING):
        episode = evaluation_episode(Endless(), Policy(None), max_actions=7)
        assert episode.episode_return == 7.0 and episode.discounts.all()
    assert "did not end within 7 actions and was cut off" in caplog.text
    assert evaluation_episode(Endless(), Policy(None), 7, give_up=lambda: True) is None
