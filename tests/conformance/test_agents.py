"""Conformance tests of all registered agents.

A new agent is tested as soon as `pyproject.toml` registers it.
"""

import dataclasses
import functools
import importlib
import pickle
import threading
import tomllib
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import reverb
import tensorflow as tf
import tree
from acme import specs, types

import environments
import rl_replicator as rr
from agents.agent import ExplorationContext
from agents.environment_loop import evaluation_episode, explore
from agents.learning.weights import copy_variables
from agents.replay.sequences import Sequence as Window
from agents.replay.transitions import Sample
from agents.replay.unrolls import Unroll, UnrollLayout
from environments.engines import EnvironmentsInTurn
from environments.fakes import TargetMatching
from rl_replicator.checkpoints import Checkpointer
from rl_replicator.checkpoints.parts import TrackablePart
from rl_replicator.errors import ConfigError, StepCancelled
from tests.environments.discrete_fakes import DiscreteTarget

pytestmark = pytest.mark.usefixtures("plain_graphs")
ROOT = Path(__file__).parents[2]
SIZE, BATCH, STEPS = 24, 64, 6
NUM_ROWS = 1000  # Transitions that an agent learns from.
NUM_UNROLLED = 16_000  # Steps that an agent learns from that takes each once.
LENGTH = 20  # The best return of `environments.fakes:target`; a constant action has 15.


