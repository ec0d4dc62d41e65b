"""The agent's factories: how it acts, what a new row and a new critic say, atoms and discounts."""

import dataclasses
import math

import numpy as np
import pytest
import tensorflow as tf
import tree
from acme import specs

import environments
import rl_replicator as rr
from agents.agent import ExplorationContext
from agents.config import resolved
from agents.d4pg.agent import D4PG
from agents.d4pg.config import D4PGConfig, PixelD4PGConfig
from agents.replay.config import ReplayConfig
from agents.replay.local import LocalReplay
from rl_replicator.errors import ConfigError
from tests.agents import fixed_samples
from tests.agents.d4pg import numpy_step
from tests.agents.fixed_samples import Weights, make_spec

SIGMA, CHAIN = 0.25, "environments.fakes:chain"
CONFIG = D4PGConfig(
    policy_layers=(6,),
    critic_layers=(6,),
    num_atoms=21,
    value_min=0.0,
    global_batch_size=4,
    steps_per_call=1,
    exploration_sigma=SIGMA,
    target_update_period=1000,
    replay=ReplayConfig(
        priority_exponent=0.6, min_size=8, samples_per_insert=10.0, transitions_per_item=1
    ),
)
OBSERVATION = np.array([0.3, -0.8], np.float32)


@pytest.fixture(scope="module")
def agent():
    return D4PG(CONFIG, specs.make_environment_spec(environments.make(CHAIN, seed=0)))


def test_the_actor_adds_noise_to_what_the_evaluator_takes_from_the_average(agent):
    source, asked = Weights(agent), set()
    weights = source.get_variables(["policy"])

    class Average:
        def get_variables(self, names):
            asked.update(names)
            return {f"average_{path}": array for path, array in weights.items()}

    evaluator = agent.make_evaluator(Average())
    expected = numpy_step.act(weights, "", OBSERVATION.astype(np.float64)[None])[0]
    for _ in range(3):
        np.testing.assert_allclose(evaluator.select_action(OBSERVATION), expected, atol=1e-6)
    assert asked == {"average_policy"}
    context = ExplorationContext(
        np.random.default_rng(1), environment_steps=lambda: CONFIG.exploration_random_steps
    )
    actor = agent.make_actor(source, [None], [context])
    draws = np.array([actor.select_actions([OBSERVATION])[0][0] for _ in range(1000)])
    assert draws.dtype == np.float32 and np.abs(draws).max() <= 1
    assert draws.mean() == pytest.approx(expected[0], abs=5 * SIGMA / math.sqrt(1000))
    assert draws.std() == pytest.approx(SIGMA, rel=0.1)


def test_a_replay_in_the_same_process_feeds_the_learner_and_gets_its_priorities(agent, tmp_path):
    """The replay of `--deterministic` runs. New rows have the highest priority there is.

    KL(target || critic) is greatest if all of the target lies on the farthest of 21 atoms. From
    atom to atom the logits fall by 0.2; the farthest one is 20 atoms from a return of 0.
    """
    highest = 4.0 + math.log(sum(math.exp(-0.2 * atom) for atom in range(21)))
    (table,) = agent.make_tables(num_replicas=1)
    replay = LocalReplay(table.info, seed=1)
    adder, environment = agent.make_adder(replay, print), environments.make(CHAIN, seed=0)
    timestep = environment.reset()
    adder.add_first(timestep)
    while not timestep.last():
        timestep = environment.step(np.zeros(1, np.float32))
        adder.add(np.zeros(1, np.float32), timestep)
    seen = []

    class Recorded(D4PG):
        def make_module(self, replicator, total_steps):
            seen.append(total_steps)
            return super().make_module(replicator, total_steps)

    recorded = Recorded(CONFIG, agent.environment_spec)
    total_steps = recorded.learner_steps(600)
    assert total_steps == (600 - 8) * 10 / 4  # Sampling starts with the 9th transition.
    learner = recorded.make_local_learner(rr.make("single_device"), replay, total_steps)
    assert seen == [total_steps]
    replay.save(tmp_path)
    before = np.load(tmp_path / "weights.npy")
    np.testing.assert_allclose(before, np.full(10, highest**0.6), rtol=1e-6)
    replay.feed()
    learner.step()
    assert learner.num_steps == 1
    replay.save(tmp_path)
    changed = np.load(tmp_path / "weights.npy") < 0.99 * before
    assert 1 <= changed.sum() <= CONFIG.global_batch_size
    learner.close()

    class WithExtras(D4PG):
        extras_spec = specs.Array((), np.float32, "log_prob")

    with pytest.raises(ConfigError, match="--deterministic: expected an agent without extras"):
        WithExtras(CONFIG, make_spec()).make_local_learner(learner, replay, 100)


def test_the_highest_priority_follows_from_the_prior():
    spec = make_spec()
    uniform = D4PG(dataclasses.replace(CONFIG, critic_prior="uniform"), spec)
    assert uniform.initial_priority == pytest.approx(math.log(21))
    farthest = 4.0 + math.log(sum(math.exp(-0.2 * atom) for atom in range(21)))
    for low, high in ((7500.0, 7600.0), (-10000.0, -9900.0)):  # 0 is many atoms away.
        far = D4PG(dataclasses.replace(CONFIG, value_min=low, value_max=high), spec)
        assert far.initial_priority == pytest.approx(farthest)
        logits = far.value_range.prior_logits()
        assert np.isfinite(logits).all() and logits.max() == 0


