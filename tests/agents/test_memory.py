"""Agents with a memory: the core, the steps of a window, the learners, and whole runs."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf
from acme import specs, types

import rl_replicator as rr
from agents import d4pg, dqn, impala, load_policy
from agents.config import CoreConfig, MemoryConfig
from agents.d4pg.config import D4PGConfig
from agents.dqn.config import DQNConfig, PixelDQNConfig
from agents.impala.config import ImpalaConfig
from agents.learning.steps import WindowSteps
from agents.learning.value_scale import ReturnScale
from agents.learning.weights import copy_variables
from agents.networks import actor_critic
from agents.networks.encoders import RunningNormalization
from agents.networks.recurrent import RecurrentEncoder
from agents.nodes.run_plan import EvaluationSchedule
from agents.replay.config import ReplayConfig
from agents.replay.sequences import Sequence
from agents.replay.transitions import RETURNS, Sample
from agents.runs.options import AgentOptions
from rl_replicator.runs.metrics import read_metrics
from tests.agents import actor_critic_reference as reference
from tests.agents.fixed_samples import make_spec
from tests.agents.memory_reference import unroll
from tests.environments.memory_fakes import LENGTH

pytestmark = pytest.mark.usefixtures("plain_graphs")
# By import path, which needs no registration.
COMMANDS = {
    name: dataclasses.replace(command, name=f"agents.{name}:command")
    for name, command in (("dqn", dqn.command), ("d4pg", d4pg.command), ("impala", impala.command))
}
BATCH, UNITS, BURN_IN, STEPS, N_STEP, GAMMA = 4, 3, 2, 3, 2, 0.9
L = BURN_IN + STEPS + N_STEP
MEMORY = MemoryConfig("lstm", UNITS, STEPS, 1, BURN_IN)
# Valid steps of each window: a whole one, the start of an episode, and two of which one ends.
VALID = np.array(
    [[1] * L, [0] * 2 + [1] * 5, [1] * 3 + [0] * 4, [0] * 2 + [1] * 3 + [0] * 2], np.float32
)


def spec_of(is_discrete=True, observation=2):
    actions = specs.DiscreteArray(2, np.int32) if is_discrete else 2
    return make_spec(observation, actions, specs.BoundedArray((), np.float32, -1.0, 2.0))


def make_windows(seed=0, valid=VALID, is_discrete=True, observation=None):
    """A `Sample` of windows; the state in front of an episode is 0."""
    random = np.random.default_rng(seed)
    valid = np.asarray(valid, np.float32)
    actions = random.uniform(-1, 1, (*valid.shape, 2)).astype(np.float32)
    if is_discrete:
        actions = random.integers(0, 2, valid.shape, dtype=np.int32)
    mask = valid.astype(actions.dtype)
    state = random.normal(size=(len(valid), 2 * UNITS)).astype(np.float32)
    drawn = random.normal(size=(*valid.shape, 2)).astype(np.float32)
    window = Sequence(
        drawn if observation is None else observation,
        actions * mask.reshape([*mask.shape, *[1] * (actions.ndim - 2)]),
        (random.uniform(-1, 2, valid.shape) * valid).astype(np.float32),
        (random.choice([GAMMA, 0.5], valid.shape) * valid).astype(np.float32),
        valid,
        {"state": state * valid[:, :1], RETURNS: valid[:, 0]},
    )
    probabilities = random.uniform(1e-3, 1e-2, len(valid))
    return Sample(
        np.arange(len(valid), dtype=np.uint64), probabilities, np.full(len(valid), 500), window
    )


def window_features(weights, name, window, frozen=None):
    """Those after the burn-in, whose last state may be given: no gradient reaches it then."""
    if frozen is None:
        frozen = burnt_in(weights, name, window)
    ones = np.ones([len(frozen), STEPS + N_STEP])
    return unroll(weights, name, window.observation[:, BURN_IN:], frozen, ones)[0]


def burnt_in(weights, name, window):
    before, kept = window.observation[:, :BURN_IN], window.valid[:, :BURN_IN]
    return unroll(weights, name, before, window.extras["state"], kept)[1]


def weights_of(networks, seed=None):
    """Weights by path; random ones if there is a seed."""
    if seed is not None:
        random = np.random.default_rng(seed)
        for network in networks.values():
            for variable in network.trainable_variables:
                variable.assign(0.6 * random.standard_normal(variable.shape).astype("f"))
    arrays = copy_variables(networks, [n for n, network in networks.items() if network.variables])
    return {path: array.astype(np.float64) for path, array in arrays.items()}


@pytest.mark.parametrize("core", ["lstm", "gru"])
def test_the_core_is_that_of_numpy_in_windows_and_step_by_step(core):
    memory = dataclasses.replace(MEMORY, core=core)
    encoder = RecurrentEncoder(RunningNormalization, memory, "encoder")
    window = make_windows().transition
    state = window.extras["state"][:, : encoder.state_size]
    encoder(window.observation[:, 0])
    weights = weights_of({"encoder": encoder}, seed=1)
    scale = np.sqrt(1 + 1e-4)  # Of a new normalization.
    want, last = unroll(weights, "encoder", window.observation / scale, state, window.valid)
    got, end = encoder.unroll(*map(tf.constant, (window.observation, state, window.valid)))
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(end, last, rtol=1e-4, atol=1e-5)
    kept = tf.constant(state)
    for t in range(L):
        features, kept = encoder.step(window.observation[:, t], kept)
        np.testing.assert_allclose(features[0], want[0, t], rtol=1e-4, atol=1e-5)  # All valid.
    first, _ = encoder.step(window.observation[:, 0], tf.zeros_like(kept))
    np.testing.assert_array_equal(encoder(window.observation[:, 0]), first)


# The learner's step, in NumPy.


def places(window):
    """(window, step, R_n, discount, place to bootstrap from) of each valid step."""
    for b, valid in enumerate(window.valid):
        for t in range(BURN_IN, BURN_IN + STEPS):
            if valid[t]:
                total, factor, k = 0.0, 1.0, t
                while k < t + N_STEP and valid[k]:
                    total += factor * window.reward[b, k]
                    factor *= window.discount[b, k]
                    k += 1
                yield b, t, total, factor, k


class NumpyR2D2(reference.ActorCritic):
    """R2D2 with C51's loss, without two streams."""

    num_augmented = 1

    def __init__(self, config, atoms, weights):
        super().__init__(weights, all=config.critic_learning_rate)
        self.trained = ["encoder", "policy"]
        self._config, self._atoms = config, atoms.astype(np.float64)

    def step(self, probabilities, table_size, window):
        """Trains on a global batch; returns the new priorities and the metrics."""
        start, config = self.weights, self._config
        b, t, r, d, k = map(np.array, zip(*places(window), strict=True))
        frozen = burnt_in(start, "encoder", window)
        importance = self.importance(probabilities, table_size)
        rows = np.arange(len(b))

        def logits(weights, prefix, at):
            frozen_state = frozen if prefix == "" else None
            features = window_features(weights, f"{prefix}encoder", window, frozen_state)
            outputs = reference.mlp(weights, f"{prefix}policy", features[b, at - BURN_IN])
            return outputs.reshape(len(b), 2, -1)

        values = np.exp(reference.log_softmax(logits(start, "", k))) @ self._atoms
        best = logits(start, "target_", k)[rows, values.argmax(-1)]
        target = reference.project(r, d, np.exp(reference.log_softmax(best)), self._atoms)

        def losses(weights):
            chosen = logits(weights, "", t)[rows, window.action[b, t]]
            return -(target * reference.log_softmax(chosen)).sum(-1)

        def loss(weights):
            return (importance[b] * losses(weights)).sum() / (BATCH * STEPS)

        divergence = losses(start) + (target * np.log(np.where(target > 0, target, 1))).sum(-1)
        priorities = [
            0.9 * divergence[b == i].max() + 0.1 * divergence[b == i].mean() for i in range(BATCH)
        ]
        metrics = {"critic_loss": loss(start)}
        paths = reference.names(start, *self.trained)
        gradients = reference.gradient(loss, start, paths)
        self.train({"all": self.clip(gradients, config.max_gradient_norm)})
        self.steps += 1
        if self.steps % config.target_update_period == 0:
            self.weights = reference.update_targets(self.weights, 1.0)
        return priorities, metrics


