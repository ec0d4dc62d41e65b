"""Learner steps on a stored batch, against the same maths in a plain `tf.function`.

    python -m bench.learner

D4PG from state: Acme's networks (256-256-256 and 512-512-256) and settings, batch 256, float32,
uniform replay. "Acme's maths" is what its D4PG learner for TensorFlow computes, reimplemented here,
because its losses and networks cannot be imported with this stack: the categorical projection with
its triangular kernel, one persistent tape, clipped gradients, Sonnet's Adam, one step per call.
"bfloat16" is `--agent.precision bfloat16`.
"""

import dataclasses
import itertools
from collections.abc import Callable

import numpy as np
import sonnet as snt
import tensorflow as tf
from acme import specs, types

import rl_replicator as rr
from agents.d4pg.agent import D4PG
from agents.d4pg.config import D4PGConfig
from agents.learning.replay_learner import ReplayLearner
from agents.off_policy_agent import OffPolicyAgent
from agents.replay.config import ReplayConfig
from agents.replay.transitions import Sample
from bench import harness

OBSERVATION, ACTION, BATCH = 17, 6, 256  # cheetah:run.
STEPS = 32  # Per sample; --steps overrides it.
VALUE, ATOMS = 150.0, 51
TARGET_PERIOD = 100
SPEC = specs.EnvironmentSpec(
    observations=specs.Array((OBSERVATION,), np.float32),
    actions=specs.BoundedArray((ACTION,), np.float32, -1.0, 1.0),
    rewards=specs.BoundedArray((), np.float32, 0.0, 1.0),
    discounts=specs.BoundedArray((), np.float32, 0.0, 1.0),
)
UNIFORM = ReplayConfig(priority_exponent=0.0)
D4PG_CONFIG = D4PGConfig(
    policy_layers=(256, 256, 256),
    critic_layers=(512, 512, 256),
    num_atoms=ATOMS,
    value_min=-VALUE,
    value_max=VALUE,
    policy_learning_rate=1e-4,
    critic_learning_rate=1e-4,
    target_update_period=TARGET_PERIOD,
    global_batch_size=BATCH,
    replay=UNIFORM,
)


def make_sample() -> Sample:
    """Returns a batch of random transitions."""
    random = np.random.default_rng(0)
    first, last = random.standard_normal((2, BATCH, OBSERVATION), np.float32)
    return Sample(
        keys=tf.range(BATCH, dtype=tf.int64),
        probabilities=tf.fill([BATCH], tf.constant(1e-3, tf.float64)),
        table_size=tf.fill([BATCH], tf.constant(1000, tf.int64)),
        transition=types.Transition(
            tf.constant(first),
            tf.constant(random.uniform(-1, 1, (BATCH, ACTION)), tf.float32),
            tf.constant(random.uniform(0, 5, BATCH), tf.float32),
            tf.fill([BATCH], np.float32(0.95)),
            tf.constant(last),
            (),
        ),
    )


def ours(
    agent: OffPolicyAgent, sample: Sample, steps_per_call: int, where: str = "single_device"
) -> Callable[[], object]:
    """Returns a function that makes one call of this project's learner."""
    replicator = rr.make(where)
    with replicator.scope():
        module = agent.make_module(replicator, 100_000)
    learner = ReplayLearner(
        module,
        replicator,
        lambda context: tf.data.Dataset.from_tensors(sample).repeat(),
        priorities=None,
        steps_per_call=steps_per_call,
        dtype=tf.as_dtype(agent.config.precision),
    )
    return learner._step


def in_bfloat16(agent: OffPolicyAgent) -> OffPolicyAgent:
    """Returns the agent with wide layers that compute in bfloat16."""
    config = dataclasses.replace(agent.config, precision="bfloat16")
    return type(agent)(config, agent.environment_spec)


def mlp(sizes: tuple[int, ...], outputs: int, scale: float) -> snt.Sequential:
    """Returns a LayerNorm MLP with a linear head."""
    init = snt.initializers.VarianceScaling(0.333, mode="fan_out", distribution="uniform")
    layers: list[Callable] = [snt.Linear(sizes[0], w_init=init), snt.LayerNorm(-1, True, True)]
    layers += [tf.tanh, snt.nets.MLP(sizes[1:], init, activation=tf.nn.elu, activate_final=True)]
    head = snt.Linear(outputs, w_init=snt.initializers.VarianceScaling(scale))
    return snt.Sequential([*layers, head])


def make_networks() -> tuple[
    snt.Module, Callable, tuple[tf.Variable, ...], tuple[tf.Variable, ...]
]:
    """Returns built networks, and the variables of the policy and of the critic."""
    policy = snt.Sequential([mlp(D4PG_CONFIG.policy_layers, ACTION, 1e-4), tf.tanh])
    critic = mlp(D4PG_CONFIG.critic_layers, ATOMS, 0.01)
    policy(tf.zeros([1, OBSERVATION]))
    critic(tf.zeros([1, OBSERVATION + ACTION]))

    def call(observation: tf.Tensor, action: tf.Tensor) -> tf.Tensor:
        return critic(tf.concat([observation, action], axis=-1))

    return policy, call, policy.trainable_variables, critic.trainable_variables


