"""MR.Q's exploration by discrete actions, its options, and whole runs."""

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
from rl_replicator.errors import ConfigError

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
def test_a_deterministic_run_goes_on_bit_for_bit(tmp_path):
    part, whole = tmp_path / "part", tmp_path / "whole"
    for run_dir, steps in ((part, 204), (part, 300), (whole, 300)):
        options = AgentOptions(
            env=BUTTONS,
            steps=steps,
            run_dir=run_dir,
            agent=SMALL,
            video=False,
            deterministic=True,
            evaluation=EvaluationSchedule(every=150, episodes=2, last_episodes=2),
        )
        assert COMMAND.train(options) == 0
    weights = [load_policy(run_dir).weights.get_variables(["policy"]) for run_dir in (part, whole)]
    for path, array in weights[0].items():
        np.testing.assert_array_equal(array, weights[1][path], err_msg=path)


def test_ranges_are_refused_in_one_line():
    for changes, message in (
        ({"horizon": 2}, r"--agent.horizon: expected n_step \(3\) to 1000, got 2"),
        ({"horizon": 1001}, "--agent.horizon: expected n_step"),
        ({"width": 10_000}, "--agent.width: expected 2 to 8192, got 10000"),
        ({"width": 1}, "--agent.width: expected 2 to 8192"),
        ({"torso": "xqc"}, "--agent.torso: expected mlp or simba"),
        ({"normalize_observations": True}, "--agent.normalize-observations: expected False"),
        ({"temperature": 0.0}, "--agent.temperature: expected a finite number above 0"),
        ({"critic_layers": (0,)}, "--agent.critic-layers: expected one or more layer sizes"),
    ):
        with pytest.raises(ConfigError, match=message):
            MRQConfig(**changes)