def test_dqn_trains_on_windows_as_in_numpy():
    """Every variable, loss and priority, on two replicas."""
    config = DQNConfig(
        critic_layers=(4,),
        duelling=False,
        num_atoms=5,
        value_min=-4.0,
        value_max=6.0,
        critic_learning_rate=1e-2,
        n_step=N_STEP,
        target_update_period=2,
        max_gradient_norm=0.1,
        global_batch_size=BATCH,
        memory=MEMORY,
        replay=reference.REPLAY,
    )
    agent = COMMANDS["dqn"].make_agent(config, spec_of())
    reference.check_training(
        "multi_device:2",
        agent,
        lambda weights: NumpyR2D2(config, agent.value_range.atoms(), weights),
        lambda path, number: not path.startswith("target_") or number == 1,
        rtol=2e-3,
        atol=2e-4,
        samples=tf.nest.map_structure(
            lambda *x: np.concatenate(x), *[make_windows(seed) for seed in range(3)]
        ),
        least=1e-3,
    )


# Adam's first step has one size.
FIGURES = ("critic_loss", "q_mean", "policy_gradient_norm", "value_edge_mass_high")


def d4pg_after(config, spec, samples):
    """The weights of D4PG's networks before and after one step, and its figures."""
    agent = COMMANDS["d4pg"].make_agent(config, spec)
    module = agent.make_module(rr.make("single_device"), total_steps=100)
    networks = {name: getattr(module.online, name) for name in ("encoder", "policy", "critic")}
    start = weights_of(networks, seed=2)
    for copy, online in zip(module.target, module.online, strict=True):
        for a, b in zip(copy.variables, online.variables, strict=True):
            a.assign(b)
    output = module.step_fn(tf.nest.map_structure(tf.constant, samples))
    figures = [output.metrics[name] for name in FIGURES]
    return start, weights_of(networks), [*figures, *output.priorities.numpy()]