UNBOUNDED = specs.Array((), np.float32)
LARGEST = float(np.finfo(np.float32).max)


@pytest.mark.parametrize(
    ("config", "rewards", "support"),
    [
        ({"discount": 0.9, "num_atoms": 11}, (0, 1), (0, 10)),
        ({"discount": 0.9, "value_min": -2.0}, (0, 1), (-2, 10)),
        # The last step's return is one reward, outside of the sums over endless episodes.
        ({}, (-2, -1), (-200, 0)),
        ({}, (0.5, 1), (0, 100)),
        ({}, (-1, 2), (-100, 200)),
        ({"value_min": 0.0, "value_max": 3.0}, None, (0, 3)),
        ({}, (0, LARGEST), "returns"),
        ({"value_scale": "returns"}, (0, 1), "returns"),
    ],
)
def test_the_atoms_follow_from_rewards_and_discount_or_from_the_returns(config, rewards, support):
    bounded = None if rewards is None else specs.BoundedArray((), np.float32, *rewards)
    agent = D4PG(D4PGConfig(**config), make_spec(rewards=bounded or UNBOUNDED))
    assert agent.follows_returns == (support == "returns")
    low, high = (-5, 5) if support == "returns" else support
    expected = np.linspace(low, high, agent.config.num_atoms)
    np.testing.assert_allclose(agent.value_range.atoms(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("config", "highest_reward", "message"),
    [
        ({"value_min": 200.0}, 1.0, "expected less than the highest return"),  # 100.
        ({}, 0.0, "expected less than the highest return"),
        ({"value_min": -1.0}, np.inf, "expected both --agent.value-min and --agent.value-max"),
        ({"value_min": 1e6, "value_max": 1e6 + 1}, 1.0, "got 1000000.0 to 1000001.0; pass"),
    ],
)
def test_a_range_without_returns_is_refused(config, highest_reward, message):
    rewards = specs.BoundedArray((), np.float32, 0.0, highest_reward)
    with pytest.raises(ConfigError, match=message):
        D4PG(D4PGConfig(**config), make_spec(rewards=rewards))


@pytest.mark.parametrize(
    ("config", "expected"),
    [(D4PGConfig(), 9.0), (D4PGConfig(value_min=-300.0, value_max=0.0), -30.0)],
)
def test_what_a_new_critic_expects(config, expected):
    """The range of returns is [0, 100] here."""
    agent = D4PG(config, make_spec())
    critic = agent.make_module(rr.make("single_device"), total_steps=1).online.critic
    samples = fixed_samples.make_samples(64).transition
    logits = critic(samples.observation, samples.action)
    q = tf.linalg.matvec(tf.nn.softmax(logits), agent.value_range.atoms())
    np.testing.assert_allclose(q, np.full(64, expected), atol=6)


@pytest.mark.parametrize("make", ["make_exploring_policy", "make_evaluation_policy"])
def test_networks_are_drawn_after_those_of_the_learner(make):
    """In a run of threads, all nodes draw from one stream of random numbers."""
    order = []

    class Recorded(D4PG):
        def make_acting_networks(self):
            order.append("drawn")
            return super().make_acting_networks()

        def get_variables(self, names):
            order.append("the learner has drawn")
            return {}

    agent = Recorded(CONFIG, make_spec())
    getattr(agent, make)(agent)
    assert order == ["the learner has drawn", "drawn"]


def test_the_discount_from_pixels_is_that_of_as_many_simulator_steps():
    open_config = PixelD4PGConfig()
    found = {repeat: resolved(open_config, {}, repeat).discount for repeat in (1, 2, 4, 8)}
    assert found[8] == pytest.approx(0.97, abs=1e-12)
    for repeat, discount in found.items():
        assert discount == pytest.approx(found[1] ** repeat, abs=1e-12)
    assert resolved(PixelD4PGConfig(discount=0.9), {}, 4).discount == 0.9
    assert resolved(D4PGConfig(), {}, 4) == D4PGConfig()
    # A run keeps what it began with, and is refused later if that is not what was asked for.
    assert resolved(open_config, {}, 8).precision in ("float32", "bfloat16")
    for precision in ("float32", "bfloat16"):
        stored = {"precision": precision, "discount": 0.9}
        kept = resolved(open_config, stored, 8)
        assert (kept.precision, kept.discount) == (precision, 0.9)
        asked = PixelD4PGConfig(precision="float32")
        assert resolved(asked, stored, 8).precision == "float32"
    spec = make_spec(specs.BoundedArray((64, 64, 3), np.uint8, 0, 255))
    assert D4PG(resolved(open_config, {}, 8), spec).discount == found[8]
    with pytest.raises(ConfigError, match='expected a number, got "auto", which a run replaces'):
        D4PG(open_config, spec)


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