def registered():
    """Yields the agents' commands that pyproject.toml registers."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for path in project["entry-points"]["rl_replicator.trainables"].values():
        module, _, name = path.partition(":")
        if module.startswith("agents."):
            yield getattr(importlib.import_module(module), name)


COMMANDS = {command.name: command for command in registered()}
NUM_ACTIONS = 3
BOTH = {"impala", "mrq"}  # They take both kinds of actions.
# With discrete actions. IMPALA's are in its own tests.
DISCRETE = {"dqn", "mrq discrete"}
AGENTS = sorted({*COMMANDS, *DISCRETE})
# MR.Q's own tests explore and evaluate discrete actions, and compare each variable with NumPy's.
TRAINED = sorted({*AGENTS} - {"mrq discrete"})
# Environments like `environments.fakes:target`.
TARGETS = {
    False: "environments.fakes:target",
    True: "tests.environments.discrete_fakes:make_target",
}


def command_of(name):
    return COMMANDS[name.split()[0]]


def make_spec(is_discrete, source="state"):
    state = specs.Array((3,), np.float32)
    pixels = specs.BoundedArray((SIZE, SIZE, 3), np.uint8, 0, 255)
    observations = {"state": state, "pixels": pixels, "both": {"pixels": pixels, "vector": state}}
    return specs.EnvironmentSpec(
        observations=observations[source],
        actions=specs.DiscreteArray(NUM_ACTIONS, np.int32)
        if is_discrete
        else specs.BoundedArray((2,), np.float32, -1.0, 1.0),
        rewards=specs.BoundedArray((), np.float32, 0.0, 1.0),
        discounts=specs.BoundedArray((), np.float32, 0.0, 1.0),
    )


def small_config(kind, **changes):
    """Returns a small config of an agent that keeps all of its randomness."""
    config = kind()
    settings = {
        "policy_layers": (32,),
        "critic_layers": (32,),
        "discount": 0.5,
        "n_step": 1,
        "global_batch_size": BATCH,
        "steps_per_call": 4,
        "unroll_length": 2,
        "width": 32,
    }
    if hasattr(config, "width"):
        settings["target_update_period"] = 2
    if hasattr(config, "replay"):
        settings["replay"] = dataclasses.replace(
            config.replay, min_size=200, samples_per_insert=32.0
        )
    if hasattr(config, "weighting"):
        # The values of the fake differ by less than beta; nothing trains the logit of a Gaussian.
        settings |= {"weighting": "binary", "num_components": 2}
    if hasattr(config, "encoder"):
        settings |= {"precision": "float32", "feature_size": 8, "max_shift": 2, "encoder": "small"}
    known = {k: v for k, v in (settings | changes).items() if hasattr(config, k)}
    return dataclasses.replace(config, **known)


def small_agent(name, source, **changes):
    kind = command_of(name).config_type(source != "state")
    spec = make_spec(name in DISCRETE, source)
    return command_of(name).make_agent(small_config(kind, **changes), spec)


def make_samples(agent, count):
    """Returns fixed transitions as one `Sample` of [count, ...], as the replay returns them."""
    random = np.random.default_rng(3)
    is_unrolled = isinstance(agent.layout, UnrollLayout)
    windows = getattr(agent.layout, "sequences", None)
    lead = (count, agent.layout.transitions_per_item + 1) if is_unrolled else (count,)
    lead = lead if windows is None else (count, windows.length)

    def normal(*shape):
        return random.normal(size=(*lead, *shape)).astype(np.float32)

    def observed(spec):
        if len(spec.shape) == 3:
            shape = (*lead, agent.layout.stack, *spec.shape)
            return random.integers(0, 256, shape, dtype=np.uint8)
        return normal(*spec.shape)

    def observations():
        return tree.map_structure(observed, agent.environment_spec.observations)

    def actions():
        if agent.is_discrete:
            return random.integers(NUM_ACTIONS, size=lead, dtype=np.int32)
        return random.uniform(-1, 1, (*lead, 2)).astype(np.float32)

    if is_unrolled:
        extras = {name: normal(*spec.shape) for name, spec in agent.extras_spec.items()}
        valid = (random.random(lead) > 0.1).astype(np.float32)
        discount = valid * random.choice([0.0, 0.5], lead).astype(np.float32)
        numbers = (normal(), discount, valid, np.zeros_like(valid), normal())
        return Sample((), (), (), Unroll(observations(), actions(), *numbers, extras))
    steps = {
        "observation": observations(),
        "action": actions(),
        "reward": random.uniform(0, 1, lead).astype(np.float32),
        "discount": random.choice([0.0, 0.5], lead).astype(np.float32),
    }
    if windows is None:
        transition = types.Transition(**steps, next_observation=observations())
    else:
        valid = (np.arange(lead[1]) <= random.integers(lead[1], size=count)[:, None]) + np.float32()
        transition = Window(**steps, valid=valid, extras=())
    return Sample(
        keys=np.arange(count, dtype=np.uint64),
        probabilities=random.uniform(1e-4, 1e-2, count),
        table_size=np.full(count, 1000, np.int64),
        transition=transition,
    )


def make_module(agent, replicator, seed=5):
    tf.random.set_seed(3)  # The run's seed, which determines noise and shifts.
    with replicator.scope():
        module = agent.make_module(replicator, total_steps=STEPS)
    random = np.random.default_rng(seed)
    for variable in module.trainable_variables:
        variable.assign(random.normal(scale=0.2, size=variable.shape).astype(np.float32))
    return module


def train_eagerly(agent):
    """Trains as `train` does on one device, without tracing, which takes most of its time."""
    module = make_module(agent, rr.make("single_device"))
    start = [variable.numpy() for variable in module.trainable_variables]
    samples = tf.nest.map_structure(tf.constant, make_samples(agent, STEPS * BATCH))
    for k in range(STEPS):
        rows = slice(k * BATCH, (k + 1) * BATCH)
        module.step_fn(tf.nest.map_structure(lambda x, rows=rows: x[rows], samples))
    return module, start


def train(agent, replicator_name):
    """Trains on fixed batches; returns the module."""
    replicator = rr.make(replicator_name)
    module = make_module(agent, replicator)
    samples = make_samples(agent, STEPS * BATCH)

    def input_fn(context):
        size = context.per_replica_batch_size(BATCH)
        return tf.data.Dataset.from_tensor_slices(samples).batch(size, drop_remainder=True)

    step = replicator.replicate(module.step_fn, replicator.make_inputs(input_fn), 3)
    for _ in range(STEPS // 3):
        step()
    assert int(module.num_steps.numpy()) == STEPS
    return module


def check_equal(one, other):
    """Asserts that all floating-point variables of two modules are equal up to rounding."""
    one, other = ([v for v in x.variables if v.dtype.is_floating] for x in (one, other))
    assert len(one) == len(other) > 10
    for a, b in zip(one, other, strict=True):
        np.testing.assert_allclose(b.numpy(), a.numpy(), rtol=1e-3, atol=2e-4, err_msg=a.name)


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("name", "other", "source"),
    [
        # Each agent's test_reference.py covers states on replicas, and the seeds of shifts.
        *((name, "multi_device:2", "both") for name in ("d4pg", "mrq")),
        # MR.Q's continuous actions are made as TD3's. See IMPALA's test_reference.py for it.
        *((name, "mesh:data=2", "state") for name in AGENTS if name not in BOTH),
    ],
)
def test_replicas_and_meshes_train_as_one_device_does(name, other, source, monkeypatch):
    """Including shifts and delayed updates, from frames and state.

    On replicas, also including noise. DTensor draws it separately on each device of a mesh, so it
    is all 0.3 there.
    """
    if other.startswith("mesh"):
        monkeypatch.setattr(tf.random, "stateless_normal", lambda shape, seed: tf.fill(shape, 0.3))
    fields = dataclasses.fields(command_of(name).config)
    rates = {one.name: 3e-3 for one in fields if one.name.endswith("learning_rate")}
    agent = small_agent(name, source, **rates)
    one, start = train_eagerly(agent)
    for old, new in zip(start, one.trainable_variables, strict=True):
        # Far beyond the tolerance of the comparison: something was trained.
        assert "target" in new.name or np.abs(new.numpy() - old).max() > 1e-3, new.name
    check_equal(one, train(agent, other))


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("name", "source", "pair"),
    [
        ("d4pg", "state", {"num_critics": 2}),
        ("d4pg", "pixels", {}),
        ("td3", "state", {}),
        ("sac", "state", {}),
    ],
)
def test_batch_norm_is_that_of_all_replicas_and_weights_have_unit_length(name, source, pair):
    agent = small_agent(name, source, torso="xqc", policy_average=1, **pair)
    module, _ = train_eagerly(agent)
    if name == "td3":  # Delayed updates: its replicas exchange statistics in all steps.
        check_equal(module, train(agent, "multi_device:2"))
    networks = {"policy": module.online.policy, "critic": module.online.critic}
    for path, array in copy_variables(networks, networks).items():
        if path.endswith("/w"):
            np.testing.assert_allclose(np.linalg.norm(array, axis=0), 1, rtol=1e-5, err_msg=path)
        if path.endswith("/average") and "variance" in path:
            assert np.abs(array - 1).max() > 1e-3, path


@pytest.mark.parametrize("name", sorted(set(AGENTS) - {"mrq", "mrq discrete"}))
def test_the_torso_from_pixels_follows_a_projection_of_the_features(name):
    agent = small_agent(name, "pixels", torso="simba", policy_layers=(8, 8), critic_layers=(8, 8))
    policy = agent.make_acting_networks()["policy"]
    size = agent.config.feature_size
    kernels = {v.name: v.shape for v in policy.trainable_variables if v.name.endswith("/w:0")}
    assert [shape[1] for name, shape in kernels.items() if "projection/" in name] == [size]
    assert any(shape == (size, 8) for shape in kernels.values())
    assert sum("/block_" in name for name in kernels) >= 2


@pytest.mark.parametrize("name", TRAINED)
def test_a_restored_learner_goes_on_as_the_saved_one(name, tmp_path):
    agent = small_agent(name, "state")
    replicator = rr.make("single_device")
    sample = tf.nest.map_structure(tf.constant, make_samples(agent, BATCH))
    saved, restored = (make_module(agent, replicator, seed) for seed in (5, 6))
    saved.step_fn(sample)
    checkpointer = Checkpointer(tmp_path)
    checkpointer.save(1, {"learner": TrackablePart(module=saved)})
    checkpointer.restore({"learner": TrackablePart(module=restored)})
    saved.step_fn(sample)
    restored.step_fn(sample)
    pairs = list(zip(saved.variables, restored.variables, strict=True))
    assert len(pairs) > 20  # Weights, targets and the optimizers' slots.
    for a, b in pairs:
        np.testing.assert_allclose(b, a, rtol=1e-5, atol=1e-6, err_msg=a.name)


class Recorder:
    """Delegates everything to an environment, and records the actions."""

    def __init__(self, environment):
        self._environment = environment
        self.actions = []

    def __getattr__(self, name):
        return getattr(self._environment, name)

    def step(self, action):
        self.actions.append(action)
        return self._environment.step(action)


class Trained(NamedTuple):
    agent: object
    learner: object
    actions: np.ndarray


@functools.cache
def trained(name):
    """Trains an agent on the fake target for some seconds, without a program around it."""
    command = command_of(name)
    environment = Recorder(environments.make(TARGETS[name in DISCRETE], seed=0))
    config = small_config(
        command.config,
        policy_layers=(32, 32),
        critic_layers=(32, 32),
        policy_learning_rate=3e-3,
        critic_learning_rate=3e-3,
        encoder_learning_rate=3e-3,
        reward_weight=1.0,  # Nothing predicts the next observation of the fake.
        exploration_random_steps=200,
    )
    if hasattr(config, "unroll_length"):
        count = NUM_UNROLLED
        config = dataclasses.replace(
            config,
            unroll_length=20,
            global_batch_size=8,
            steps_per_call=1,
            policy_learning_rate=1e-3,
        )
    else:
        count = NUM_ROWS
        # Few large batches: the same number of samples takes a quarter of the time.
        config = dataclasses.replace(config, global_batch_size=32, steps_per_call=10)
    if hasattr(config, "width"):
        config = dataclasses.replace(config, target_update_period=10)
    agent = command.make_agent(config, specs.make_environment_spec(environment))
    tf.random.set_seed(1)
    server = reverb.Server(agent.make_tables(1))
    address = f"localhost:{server.port}"
    learner = agent.make_learner(rr.make("single_device"), [address], count)
    adder = agent.make_adder(reverb.Client(address), lambda seconds: None)
    actor = agent.make_actor(learner, [adder], [ExplorationContext(np.random.default_rng(0))])

    def learn():
        try:
            while True:
                learner.step()
        except StepCancelled:
            learner.refresh()

    thread = threading.Thread(target=learn)
    thread.start()
    try:
        for done, _ in enumerate(explore(EnvironmentsInTurn([environment]), actor)):
            if done == count or not thread.is_alive():
                break
    finally:
        learner.cancel()
        thread.join()
        learner.close()
        adder.close()
        server.stop()
    return Trained(agent, learner, np.array(environment.actions))


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", TRAINED)
def test_it_learns_a_fake_environment(name):
    agent, learner, _ = trained(name)
    evaluator = agent.make_evaluator(learner)
    environment = (DiscreteTarget if agent.is_discrete else TargetMatching)(7, LENGTH)
    returns = [evaluation_episode(environment, evaluator, LENGTH).episode_return for _ in range(10)]
    # An agent that has learned nothing has 0.76. MR.Q's returns differ most from run to run.
    least = 0.85 if name.startswith("mrq") else 0.9
    assert np.mean(returns) > least * LENGTH, returns


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", TRAINED)
def test_it_explores_within_the_action_range(name):
    agent, _, actions = trained(name)
    if agent.is_discrete:
        assert actions.dtype == np.int32 and set(actions.tolist()) == set(range(9))
        return
    assert actions.dtype == np.float32 and actions.shape[1:] == (1,)
    assert np.abs(actions).max() <= 1.0
    assert np.abs(np.diff(actions[:100], axis=0)).max() > 0.1


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", TRAINED)
def test_it_is_evaluated_with_the_average_policy_and_without_exploration(name):
    agent, learner, _ = trained(name)
    module = learner.trackables()["module"]
    networks = module.acting_networks
    has_average = agent.config.policy_average > 1
    assert ("average_policy" in networks) == has_average
    policy = networks["average_policy" if has_average else "policy"]
    online = {v.name for network in networks.values() for v in network.variables}
    assert online and not any(name.startswith("target") for name in online)
    evaluator, other = agent.make_evaluator(learner), agent.make_evaluator(learner)
    for value in (-0.9, -0.2, 0.4, 0.8):
        observation = np.array([value, 0.5], np.float32)
        action = evaluator.select_action(observation)
        used = {"encoder": networks["encoder"], "policy": policy}
        outputs = agent.policy_outputs(used, tf.constant(observation[None]))
        expected = agent.greedy_action(outputs)[0]
        np.testing.assert_allclose(action, expected, rtol=1e-4, atol=1e-5)
        np.testing.assert_array_equal(evaluator.select_action(observation), action)
        np.testing.assert_array_equal(other.select_action(observation), action)


@pytest.mark.parametrize("name", sorted(set(COMMANDS) - BOTH))
def test_an_environment_of_the_other_kind_of_actions_is_refused(name):
    """In one line, which names the agents that fit."""
    command, kinds = COMMANDS[name], ("continuous", "discrete")
    own = name in DISCRETE
    others = [other for other in COMMANDS if (other in DISCRETE) != own and other != "crr"]
    fitting = [*sorted(set(others) - BOTH), *sorted(BOTH)]
    with pytest.raises(
        ConfigError, match=f"with {kinds[own]} actions for .*got {kinds[not own]}"
    ) as e:
        command.make_agent(small_config(command.config), make_spec(not own))
    assert str(e.value).endswith(f"; train {' or '.join(fitting)}")


@pytest.mark.parametrize("name", AGENTS)
def test_it_can_be_sent_to_other_processes(name):
    agent = pickle.loads(pickle.dumps(small_agent(name, "pixels")))
    agent.make_tables(1)
    agent = pickle.loads(pickle.dumps(agent))
    assert agent.config == small_agent(name, "pixels").config