D4PG = D4PGConfig(
    policy_layers=(5,),
    critic_layers=(5,),
    num_atoms=7,
    n_step=N_STEP,
    global_batch_size=BATCH,
    policy_learning_rate=1e-2,
    critic_learning_rate=1e-2,
    max_gradient_norm=None,
    preactivation_penalty=0.5,
    memory=MEMORY,
)


def test_d4pg_trains_on_windows_as_on_transitions_between_their_features():
    samples = make_windows(valid=np.ones([BATCH, L]), is_discrete=False)
    window = samples.transition
    start, trained, figures = d4pg_after(D4PG, spec_of(is_discrete=False), samples)
    features = window_features(start, "encoder", window).astype(np.float32)
    b, t, r, d, k = map(np.array, zip(*places(window), strict=True))
    o_tm1, o_t = (features[b, at - BURN_IN] for at in (t, k))
    transitions = types.Transition(
        o_tm1, window.action[b, t], r.astype(np.float32), d.astype(np.float32), o_t
    )
    count = len(b)
    ones = np.ones(count)
    rows = Sample(np.arange(count, dtype=np.uint64), ones, ones.astype(int), transitions)
    config = dataclasses.replace(D4PG, memory=MemoryConfig(), global_batch_size=count)
    agent = COMMANDS["d4pg"].make_agent(config, spec_of(False, 2 * UNITS))
    module = agent.make_module(rr.make("single_device"), total_steps=100)
    for networks in (module.online, module.target):
        for name in ("policy", "critic"):
            paths = [path for path in start if path.startswith(f"{name}/")]
            for variable, path in zip(getattr(networks, name).variables, paths, strict=True):
                variable.assign(start[path])
    output = module.step_fn(tf.nest.map_structure(tf.constant, rows))
    want = [output.metrics[name] for name in FIGURES]
    of_steps = output.priorities.numpy().reshape(BATCH, STEPS)
    want += [*(0.9 * of_steps.max(1) + 0.1 * of_steps.mean(1))]
    np.testing.assert_allclose(figures, want, rtol=1e-4)
    pairs = {name: getattr(module.online, name) for name in ("policy", "critic")}
    for path, array in weights_of(pairs).items():
        np.testing.assert_allclose(trained[path], array, rtol=1e-3, atol=1e-4, err_msg=path)
        assert np.abs(array - start[path]).max() > 1e-3
    assert np.abs(trained["encoder/core/w_h"] - start["encoder/core/w_h"]).max() > 1e-3


