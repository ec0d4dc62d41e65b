"""The node of a deterministic run: what it refuses before it starts, and what it records."""

import dataclasses
import threading

import numpy as np
import pytest
import sonnet as snt
import tensorflow as tf
from acme import specs

import environments
import launchpad as lp
from agents.config import NoiseSettings, OffPolicyConfig, PolicySettings
from agents.deterministic.episode import memory_part
from agents.deterministic.node import DeterministicNode
from agents.learning.replay_learner import StepOutput
from agents.nodes.counter import restored_counter
from agents.off_policy_agent import OffPolicyAgent
from agents.replay.config import ReplayConfig
from environments.fakes import TargetMatching
from rl_replicator.errors import CheckpointError, ConfigError
from rl_replicator.runs.metrics import read_metrics
from rl_replicator.runs.run_directory import RunDirectory
from tests.agents.nodes.plans import TARGET, make_plan


@dataclasses.dataclass(frozen=True)
class Config(NoiseSettings, PolicySettings, OffPolicyConfig):
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


class Asked(Exception):
    """The learner steps that schedules are for."""


class Schedules(Agent):
    def make_module(self, replicator, total_steps):
        raise Asked(total_steps)


class NoisyStep(Agent):
    module = NoisyModule


class NoisyPolicy(Agent):
    def make_policy(self, name):
        policy = super().make_policy(name)
        return snt.Sequential([policy, lambda x: x + tf.random.normal(tf.shape(x))], name=name)


def drifting(config, context):
    """Changes an array of its memory in place, of which it keeps a reference."""
    drift = context.memory.setdefault("drift", np.zeros(1, np.float32))

    def explore(action):
        drift[:] = 0.9 * drift + 0.1 * context.random.standard_normal(1, np.float32)
        return drift  # Without the action: each of these runs draws different weights.

    return explore


def nesting(config, context):
    """Changes a dictionary in place, an array in it, and a list that repeats one array at first."""
    zeros = np.zeros(1, np.float32)
    state = context.memory.setdefault("state", {"drift": zeros.copy(), "last": [zeros] * 3})
    drift, last = state["drift"], state["last"]

    def explore(action):
        last.append(context.random.standard_normal(1, np.float32))
        drift[:] = 0.9 * drift + 0.1 * last.pop(0)
        state["count"] = state.get("count", 0) + 1
        return drift / state["count"] ** 0.5

    return explore


def make_node(kind, run_dir, total_steps=300, exploration="gaussian", task=TARGET, **replay):
    replay = ReplayConfig(transitions_per_item=1, **replay)
    config = Config(replay=replay, exploration=exploration, exploration_random_steps=0)
    agent = kind(config, specs.make_environment_spec(environments.make(TARGET.name, seed=0)))
    RunDirectory(run_dir).describe("d4pg", {}, {})
    counter = restored_counter(run_dir, total_steps)
    return DeterministicNode(agent, make_plan(run_dir, total_steps, task=task), counter)


@pytest.fixture(autouse=True)
def ordinary_program(monkeypatch):
    """A program that nothing stops, without the node's global changes to TensorFlow."""
    monkeypatch.setattr(lp, "stop_event", threading.Event)
    monkeypatch.setattr(lp, "stop", lambda: None)
    monkeypatch.setattr(tf.config.experimental, "enable_op_determinism", lambda: None)
    monkeypatch.setattr(tf.random, "set_seed", lambda seed: None)


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (
            NoisyStep,
            r"a step whose random .* found RandomStandardNormal \(.*; use rl_repl",
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


def test_schedules_count_actions(tmp_path):
    """Of which 300 steps of the simulator are 150 here; the learner starts after 50."""
    twice = dataclasses.replace(TARGET, repeats=2)
    with pytest.raises(Asked, match="^100$"):
        make_node(Schedules, tmp_path, task=twice, min_size=50, samples_per_insert=2.0)


def test_a_repeated_action_counts_as_several_steps_of_the_environment(tmp_path):
    """The agent is one that is accepted: its seeds count steps."""
    twice = dataclasses.replace(TARGET, repeats=2)
    make_node(Agent, tmp_path, 40, task=twice).run()
    table = read_metrics(tmp_path, "actor")
    assert table["environment_steps"].tolist() == [20, 40]
    assert table["episode_length"].tolist() == [20, 20]


def test_the_environment_is_closed_when_the_node_is_not_made(tmp_path, monkeypatch):
    closed = []

    def interrupt(*_):
        raise SystemExit

    monkeypatch.setattr(TargetMatching, "close", lambda self: closed.append(self))
    monkeypatch.setattr(Agent, "make_evaluator", interrupt)
    with pytest.raises(SystemExit):
        make_node(Agent, tmp_path)
    assert len(closed) == 1


@pytest.mark.parametrize(("exploration", "end"), [("drifting", 1), ("nesting", 30)])
def test_a_continued_run_has_the_memory_of_its_exploration(tmp_path, exploration, end):
    def run(name, *ends):
        folder = tmp_path / name
        folder.mkdir()
        for end in ends:
            node = make_node(Agent, folder, end, exploration=f"{__name__}:{exploration}")
            node.run()
        return np.array(node._episode._actions)

    np.testing.assert_array_equal(run("cut", end, 38), run("whole", 38))


@pytest.mark.parametrize(
    ("value", "found"),
    [
        (set(), r"got set at memory\['state'\]; convert"),
        ([np.float32(0.1)], r"got float32 at memory\['state'\]\[0\]; convert"),
        ({"last": (1, 2)}, r"got tuple at memory\['state'\]\['last'\]; convert"),
    ],
)
def test_a_memory_that_would_not_come_back_is_refused(tmp_path, value, found):
    with pytest.raises(CheckpointError, match=found):
        memory_part({"state": value}).save(tmp_path)


def test_a_continued_run_records_the_metrics_of_the_last_call_before_it(tmp_path):
    """From step 460 on, the learner makes a call every 25 steps: the first one is at 485."""

    def run(name, *ends):
        folder = tmp_path / name
        folder.mkdir(exist_ok=True)
        for end in ends:
            make_node(Agent, folder, end, min_size=460, samples_per_insert=0.08).run()
        table = read_metrics(folder, "learner")
        return table["environment_steps"].tolist(), table["noise"].tolist()

    whole = run("whole", 510)
    assert whole == run("cut", 490, 510)
    assert whole[0] == [500]
