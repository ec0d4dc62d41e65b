"""MR.Q's exploration by discrete actions, and a whole run."""

import dataclasses

import numpy as np
import pytest
from acme import specs

import environments
from agents import load_policy, mrq
from agents.agent import ExplorationContext
from agents.mrq.config import MRQConfig
from agents.nodes.run_plan import EvaluationSchedule
from agents.runs.options import AgentOptions

pytestmark = pytest.mark.usefixtures("plain_graphs")
# By import path, which needs no registration.
COMMAND = dataclasses.replace(mrq.command, name="agents.mrq:command")
BUTTONS = "tests.environments.discrete_fakes:make_buttons"  # It refuses illegal actions.
SMALL = MRQConfig(
    width=16,
    global_batch_size=16,
    steps_per_call=4,
    target_update_period=10,
    exploration_random_steps=50,
    replay=dataclasses.replace(MRQConfig().replay, min_size=100, samples_per_insert=8.0),
)


def exploration(step, **changes):
    spec = specs.make_environment_spec(environments.make(BUTTONS, seed=0))
    context = ExplorationContext(np.random.default_rng(0), lambda: step)
    return COMMAND.make_agent(MRQConfig(**changes), spec).make_exploration(context)


def test_actions_are_samples_of_the_legal_logits_with_noise():
    logits = np.array([0.0, -np.inf, np.log(2), *[-np.inf] * 3], np.float32)

    def counts(explore, number=4000):
        return np.bincount([int(explore(logits)[0]) for _ in range(number)], minlength=6) / number

    for sigma, best in ((0.0, 2 / 3), (10.0, 1 / 2)):  # Noise alone would choose equally often.
        found = counts(exploration(10_000, exploration_sigma=sigma))
        np.testing.assert_allclose(found, [1 - best, 0, best, 0, 0, 0], atol=0.03)
    found = counts(exploration(0), 16_000)  # Random actions are held.
    np.testing.assert_allclose(found, [1 / 2, 0, 1 / 2, 0, 0, 0], atol=0.05)


@pytest.mark.timeout(300)
def test_a_deterministic_run_ends_among_legal_actions(tmp_path):
    """tests/conformance/test_agents.py restores its learner."""
    options = AgentOptions(
        env=BUTTONS,
        steps=204,
        run_dir=tmp_path,
        agent=SMALL,
        video=False,
        deterministic=True,
        evaluation=EvaluationSchedule(every=150, episodes=2, last_episodes=2),
    )
    assert COMMAND.train(options) == 0
    assert load_policy(tmp_path).learner_steps >= 40
