"""What the node of a deterministic run refuses before it starts."""

import dataclasses

import pytest
import sonnet as snt
import tensorflow as tf
from acme import specs

import environments
from agents.config import NoiseSettings, OffPolicyConfig
from agents.deterministic.node import DeterministicNode
from agents.learning.replay_learner import StepOutput
from agents.nodes.counter import Counter
from agents.off_policy_agent import OffPolicyAgent
from agents.replay.config import ReplayConfig
from rl_replicator.errors import ConfigError
from tests.agents.nodes.plans import TARGET, make_plan


@dataclasses.dataclass(frozen=True)
class Config(NoiseSettings, OffPolicyConfig):
    policy_layers: tuple[int, ...] = (4,)
    global_batch_size: int = 2
    steps_per_call: int = 1


class Module(tf.Module):
    """Learns nothing."""

    def __init__(self, networks):
        super().__init__()
        self.num_steps = tf.Variable(0, dtype=tf.int64, trainable=False)
        self.acting_networks = networks

    def step_fn(self, sample):
        self.num_steps.assign_add(1)
        return StepOutput(sample.keys, sample.transition.reward, {"noise": self.noise()})

    def noise(self):
        return tf.random.stateless_normal([], tf.stack([self.num_steps, 0]))


class NoisyModule(Module):
    def noise(self):
        return tf.random.normal([])


class Agent(OffPolicyAgent):
    module = Module

    def make_module(self, replicator, total_steps):
        return self.module(self.make_acting_networks())


class NoisyStep(Agent):
    module = NoisyModule


class NoisyPolicy(Agent):
    def make_policy(self, name):
        policy = super().make_policy(name)
        return snt.Sequential([policy, lambda x: x + tf.random.normal(tf.shape(x))], name=name)


def make_node(kind, run_dir):
    config = Config(replay=ReplayConfig(transitions_per_item=1))
    agent = kind(config, specs.make_environment_spec(environments.make(TARGET.name, seed=0)))
    (run_dir / "config.json").write_text("{}")
    counter = Counter(run_dir, total_steps=300, restored=None)
    return DeterministicNode(agent, make_plan(run_dir, 300), counter)


@pytest.fixture(autouse=True)
def ordinary_tensorflow(monkeypatch):
    """Other tests of this process get what the node does to all of TensorFlow."""
    monkeypatch.setattr(tf.config.experimental, "enable_op_determinism", lambda: None)
    monkeypatch.setattr(tf.random, "set_seed", lambda seed: None)


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (
            NoisyStep,
            r"a step whose random .* found RandomStandardNormal \(.*; use agents.l",
        ),
        (NoisyPolicy, r"a policy whose random .* found RandomStandardNormal .*; draw them in m"),
    ],
)
def test_random_numbers_that_a_continued_run_would_not_draw_again_are_refused(
    tmp_path, kind, message
):
    with pytest.raises(ConfigError, match=message) as error:
        make_node(kind, tmp_path)
    assert "\n" not in str(error.value)


def test_an_agent_with_seeds_that_count_steps_is_accepted(tmp_path):
    assert make_node(Agent, tmp_path) is not None
