"""DQN's acting: its exploration, its masks, and whole runs in an environment that enforces them."""

import dataclasses

import numpy as np
import pytest
from acme import specs

import environments
from agents import dqn, load_policy
from agents.agent import ExplorationContext
from agents.cli import policies
from agents.dqn.config import DQNConfig
from agents.nodes.run_plan import EvaluationSchedule
from agents.replay.config import ReplayConfig
from agents.runs.options import AgentOptions
from rl_replicator.cli import main

pytestmark = pytest.mark.usefixtures("plain_graphs")
# By import path, which needs no registration.
COMMAND = dataclasses.replace(dqn.command, name="agents.dqn:command")
BUTTONS = "tests.environments.discrete_fakes:make_buttons"  # It refuses illegal actions.
SMALL = DQNConfig(
    critic_layers=(16, 16),
    global_batch_size=16,
    steps_per_call=4,
    exploration_epsilon=0.5,
    exploration_exponent=0.0,
    exploration_random_steps=50,
    normalize_observations=True,
    replay=ReplayConfig(min_size=100, samples_per_insert=8.0),
)


def exploration(rank=0.5, step=10_000, **changes):
    spec = specs.make_environment_spec(environments.make(BUTTONS, seed=0))
    context = ExplorationContext(np.random.default_rng(0), lambda: step, rank)
    return COMMAND.make_agent(DQNConfig(**changes), spec).make_exploration(context)


@pytest.mark.parametrize(("rank", "epsilon"), [(0.0, 0.4), (0.5, 0.4**4.5), (1.0, 0.4**8)])
def test_a_ladder_of_epsilons(rank, epsilon):
    """Horgan et al. 2018, section 4.1. A random action is the best one in a third of all cases."""
    explore = exploration(rank)
    values = np.array([0.0, 2.0, 1.0, *[-np.inf] * 3], np.float32)
    taken = [int(explore(values)[0]) for _ in range(20_000)]
    share = np.mean(np.array(taken) != 1)
    assert share == pytest.approx(2 / 3 * epsilon, abs=0.01)
    assert set(taken) <= {0, 1, 2}


def test_the_first_actions_are_random_and_legal():
    explore = exploration(step=999)
    values = np.array([-np.inf, 2.0, 1.0, -np.inf, 0.0, -np.inf], np.float32)
    taken = [int(explore(values)[0]) for _ in range(3000)]
    counts = np.bincount(taken, minlength=6)
    assert counts[[0, 3, 5]].sum() == 0
    np.testing.assert_allclose(counts[[1, 2, 4]] / 3000, 1 / 3, atol=0.04)


def options(run_dir, **changes):
    settings = {
        "env": BUTTONS,
        "steps": 300,
        "run_dir": run_dir,
        "agent": SMALL,
        "video": False,
        "evaluation": EvaluationSchedule(every=150, episodes=2, last_episodes=2),
    }
    return AgentOptions(**(settings | changes))


@pytest.mark.timeout(300)
def test_runs_from_training_to_data(tmp_path, monkeypatch):
    """Others learn from the data of a deterministic run; tests/agents/test_memory.py stops one."""
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    run = tmp_path / "run"
    assert COMMAND.train(options(run, deterministic=True)) == 0
    assert policies.record([str(run), "--episodes", "15", "--dataset", "a-v0", "--explore"]) == 0
    offline = tmp_path / "offline"
    options_offline = {"offline": "a-v0", "env": BUTTONS, "actors": 1, "steps": 40}
    assert COMMAND.train(options(offline, **options_offline)) == 0
    prefilled = tmp_path / "prefilled"
    assert COMMAND.train(options(prefilled, prefill="a-v0", actors=2)) == 0
    policy = load_policy(prefilled)
    with policy.make_environment(seed=5) as environment:
        timestep = environment.reset()
        while not timestep.last():
            timestep = environment.step(policy.act(timestep.observation))
    assert main.main(["report", str(prefilled), "--out", str(tmp_path / "report.html")]) == 0
