"""What a run spent its time on, and which option would help most."""

import pytest

from agents.runs import advice
from rl_replicator.layers import precision
from rl_replicator.runs.metrics import MetricWriter

STATE = {"actors": 1, "launch": "threads", "agent": {"n_step": 5}}
WIDE = {**STATE, "agent": {"precision": "float32", "critic_layers": [512, 256]}}
NARROW = {**STATE, "agent": {"precision": "float32", "critic_layers": [256, 256]}}
PIXELS = {
    **STATE,
    "agent": {"precision": "float32", "encoder": "small", "critic_layers": [256]},
    "frame": {"render": "exact"},
    "launch": "processes",
}


@pytest.mark.parametrize(
    ("shares", "options", "words"),
    [
        ({"actor_wait": 0.4}, STATE, "the learner; a GPU, or --replicas N"),
        ({"actor_wait": 0.4}, PIXELS, "the learner; --agent.precision bfloat16"),
        ({"actor_wait": 0.4}, WIDE, "the learner; --agent.precision bfloat16"),
        ({"actor_wait": 0.4}, NARROW, "the learner; a GPU, or --replicas N"),
        ({"actor_wait": 0.4, "learner_save": 0.2}, STATE, "save less often (--checkpoint-seconds)"),
        (
            {"learner_wait": 0.3, "actor_environment": 0.6, "actor_policy": 0.2},
            STATE,
            "the actors; the largest part of their work is the environment; try --actors 2 --lau",
        ),
        (
            {"learner_wait": 0.3, "actor_environment": 0.2, "actor_policy": 0.6},
            PIXELS,
            "the largest part of their work is the policy; try --envs-per-actor 2",
        ),
        (
            {"learner_wait": 0.6, "actor_insert": 0.3, "actor_policy": 0.1, "actor_wait": 0.2},
            STATE,
            "work is insertion into the replay; try --actors 2 --launch processes",
        ),
        ({"learner_wait": 0.3, "actor_render": 0.6}, PIXELS, "--frame.render fast"),
        (
            {"learner_wait": 0.3, "actor_wait": 0.3},
            STATE,
            "the replay or the processors, for which both wait",
        ),
        ({"learner_wait": 0.01, "actor_wait": 0.02}, STATE, "none, actors and learner are both"),
    ],
)
def test_verdicts(shares, options, words, monkeypatch):
    monkeypatch.setattr(advice, "_has_fast_bfloat16", lambda: True)
    line = advice.verdict(shares, options)
    assert line.startswith("bottleneck: ") and words in line


def test_only_what_the_run_has_and_the_machine_does_fast_is_advised(monkeypatch):
    monkeypatch.setattr(precision, "_has_fast_bfloat16", lambda: False)
    gpu = "bottleneck: the learner; a GPU, or --replicas N on as many devices, makes its steps fast"
    line = advice.verdict({"actor_wait": 0.4}, PIXELS)
    assert line.startswith(gpu) and "--agent" not in line
    monkeypatch.setattr(precision, "_has_fast_bfloat16", lambda: True)
    assert "bfloat16 is faster" in advice.verdict({"actor_wait": 0.4}, PIXELS)
    both = {"learner_wait": 0.3, "actor_wait": 0.3}
    assert (
        advice.verdict(both, STATE)
        == "bottleneck: the replay or the processors, for which both wait"
    )


def test_advice_for_gpus(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    monkeypatch.setattr(precision, "_has_fast_bfloat16", lambda: True)
    waits = {"actor_wait": 0.4}
    xla = "the learner; --replicas single_device:xla"
    for options in (WIDE, PIXELS):
        assert xla in advice.verdict(waits, {**options, "replicas": "1"})
    for options in (STATE, {**STATE, "replicas": "single_device:xla"}):
        assert "the learner; --replicas N on as many GPUs" in advice.verdict(waits, options)
    pixels = {**PIXELS, "replicas": "single_device:xla"}
    assert "the learner; --agent.precision bfloat16" in advice.verdict(waits, pixels)


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


def test_the_last_row_counts(tmp_path):
    writer = MetricWriter(tmp_path, "environment_steps")
    writer.write("time", 100, {"actor_policy": 0.9})
    writer.write("time", 200, {"actor_policy": 0.25, "actor_wait": 0.5, "learner_step": 0.875})
    writer.close()
    assert advice.explain(tmp_path, STATE)[:2] == [
        "time of the actors: waiting 50%, policy 25%",
        "time of the learner: steps 88%",
    ]


def test_the_actors_that_a_run_has_are_doubled(tmp_path):
    writer = MetricWriter(tmp_path, "environment_steps")
    shares = {"actor_environment": 0.9, "learner_wait": 0.8, "learner_step": 0.1}
    writer.write("time", 100, shares)
    writer.close()
    assert "try --actors 2 " in advice.explain(tmp_path, STATE)[-1]


def test_a_run_without_times_of_both_has_no_verdict(tmp_path):
    assert advice.explain(tmp_path, STATE) == []
    writer = MetricWriter(tmp_path, "environment_steps")
    writer.write("time", 100, {"actor_policy": 0.9})
    writer.write("time", 200, {"actor_policy": 0.9, "learner_step": 0.004, "learner_wait": 0.0})
    writer.close()
    assert advice.explain(tmp_path, STATE) == []
