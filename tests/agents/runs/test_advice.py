"""Advice for runs whose return stood still or stayed low, and what a run spent its time on."""

import re

import numpy as np
import pytest

from agents.d4pg.config import D4PGConfig
from agents.runs import advice
from agents.runs.options import AgentOptions
from agents.sac.config import SACConfig
from rl_replicator.runs.metrics import MetricWriter

OPTIONS = AgentOptions(env="a:b", agent=D4PGConfig()).plain()
RANGE_OPTIONS = AgentOptions(env="a:b", agent=D4PGConfig(value_min=-5.0, value_max=50.0)).plain()
SAC_OPTIONS = AgentOptions(env="a:b", agent=SACConfig()).plain()
RISING = [100.0 * step for step in range(9)]
STILL = [0.0, 200, 300, 480, 470, 490, 480, 485, 475]


def write(run_dir, returns, learner=None, **evaluator):
    """Writes a run; by default, each evaluation has both a failed and a good episode.

    A figure may be a list, with one number for each evaluation; None is no number.
    """
    writer = MetricWriter(run_dir, "environment_steps")
    for index, value in enumerate(returns):
        row = {"episode_return": value, "episode_return_min": 0.0, "episode_return_max": 970.0}
        for group, figures in (
            ("evaluator", row | evaluator),
            ("learner", learner or {"critic_loss": 1.0}),
        ):
            now = {k: x[index] if isinstance(x, list) else x for k, x in figures.items()}
            now = {name: figure for name, figure in now.items() if figure is not None}
            writer.write(group, 1000 * (index + 1), now)
    writer.close()


EDGE = {"value_edge_mass_high": 0.9}
GOAL = [0.0, 0.0, 0.5, *[1.0] * 6]


@pytest.mark.parametrize(
    ("returns", "evaluator"),
    [
        (RISING, {"failed_share": 0.5}),
        (STILL[3:8], {"failed_share": 1.0}),  # Too few evaluations to judge it.
        # A return that has left the bottom is not low.
        ([1.0, 1, 1, 1, 1, 2, 60, 90, 400], {"failed_share": [*[1.0] * 8, 0.7]}),
        # A run that is done.
        (
            STILL,
            {"episode_return_min": 860.0, "episode_return_max": 880.0, "failed_share": 0.0},
        ),
        # A goal that every last episode reaches.
        (
            GOAL,
            {
                "episode_return_min": [float(value == 1) for value in GOAL],
                "episode_return_max": [float(value > 0) for value in GOAL],
                "failed_share": 1.0,
            },
        ),
    ],
)
def test_a_run_that_needs_no_advice(tmp_path, returns, evaluator):
    write(tmp_path, returns, EDGE, **evaluator)
    assert advice.advise(tmp_path, RANGE_OPTIONS) == []


def test_a_return_that_rises_and_stays_low(tmp_path):
    """humanoid:walk after 500,000 steps: the range of its returns was no measure of progress."""
    figures = {"failed_share": 1.0, "discounted_return": 0.02, "q_bias": 3.0}
    write(tmp_path, np.linspace(0.5, 3.3, 9), **figures)
    first, second = advice.advise(tmp_path, OPTIONS)
    assert first.startswith(
        "the return stayed low over the last third of the evaluations (2.95): 100%"
    )
    assert second.startswith("also: Q differs from the discounted returns observed (0.02) by +3")


def test_evaluations_without_a_share_of_failures_are_not_judged_by_those_with_one(tmp_path):
    returns = [0.0, 0.0, 0.6, 0.7, 0.8, 0.8, 0.7, 0.0, 0.8]
    highest = [float(value > 0) for value in returns]
    failed = [None if value else 1.0 for value in returns]
    write(tmp_path, returns, episode_return_max=highest, failed_share=failed)
    (line,) = advice.advise(tmp_path, OPTIONS)
    assert "no figure points to a cause" in line


def test_a_run_without_a_learner_step(tmp_path):
    write(tmp_path, [3.0], learner_steps=0.0)
    (line,) = advice.advise(tmp_path, OPTIONS)
    assert line.startswith("no learner step was taken: the learner starts when the ")


NOTHING = "no figure points to a cause"


@pytest.mark.parametrize(
    ("options", "learner", "evaluator", "words"),
    [
        (OPTIONS, {}, {"failed_share": 0.5}, "50% of the evaluation episodes failed while others"),
        (OPTIONS, {}, {"failed_share": 1.0}, "100% of the evaluation episodes found almost no"),
        (OPTIONS, {"action_saturation": 0.92}, {}, "92% of the policy's actions are at their b"),
        (
            OPTIONS,
            {},
            {"q_bias": 60.0, "discounted_return": 50.0},
            "Q differs from the discounted returns observed (50) by +60",
        ),
        (OPTIONS, {"dormant_share": 0.7}, {}, "70% of the critic's units are dormant"),
        (OPTIONS, {"effective_batch_share": 0.1}, {}, "importance weights leave 10% of each ba"),
        (OPTIONS, {}, {}, NOTHING),
        (
            RANGE_OPTIONS,
            {"value_edge_mass_high": 0.31},
            {},
            "value support too small: 31% of the mass on its upper edge; raise --agent.value-max",
        ),
        (
            RANGE_OPTIONS,
            {"value_edge_mass_low": 0.31},
            {},
            "value support too small: 31% of the mass on its lower edge; lower --agent.value-min",
        ),
        # A range derived from the rewards holds all returns; without rewards, all are on its edge.
        (OPTIONS, {"value_edge_mass_low": 0.31}, {}, NOTHING),
        (OPTIONS, {"value_edge_mass_high": 0.31}, {}, NOTHING),
        # The end of a run counts, and not its beginning.
        (RANGE_OPTIONS, {"value_edge_mass_high": [0.9] * 6 + [0.01] * 3}, {}, NOTHING),
    ],
)
def test_causes(tmp_path, options, learner, evaluator, words):
    write(tmp_path, STILL, learner, **evaluator)
    (line,) = advice.advise(tmp_path, options)
    assert line.startswith("the return did not rise over the last third of the evaluations (480): ")
    assert words in line and "\n" not in line


