"""The agent's factories: how it acts, what a new row and a new critic say, and schedules."""

import dataclasses
import math

import numpy as np
import pytest
import reverb
import tensorflow as tf
import tree
from acme import specs

import environments
import rl_replicator as rr
from agents.agent import ExplorationContext
from agents.d4pg.agent import D4PG
from agents.d4pg.config import PAPER, D4PGConfig, PixelD4PGConfig
from agents.replay.config import ReplayConfig
from agents.replay.local import LocalReplay
from agents.replay.table import TABLE
from rl_replicator.errors import ConfigError
from tests.agents import fixed_samples
from tests.agents.d4pg import numpy_step
from tests.agents.fixed_samples import Weights, make_spec

SIGMA = 0.25
CONFIG = D4PGConfig(
    policy_layers=(6,),
    critic_layers=(6,),
    num_atoms=21,
    value_min=0.0,
    global_batch_size=4,
    steps_per_call=1,
    exploration_sigma=SIGMA,
    target_update_period=1000,
    replay=ReplayConfig(priority_exponent=0.6, min_size=8, samples_per_insert=10.0),
)
OBSERVATION = np.array([0.3, -0.8], np.float32)


@pytest.fixture(scope="module")
def environment():
    return environments.make("environments.fakes:chain", seed=0)


@pytest.fixture(scope="module")
def agent(environment):
    return D4PG(CONFIG, specs.make_environment_spec(environment))


def acts(weights):
    """The action of a policy with these weights, in NumPy."""
    return numpy_step.act(weights, "", OBSERVATION.astype(np.float64)[None])[0]


def test_the_evaluator_takes_the_action_of_the_average_policy_without_noise(agent):
    weights, asked = Weights(agent).get_variables(["policy"]), set()

    class Source:
        def get_variables(self, names):
            asked.update(names)
            return {f"average_{path}": array for path, array in weights.items()}

    evaluator = agent.make_evaluator(Source())
    for _ in range(3):
        action = evaluator.select_action(OBSERVATION)
        np.testing.assert_allclose(action, acts(weights), atol=1e-6)
    assert asked == {"average_policy"}


def test_the_actor_adds_noise_of_the_configured_size(agent):
    source = Weights(agent)
    context = ExplorationContext(
        np.random.default_rng(1), environment_steps=lambda: CONFIG.exploration_random_steps
    )
    actor = agent.make_actor(source, [None], [context])
    draws = np.array([actor.select_actions([OBSERVATION])[0][0] for _ in range(1000)])
    assert draws.dtype == np.float32 and np.abs(draws).max() <= 1
    expected = acts(source.get_variables(["policy"]))[0]
    assert draws.mean() == pytest.approx(expected, abs=5 * SIGMA / math.sqrt(1000))
    assert draws.std() == pytest.approx(SIGMA, rel=0.1)


def test_a_new_row_has_the_highest_priority_of_a_critic_that_knows_nothing(agent):
    """KL(target || critic) is greatest if all of the target lies on the farthest of 21 atoms."""
    server = reverb.Server(agent.make_tables(num_replicas=1))
    client = reverb.Client(f"localhost:{server.port}")
    adder = agent.make_adder(client, print)
    environment = environments.make("environments.fakes:chain", seed=0)
    timestep = environment.reset()
    adder.add_first(timestep)
    while not timestep.last():
        timestep = environment.step(np.zeros(1, np.float32))
        adder.add(np.zeros(1, np.float32), timestep)
    adder.finish(60.0)
    samples = list(client.sample(TABLE, num_samples=20, emit_timesteps=False))
    priorities = [np.ravel(sample.info.priority)[0] for sample in samples]
    # From atom to atom the logits fall by 0.2; the farthest one is 20 atoms from a return of 0.
    expected = 4.0 + math.log(sum(math.exp(-0.2 * atom) for atom in range(21)))
    np.testing.assert_allclose(priorities, expected, rtol=1e-6)
    server.stop()
    uniform = D4PG(dataclasses.replace(CONFIG, critic_prior="uniform"), agent.environment_spec)
    assert uniform.initial_priority == pytest.approx(math.log(21))
    for low, high in ((7500.0, 7600.0), (-10000.0, -9900.0)):  # 0 is many atoms away.
        config = dataclasses.replace(CONFIG, value_min=low, value_max=high)
        far = D4PG(config, agent.environment_spec)
        assert far.initial_priority == pytest.approx(expected)
        assert (
            np.isfinite(far.value_range.prior_logits()).all()
            and far.value_range.prior_logits().max() == 0
        )


