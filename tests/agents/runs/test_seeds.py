"""Which random streams of a run follow from its seed, seen by the environments of the command."""

import itertools

import pytest

from rl_replicator.cli import main
from tests.agents.runs import recording_target

pytestmark = pytest.mark.usefixtures("plain_graphs")
OPTIONS = (
    "train d4pg --env tests.agents.runs.recording_target:make --envs-per-actor 4"
    " --no-video --evaluation.every 100000 --evaluation.last-episodes 1"
    " --agent.policy-layers 8 --agent.critic-layers 8 --agent.global-batch-size 4"
    " --agent.replay.min-size 1000"  # The learner takes no step, and compiles none.
    " --agent.exploration-random-steps 100000"
)


def streams(run_dir, seed, steps):
    """Runs the command; returns seeds and first actions by environment, and evaluations' seeds."""
    recording_target.MADE.clear()
    words = ["--run-dir", str(run_dir), "--seed", str(seed), "--steps", str(steps)]
    assert main.main([*OPTIONS.split(), *words]) == 0
    made = recording_target.MADE
    acting = [each for each in made if "actor" in each.node]
    evaluated = [each.seed for each in made if "evaluator" in each.node]
    assert len(acting) == 4 and len(evaluated) == 1
    assert all(len(each.actions) == 8 for each in acting)
    return [each.seed for each in acting], [each.actions for each in acting], evaluated[0]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_streams_follow_from_the_seed_the_environment_and_the_start(tmp_path):
    """Actions are drawn at random, so that they show the noise of each environment.

    tests/agents/nodes/test_actor.py repeats a seed.
    """
    short = streams(tmp_path / "short", seed=7, steps=80)
    continued = streams(tmp_path / "short", seed=7, steps=160)
    other = streams(tmp_path / "other", seed=8, steps=80)
    evaluations = {short[2], continued[2], other[2]}
    acting = [*short[0], *continued[0], *other[0]]
    assert len({*evaluations, *acting}) == len(evaluations) + len(acting) == 3 + 12
    for one, another in itertools.combinations([*short[1], *continued[1], *other[1]], 2):
        assert not set(one) & set(another)