@pytest.mark.parametrize(
    ("learner", "evaluator"),
    [
        ({}, {"failed_share": 0.5}),
        ({"action_saturation": 0.92}, {}),
        ({"effective_batch_share": 0.1}, {}),
        ({}, {}),
    ],
)
@pytest.mark.parametrize("options", [SAC_OPTIONS, {}])
def test_only_options_that_the_run_has_are_named(tmp_path, learner, evaluator, options):
    write(tmp_path, STILL, learner or None, **evaluator)
    (line,) = advice.advise(tmp_path, options)
    named = re.findall(r"--[\w.-]+", line)
    assert all(advice.known(options, name) for name in named), line
    assert "()" not in line and not line.endswith(("; ", " "))
    assert bool(named) == bool(options) or "action" in line


STATE = {"actors": 1, "launch": "threads", "agent": {"n_step": 5}}
PIXELS = {
    **STATE,
    "agent": {"precision": "float32", "encoder": "small", "critic_layers": [256]},
    "frame": {"render": "exact"},
    "launch": "processes",
}


@pytest.mark.parametrize(
    ("shares", "options", "words"),
    [
        ({"actor_wait": 0.4}, STATE, "the learner; a GPU, or several with --replicas N, makes"),
        ({"actor_wait": 0.4, "learner_save": 0.2}, STATE, "save less often (--checkpoint-seconds)"),
        (
            {"learner_wait": 0.3, "actor_environment": 0.6, "actor_policy": 0.2},
            STATE,
            "the actors; the largest part of their work is environment; try --actors 2 --launch",
        ),
        (
            {"learner_wait": 0.3, "actor_environment": 0.2, "actor_policy": 0.6},
            PIXELS,
            "the largest part of their work is policy; try --envs-per-actor 2",
        ),
        (
            {"learner_wait": 0.6, "actor_insert": 0.3, "actor_policy": 0.1, "actor_wait": 0.2},
            STATE,
            "work is insertion; try --actors 2 --launch processes",
        ),
        ({"learner_wait": 0.3, "actor_render": 0.6}, PIXELS, "--frame.render fast"),
        (
            {"learner_wait": 0.3, "actor_render": 0.6},
            {**PIXELS, "frame": {"render": "auto"}},  # The environment draws by itself.
            "work is rendering; try --actors 2",
        ),
        ({"learner_wait": 0.3, "actor_wait": 0.3}, STATE, "the replay or the processors, for wh"),
        ({"learner_wait": 0.01, "actor_wait": 0.02}, STATE, "none, actors and learner are both"),
    ],
)
def test_verdicts(shares, options, words):
    line = advice.verdict(shares, options)
    assert line.startswith("bottleneck: ") and words in line


def test_calls_of_one_step_cannot_be_smaller():
    for steps, end in ((1, "both wait"), (2, "a smaller --agent.steps-per-call")):
        options = {**STATE, "agent": {"steps_per_call": steps}}
        assert advice.verdict({"learner_wait": 0.3, "actor_wait": 0.3}, options).endswith(end)


def test_advice_for_gpus(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    waits = {"actor_wait": 0.4}
    xla = "the learner; --replicas single_device:xla"
    assert xla in advice.verdict(waits, {**PIXELS, "replicas": "1"})
    for options in (STATE, {**PIXELS, "replicas": "single_device:xla"}):
        assert "the learner; --replicas N on as many GPUs" in advice.verdict(waits, options)


@pytest.mark.parametrize(
    ("actors", "learner", "slowest"),
    [
        (0.04, 0.05, None),
        (0.9, 0.0, "learner"),
        (0.0, 0.06, "actors"),
        (0.88, 0.4, "learner"),
        (0.4, 0.88, "actors"),
        (0.9, 0.5, "replay"),
        (0.06, 0.05, "learner"),
        (0.07, 0.06, "replay"),
    ],
)
def test_the_slowest_waits_much_less_than_the_other(actors, learner, slowest):
    assert advice.find_bottleneck(actors, learner) == slowest


def test_the_last_row_counts_if_both_have_reported(tmp_path):
    assert advice.explain(tmp_path, STATE) == []
    for step, figures, expected in (
        (100, {"actor_policy": 0.9}, []),
        (200, {"actor_policy": 0.9, "learner_step": 0.004, "learner_wait": 0.0}, []),
        (
            300,
            {"actor_policy": 0.25, "actor_wait": 0.5, "learner_step": 0.875},
            ["time of the actors: waiting 50%, policy 25%", "time of the learner: steps 88%"],
        ),
    ):
        writer = MetricWriter(tmp_path, "environment_steps")
        writer.write("time", step, figures)
        writer.close()
        assert advice.explain(tmp_path, STATE)[:2] == expected