def test_the_importance_exponent_ends_its_growth_with_the_run(environment):
    """The schedule spans the run's learner steps; sampling starts with the 9th transition."""
    seen = []

    class Recorded(D4PG):
        def make_module(self, *args, **kwargs):
            seen.extend([*args, *kwargs.values()][1:])
            return super().make_module(*args, **kwargs)

    agent = Recorded(CONFIG, specs.make_environment_spec(environment))
    total_steps = agent.learner_steps(600)
    learner = agent.make_learner(rr.make("single_device"), ["localhost:1"], total_steps)
    assert seen == [total_steps] == [(600 - 8) * 10 / 4]
    learner.close()


def test_the_value_range_follows_from_rewards_and_discount():
    agent = D4PG(D4PGConfig(discount=0.9, num_atoms=11), make_spec())
    np.testing.assert_allclose(agent.value_range.atoms(), np.linspace(0, 10, 11), rtol=1e-6)
    agent = D4PG(D4PGConfig(discount=0.9, num_atoms=3, value_min=-2.0), make_spec())
    np.testing.assert_allclose(agent.value_range.atoms(), [-2, 4, 10], rtol=1e-6)
    penalties = make_spec(rewards=specs.BoundedArray((), np.float32, -0.5, 1.0))
    agent = D4PG(D4PGConfig(discount=0.9, num_atoms=4), penalties)
    np.testing.assert_allclose(agent.value_range.atoms(), [-5, 0, 5, 10], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (D4PGConfig(), 9.0),
        (PAPER, 0.0),
        (D4PGConfig(critic_prior="uniform"), 50.0),
        (D4PGConfig(value_min=-300.0, value_max=0.0), -30.0),
    ],
)
def test_what_a_new_critic_expects(config, expected):
    """The range of returns is [0, 100] here, and [-150, 150] in the paper's reference."""
    agent = D4PG(config, make_spec())
    critic = agent.make_module(rr.make("single_device"), total_steps=1).online.critic
    random = np.random.default_rng(0)
    state = random.normal(size=(64, fixed_samples.OBSERVATION)).astype(np.float32)
    action = random.uniform(-1, 1, (64, fixed_samples.ACTION)).astype(np.float32)
    q = tf.linalg.matvec(tf.nn.softmax(critic(state, action)), agent.value_range.atoms())
    np.testing.assert_allclose(q, np.full(64, expected), atol=6)


UNBOUNDED = specs.Array((), np.float32)


@pytest.mark.parametrize(
    ("config", "rewards", "follows"),
    [
        ({}, UNBOUNDED, True),
        ({"value_max": 3.0}, UNBOUNDED, True),
        ({"value_min": 0.0, "value_max": 3.0}, UNBOUNDED, False),
        ({}, specs.BoundedArray((), np.float32, 0.0, np.finfo(np.float32).max), True),
        ({}, specs.BoundedArray((), np.float32, 0.0, 1.0), False),
        ({"value_scale": "returns"}, specs.BoundedArray((), np.float32, 0.0, 1.0), True),
    ],
)
def test_where_no_bounds_are_known_the_atoms_follow_the_returns(config, rewards, follows):
    agent = D4PG(D4PGConfig(**config), make_spec(rewards=rewards))
    assert agent.follows_returns == follows
    assert (agent.value_range.atoms()[[0, 25, 50]].tolist() == [-5, 0, 5]) == follows