def test_what_is_not_valid_trains_nothing(monkeypatch):
    # Otherwise the small inputs of tanh of new networks are not penalised.
    monkeypatch.setattr(actor_critic, "FREE_PREACTIVATION", 0.0)
    samples = make_windows(is_discrete=False)
    window, changed = samples.transition, samples.transition.observation.copy()
    changed[window.valid == 0] = 9.0
    ends = [(2, 3), (3, 5)]  # The last observations of episodes, to bootstrap from.
    for end in ends:
        changed[end] = window.observation[end]
    found = []
    for observation in (window.observation, changed, changed + 1.0):
        other = make_windows(is_discrete=False, observation=observation)
        found.append(d4pg_after(D4PG, spec_of(is_discrete=False), other))
    (_, expected, figures), (_, same, others), (*_, different) = found
    for path, array in expected.items():
        np.testing.assert_allclose(same[path], array, rtol=1e-5, atol=1e-6, err_msg=path)
    np.testing.assert_allclose(others, figures, rtol=1e-5)
    assert np.abs(np.subtract(different, figures)).min() > 1e-4


def test_the_scale_is_that_of_the_discounted_rewards_up_to_the_end_of_each_return():
    """Those of the first step alone, or up to each step, may lack a sparse reward."""
    sample = make_windows()
    window = sample.transition
    steps = WindowSteps(
        tf.nest.map_structure(tf.constant, sample), lambda _: None, lambda x, _: x, MEMORY, N_STEP
    )
    totals = [window.extras[RETURNS]]
    for t in range(1, L):
        totals.append(window.reward[:, t] + window.discount[:, t - 1] * totals[-1])
    known = np.array([totals[end - 1][b] for b, *_, end in places(window)])
    np.testing.assert_allclose(steps.extras[steps.valid > 0], known, rtol=1e-6)
    assert len(known) < BATCH * STEPS
    scale = ReturnScale()(steps.extras, steps.valid)
    np.testing.assert_allclose(scale, max(known.std(), np.abs(known).max() / 5), rtol=1e-5)
    x = np.arange(BATCH * STEPS, dtype=np.float32)
    np.testing.assert_allclose(steps.mean(x), x[steps.valid.numpy() > 0].mean())


def test_agents_from_pixels_and_vectors_train_on_windows():
    """The first layers change by gradients through the core."""
    changes = {"discount": 0.9, "precision": "float32", "critic_layers": (4,), "n_step": N_STEP}
    config = PixelDQNConfig(memory=MEMORY, global_batch_size=BATCH, feature_size=4, **changes)
    spec = spec_of(observation=specs.BoundedArray((24, 24, 3), np.uint8, 0, 255))
    observations = {"pixels": spec.observations, "vector": specs.Array((3,), np.float32)}
    agent = COMMANDS["dqn"].make_agent(
        dataclasses.replace(config, encoder="small"), spec._replace(observations=observations)
    )
    frames = np.random.default_rng(0).integers(0, 256, (BATCH, L, 3, 24, 24, 3), dtype=np.uint8)
    vectors = np.random.default_rng(1).normal(size=(BATCH, L, 3)).astype(np.float32)
    windows = make_windows(observation={"pixels": frames, "vector": vectors})
    module = agent.make_module(rr.make("single_device"), total_steps=100)
    before = [v.numpy() for v in module.online.encoder.trainable_variables]
    module.step_fn(tf.nest.map_structure(tf.constant, windows))
    for old, new in zip(before, module.online.encoder.trainable_variables, strict=True):
        assert np.abs(old - new.numpy()).max() > 1e-5, new.name


