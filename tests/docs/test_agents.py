"""The agent of `docs/agents.md`: short, found by its import path, and it learns."""

import dataclasses
import pathlib

import numpy as np
import pytest
import tensorflow as tf
import tree

import agents
import rl_replicator as rr
from agents.nodes.run_plan import EvaluationSchedule
from agents.replay.config import ReplayConfig
from agents.runs.options import AgentOptions
from agents.task import Task
from rl_replicator.cli import trainables
from rl_replicator.runs.metrics import read_metrics
from tests.agents import fixed_samples

EXAMPLES = pathlib.Path(__file__).parents[2] / "docs" / "examples"
LENGTH = 20  # The best return of `environments.fakes:target`; a constant action has 15.


@pytest.fixture
def command(monkeypatch):
    monkeypatch.syspath_prepend(str(EXAMPLES))
    return trainables.load("ddpg_agent:command")


def test_its_loss_corrects_for_priorities(command):
    """Halfway through a run, beta is 0.7."""
    replay = ReplayConfig(priority_exponent=0.6, importance_exponent_start=0.4)
    config = dataclasses.replace(
        command.config(), policy_layers=(4,), critic_layers=(4,), replay=replay
    )
    replicator = rr.make("single_device")
    module = command.make_agent(config, fixed_samples.make_spec()).make_module(replicator, 100)
    module.num_steps.assign(50)
    sample = fixed_samples.make_samples(16)
    output = module.step_fn(tree.map_structure(tf.constant, sample))
    weights = (sample.probabilities * sample.table_size) ** -0.7
    td_errors = output.priorities.numpy()
    expected = np.mean(0.5 * weights / weights.max() * td_errors**2)
    assert float(output.metrics["critic_loss"]) == pytest.approx(expected, rel=1e-5)


@pytest.mark.timeout(300)
def test_it_learns_and_is_evaluated(command, tmp_path, capsys):
    config = command.config()
    options = AgentOptions(
        env="environments.fakes:target",
        steps=1200,
        run_dir=tmp_path / "run",
        evaluation=EvaluationSchedule(every=800, episodes=3, last_episodes=5),
        agent=dataclasses.replace(
            config,
            policy_layers=(32, 32),
            critic_layers=(32, 32),
            discount=0.5,
            n_step=1,
            global_batch_size=32,
            policy_learning_rate=1e-3,
            critic_learning_rate=1e-3,
            replay=dataclasses.replace(config.replay, min_size=300, samples_per_insert=32.0),
        ),
    )
    assert command.train(options) == 0
    assert read_metrics(tmp_path / "run", "evaluator")["episode_return"][-1] > 0.93 * LENGTH
    learner = read_metrics(tmp_path / "run", "learner")
    assert np.isfinite(learner["critic_loss"]).all()
    capsys.readouterr()
    assert trainables.of_run(tmp_path / "run").evaluate(tmp_path / "run", 2, seed=3) == 0
    assert float(capsys.readouterr().out.split()[1]) > 0.9 * LENGTH
    assert type(agents.load_policy(tmp_path / "run").agent).__module__ == "ddpg_agent"


def test_a_copy_trains_its_own_class_under_its_own_name(tmp_path, monkeypatch):
    text = (EXAMPLES / "ddpg_agent.py").read_text()
    text = text.replace('AgentCommand("ddpg"', 'AgentCommand("td3"')
    (tmp_path / "copied_agent.py").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    copy = trainables.load("copied_agent:command")
    assert copy.name == "copied_agent:command"
    made = copy.make_agent(copy.config(), Task("environments.fakes:target").spec())
    assert type(made).__module__ == "copied_agent"


def test_the_page_shows_all_of_the_variation():
    code = (EXAMPLES / "expectile_td3.py").read_text().partition("\n\n")[2]
    assert f"```python\n{code}```\n" in (EXAMPLES.parent / "agents.md").read_text()


@pytest.mark.parametrize(("expectile", "share"), [(0.5, 0.5), (0.0, 0.0)])
def test_a_variation_of_an_agent_has_its_own_loss(monkeypatch, expectile, share):
    """At 0.5, it is half the loss of TD3; at 0, it is zero if all errors are positive."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    variation = trainables.load("expectile_td3:command")
    config = variation.config(policy_layers=(4,), critic_layers=(4,), expectile=expectile)
    agent = variation.make_agent(config, fixed_samples.make_spec())
    td_errors = tf.constant([[1.0, 2.0], [3.0, 4.0]])
    np.testing.assert_allclose(agent.make_td_loss()(td_errors), share * td_errors**2 / 2)
    sample = tree.map_structure(tf.constant, fixed_samples.make_samples(8, 50.0, 90.0))
    output = agent.make_module(rr.make("single_device"), 100).step_fn(sample)
    assert (float(output.metrics["critic_loss"]) > 0) == (share > 0)


def test_a_command_with_a_constructor_of_its_own_keeps_it(tmp_path, monkeypatch):
    (tmp_path / "own_command.py").write_text(
        "from agents.runs.command import AgentCommand\n"
        "from agents.td3.config import TD3Config\n"
        "class Own(AgentCommand):\n"
        "    def __init__(self):\n"
        "        super().__init__('own', TD3Config, None, 'agents.td3.agent:TD3')\n"
        "command = Own()\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    found = trainables.load("own_command:command")
    assert found.name == "own_command:command" and type(found).__name__ == "Own"
    import own_command

    assert own_command.command.name == "own"