def test_a_range_without_returns_is_refused():
    with pytest.raises(ConfigError, match="expected less than the highest return"):
        D4PG(D4PGConfig(value_min=200.0), make_spec())  # The highest is 100.
    with pytest.raises(ConfigError, match="expected less than the highest return"):
        D4PG(D4PGConfig(), make_spec(rewards=specs.BoundedArray((), np.float32, 0.0, 0.0)))
    with pytest.raises(ConfigError, match="51 atoms differ in float32, got 1000000.0 to 1000001.0"):
        D4PG(D4PGConfig(value_min=1e6, value_max=1e6 + 1), make_spec())


def test_a_trained_encoder_has_a_target_of_its_own():
    config = PixelD4PGConfig(discount=0.97, policy_layers=(6,), critic_layers=(6,), feature_size=4)
    frames = specs.BoundedArray((24, 24, 3), np.uint8, 0, 255)
    spec = make_spec()._replace(observations=frames)
    module = D4PG(config, spec).make_module(rr.make("single_device"), total_steps=1)
    online, target = (
        {v.ref() for v in networks.encoder.trainable_variables}
        for networks in (module.online, module.target)
    )
    assert online and target and not online & target


@pytest.mark.parametrize("make", ["make_exploring_policy", "make_evaluation_policy"])
def test_networks_are_drawn_after_those_of_the_learner(make, monkeypatch):
    """In a run of threads, all nodes draw from one stream of random numbers."""
    agent, order = D4PG(CONFIG, make_spec()), []
    make_networks = agent.make_acting_networks
    monkeypatch.setattr(
        agent, "make_acting_networks", lambda: order.append("drawn") or make_networks()
    )

    class Source:
        def get_variables(self, names):
            order.append("the learner has drawn")
            return {}

    getattr(agent, make)(Source())
    assert order == ["the learner has drawn", "drawn"]


def test_a_replay_in_the_same_process_feeds_the_learner_and_gets_its_priorities(tmp_path):
    """The replay of `--deterministic` runs."""
    agent = D4PG(CONFIG, make_spec())
    (table,) = agent.make_tables(num_replicas=1)
    replay = LocalReplay(table.info, seed=1)
    for row in np.random.default_rng(0).normal(size=(10, agent.layout.width)).astype(np.float32):
        replay.insert(row, priority=1e9)
    learner = agent.make_local_learner(rr.make("single_device"), replay, 100)
    replay.feed()
    learner.step()
    assert learner.num_steps == 1
    replay.save(tmp_path)
    weights = np.load(tmp_path / "weights.npy")
    assert 1 <= np.sum(weights < 1e5) <= CONFIG.global_batch_size < len(weights)
    learner.close()

    class WithExtras(D4PG):
        extras_spec = specs.Array((), np.float32, "log_prob")

    with pytest.raises(ConfigError, match="--deterministic: expected an agent without extras"):
        WithExtras(CONFIG, make_spec()).make_local_learner(learner, replay, 100)


class DoubledD4PG(D4PG):
    """Doubles its losses."""

    def make_critic_loss(self):
        loss = super().make_critic_loss()

        def doubled(*arguments):
            losses, targets = loss(*arguments)
            return 2 * losses, targets

        return doubled


def test_a_variation_has_its_own_critic_loss():
    sample = tree.map_structure(tf.constant, fixed_samples.make_samples(8, 50.0, 90.0))
    found = []
    for agent_class in (D4PG, DoubledD4PG):
        tf.random.set_seed(0)
        module = agent_class(CONFIG, make_spec()).make_module(rr.make("single_device"), 100)
        found.append(float(module.step_fn(sample).metrics["critic_loss"]))
    assert found[0] > 0
    np.testing.assert_allclose(found[1], 2 * found[0], 1e-5)