def test_values_are_rescaled_as_in_r2d2():
    """h(3) = 2 - 1 + 0.003; the target of a return R + d x with x = 3."""
    agent = COMMANDS["dqn"].make_agent(
        DQNConfig(critic_loss="squared", value_rescaling=True), spec_of()
    )
    values, h_3 = agent.make_values(), tf.constant([[1.003]])
    np.testing.assert_allclose(values.mean(h_3), [3.0], rtol=1e-5)
    np.testing.assert_allclose(values.mean(-h_3), [-3.0], rtol=1e-5)
    loss, priorities = values.td_loss(tf.zeros([1, 1]), np.float32([5.0]), np.float32([1.0]), h_3)
    np.testing.assert_allclose(priorities, [3 - 1 + 0.008], rtol=1e-5)
    np.testing.assert_allclose(loss, [2.008**2 / 2], rtol=1e-5)


# Whole runs.


DQN = DQNConfig(
    critic_layers=(32,),
    discount=0.5,
    n_step=1,
    global_batch_size=32,
    steps_per_call=10,
    critic_learning_rate=3e-3,
    exploration_random_steps=200,
    target_update_period=20,
    memory=MemoryConfig("lstm", 16, trained_steps=5, overlap=0, burn_in=2),
    replay=ReplayConfig(min_size=200, samples_per_insert=64.0),
)
IMPALA = ImpalaConfig(
    policy_layers=(32,),
    critic_layers=(32,),
    policy_learning_rate=3e-3,
    discount=0.5,
    unroll_length=10,
    memory=CoreConfig("lstm", 16),
)


def run(name, agent, run_dir, steps):
    """Trains deterministically; returns the returns of evaluations."""
    options = AgentOptions(
        env="tests.environments.memory_fakes:make_discrete_recall",
        steps=steps,
        run_dir=run_dir,
        agent=agent,
        video=False,
        deterministic=True,
        evaluation=EvaluationSchedule(every=100_000, episodes=2, last_episodes=20),
    )
    assert COMMANDS[name].train(options) == 0
    return read_metrics(run_dir, "evaluator")["episode_return"]


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("name", "agent", "steps"),
    [("dqn", DQN, 1200), ("impala", IMPALA, 3000)],
    ids=["dqn", "impala"],
)
def test_a_cue_at_the_start_is_remembered(name, agent, steps, tmp_path):
    """The highest return is 4, that without a memory 2."""
    assert run(name, agent, tmp_path / "run", steps)[-1] / (LENGTH - 1) > 0.9


@pytest.mark.timeout(300)
def test_a_continued_run_goes_on_bit_for_bit(tmp_path):
    """It stops within an episode, whose states were made by several sets of weights."""
    agent = dataclasses.replace(
        DQN,
        exploration_random_steps=20,
        memory=MemoryConfig("gru", 16, trained_steps=2, overlap=1, burn_in=1),
        replay=ReplayConfig(min_size=60, samples_per_insert=64.0),
    )  # Stored states matter.
    found = []
    for folder, ends in (("whole", [150]), ("part", [103, 150])):
        for end in ends:
            run("dqn", agent, tmp_path / folder, end)
        found.append(load_policy(tmp_path / folder).weights.get_variables(["encoder", "policy"]))
    for path, array in found[0].items():
        np.testing.assert_array_equal(array, found[1][path], err_msg=path)