def acme_d4pg(sample: Sample) -> Callable[[], object]:
    """Returns a function that takes one step of D4PG as Acme's learner computes it."""
    config = D4PG_CONFIG
    policy, critic, policy_variables, critic_variables = make_networks()
    target_policy, target_critic, *targets = make_networks()
    policy_optimizer = snt.optimizers.Adam(config.policy_learning_rate)
    critic_optimizer = snt.optimizers.Adam(config.critic_learning_rate)
    policy_optimizer._initialize(policy_variables)
    critic_optimizer._initialize(critic_variables)
    support = tf.linspace(-VALUE, VALUE, ATOMS)
    spacing = 2 * VALUE / (ATOMS - 1)
    num_steps = tf.Variable(0)
    iterator = iter(tf.data.Dataset.from_tensors(sample).repeat())

    def project(reward: tf.Tensor, discount: tf.Tensor, probabilities: tf.Tensor) -> tf.Tensor:
        moved = tf.clip_by_value(reward[:, None] + discount[:, None] * support, -VALUE, VALUE)
        distance = tf.abs(moved[:, None, :] - support[None, :, None]) / spacing  # [B, Z, Z]
        kernel = tf.clip_by_value(1.0 - distance, 0.0, 1.0)
        return tf.reduce_sum(kernel * probabilities[:, None, :], axis=-1)

    def update_targets() -> tf.Tensor:
        for source, target in zip(
            (*policy_variables, *critic_variables), itertools.chain(*targets), strict=True
        ):
            target.assign(source)
        return tf.constant(True)

    @tf.function(autograph=False)
    def step() -> dict[str, tf.Tensor]:
        is_due = tf.equal(num_steps % TARGET_PERIOD, 0)
        tf.cond(is_due, update_targets, lambda: tf.constant(False))
        num_steps.assign_add(1)
        o_tm1, a_tm1, r_t, d_t, o_t, _ = next(iterator).transition
        with tf.GradientTape(persistent=True) as tape:
            z_t = tf.nn.softmax(target_critic(o_t, target_policy(o_t)))
            target = tf.stop_gradient(project(r_t, d_t, z_t))
            critic_loss = tf.reduce_mean(
                tf.nn.softmax_cross_entropy_with_logits(target, critic(o_tm1, a_tm1))
            )
            action = policy(o_t)
            q = tf.reduce_sum(tf.nn.softmax(critic(o_t, action)) * support, axis=-1)
            with tape.stop_recording():
                dq_da = tf.clip_by_norm(tape.gradient(q, action), 1.0, axes=-1)
            surrogate = tf.stop_gradient(action + dq_da)
            policy_loss = tf.reduce_mean(
                0.5 * tf.reduce_sum(tf.square(surrogate - action), axis=-1)
            )
        policy_gradients = tape.gradient(policy_loss, policy_variables)
        critic_gradients = tape.gradient(critic_loss, critic_variables)
        policy_gradients, _ = tf.clip_by_global_norm(policy_gradients, 40.0)
        critic_gradients, _ = tf.clip_by_global_norm(critic_gradients, 40.0)
        policy_optimizer.apply(policy_gradients, policy_variables)
        critic_optimizer.apply(critic_gradients, critic_variables)
        return {"critic_loss": critic_loss, "policy_loss": policy_loss}

    return step


def main() -> None:
    """Measures all learners."""
    parser = harness.parser("learner", __doc__)
    parser.add_argument("--steps", type=int, default=STEPS, help="of a sample, a multiple of 16")
    options = parser.parse_args()
    report = harness.Report("learner", options)
    sample, agent, peer = make_sample(), D4PG(D4PG_CONFIG, SPEC), "D4PG, Acme's maths"
    calls: dict[str, tuple[Callable[[], object], int]] = {
        "D4PG, 1 step a call": (ours(agent, sample, 1), 1),
        "D4PG, 16 steps a call": (ours(agent, sample, 16), 16),
        "D4PG, 16 steps a call, bfloat16": (ours(in_bfloat16(agent), sample, 16), 16),
        "D4PG, 16 steps a call, XLA": (ours(agent, sample, 16, "single_device:xla"), 16),
        peer: (acme_d4pg(sample), 1),
    }
    sides = {
        side: harness.clocked(
            harness.synchronized(harness.repeated(call, options.steps // steps)),
            options.steps,
            "learner steps",
        )
        for side, (call, steps) in calls.items()
    }
    report.add(
        harness.measure(sides, options.rounds), {side: peer for side in sides if side != peer}
    )
    report.write()
    harness.end()


if __name__ == "__main__":
    main()
