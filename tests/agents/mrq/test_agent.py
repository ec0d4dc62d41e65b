"""MR.Q's discrete actions; tests/conformance/test_agents.py trains it by these."""

import dataclasses

import numpy as np
from acme import specs

import environments
from agents import mrq
from agents.agent import ExplorationContext
from agents.mrq.config import MRQConfig
from tests.agents.button_runs import BUTTONS
from tests.agents.fixed_samples import Weights

# By import path, which needs no registration.
COMMAND = dataclasses.replace(mrq.command, name="agents.mrq:command")


def make_agent(**changes):
    spec = specs.make_environment_spec(environments.make(BUTTONS, seed=0))
    return COMMAND.make_agent(MRQConfig(**changes), spec)


def exploration(step, **changes):
    context = ExplorationContext(np.random.default_rng(0), lambda: step)
    return make_agent(**changes).make_exploration(context)


def test_actions_are_samples_of_the_legal_logits_with_noise():
    logits = np.array([0.0, -np.inf, np.log(2), *[-np.inf] * 3], np.float32)

    def counts(explore, number=4000):
        return np.bincount([int(explore(logits)[0]) for _ in range(number)], minlength=6) / number

    for sigma, best in ((0.0, 2 / 3), (10.0, 1 / 2)):  # Noise alone would choose equally often.
        found = counts(exploration(10_000, exploration_sigma=sigma))
        np.testing.assert_allclose(found, [1 - best, 0, best, 0, 0, 0], atol=0.03)
    found = counts(exploration(0), 16_000)  # Random actions are held.
    np.testing.assert_allclose(found, [1 / 2, 0, 1 / 2, 0, 0, 0], atol=0.05)


def test_the_policy_without_exploration_is_legal():
    agent = make_agent(width=16)
    evaluator = agent.make_evaluator(Weights(agent))
    environment, seen = environments.make(BUTTONS, seed=0), set()
    for _ in range(5):
        timestep = environment.reset()
        while not timestep.last():  # The environment refuses illegal actions.
            action = evaluator.select_action(timestep.observation)
            seen.add(int(action))
            timestep = environment.step(action)
    assert len(seen) > 1
