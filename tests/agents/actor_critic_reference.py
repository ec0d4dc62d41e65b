"""Learner steps in NumPy float64, for every agent.

It shares no code with the learners under test. Every derivative is a central finite difference, so
a wrong sign or a wrongly stopped gradient in a learner shows. Weights are `{path: array}`.
"""

import numpy as np
import tensorflow as tf
from acme import specs

import rl_replicator as rr
from agents.learning.weights import copy_variables
from agents.replay.config import ReplayConfig
from tests.agents import fixed_samples
from tests.agents.d4pg.numpy_step import Adam, gradient, mlp
from tests.agents.learner_checks import RecordedSeeds, check_metrics, check_start

__all__ = ["Adam", "gradient", "importance", "mlp", "names", "norm", "twin", "update_targets"]

# Transitions per global batch, learner steps per test, and steps until the schedules end.
BATCH, STEPS, TOTAL_STEPS = 8, 4, 3
SPEC = fixed_samples.make_spec(rewards=specs.Array((), np.float32))
REPLAY = ReplayConfig(priority_exponent=0.6, importance_exponent_start=0.3)


def weights_of(module):
    """Copies of the variables of all online and target networks, by path."""
    targets = {f"target_{name}": network for name, network in module.target._asdict().items()}
    networks = module.online._asdict() | targets
    return copy_variables(networks, networks)


def batches(samples, global_batch_size=BATCH):
    """Returns an input function of batches of samples."""

    def input_fn(context):
        size = context.per_replica_batch_size(global_batch_size)
        return tf.data.Dataset.from_tensor_slices(samples).batch(size, drop_remainder=True)

    return input_fn


def check_training(
    replicator_name, agent, make_reference, is_due, rtol, atol, local_metrics=(), read=weights_of
):
    """Compares a learner with its reference after every step on the same batches.

    Args:
      replicator_name: such as "multi_device:2".
      agent: makes the learner's module.
      make_reference: makes the reference from the learner's weights, `{path: array}`. Its `step`
        returns priorities and metrics, `steps` counts the steps, and `draw`, which is set here,
        returns the learner's own noise: (shape, stream) -> float32 tensor.
      is_due: (path, number of the step from 0) -> whether the step trains this variable.
      rtol: relative tolerance of weights and priorities.
      atol: absolute tolerance of these and of metrics; an entropy may be close to zero.
      local_metrics: names of metrics whose mean over the replicas is not the global batch's.
      read: returns the weights of the learner's module.

    Returns:
      The reference after the last step.
    """
    tf.random.set_seed(1)  # The module draws the key of its noise.
    replicator = rr.make(replicator_name)
    agent.observations.augment = seeds = RecordedSeeds()
    with replicator.scope():
        module = agent.make_module(replicator, total_steps=TOTAL_STEPS)
    check_start(module)
    random = np.random.default_rng(11)
    for variable in (*module.online.trainable_variables, *module.target.trainable_variables):
        variable.assign(random.normal(scale=0.4, size=variable.shape).astype(np.float32))
    reference = make_reference(read(module))
    reference.draw = lambda shape, stream: tf.random.stateless_normal(
        shape, module.step_seed(reference.steps, stream)
    )
    returns = random.normal(3.0, 2.0, STEPS * BATCH).astype(np.float32)
    samples = fixed_samples.make_samples(
        STEPS * BATCH,
        min_reward=-3.0,
        extras=returns if agent.follows_returns else (),
        num_actions=getattr(agent.environment_spec.actions, "num_values", None),
    )

    step = replicator.replicate(module.step_fn, replicator.make_inputs(batches(samples)), 1)
    for number in range(STEPS):
        outputs = replicator.local_results(step())
        rows = slice(number * BATCH, (number + 1) * BATCH)
        before = reference.weights
        o_tm1, a_tm1, r_t, d_t, o_t = (x[rows] for x in samples.transition[:5])
        seen = returns[: rows.stop]
        scale = max(seen.std(), np.abs(seen).max() / 5) if agent.follows_returns else 1.0
        expected, metrics = reference.step(
            samples.probabilities[rows],
            samples.table_size[rows],
            [o_tm1, a_tm1, r_t / scale, d_t, o_t],
        )
        for name in {"q_mean", "soft_q_mean"} & set(metrics):
            metrics[name] *= scale  # In the environment's units.
        metrics |= {"return_scale": scale} if agent.follows_returns else {}
        got = np.concatenate([np.ravel(output.priorities) for output in outputs])
        np.testing.assert_allclose(got, expected, rtol=rtol, atol=atol)
        for output in outputs:
            check_metrics(output)
        # Adam's updates do not depend on the gradient's scale, so losses and norms are compared.
        for name, value in metrics.items():
            if len(outputs) == 1 or name not in local_metrics:
                mean = np.mean([output.metrics[name] for output in outputs])
                np.testing.assert_allclose(mean, value, rtol=1e-3, atol=atol, err_msg=name)
        for path, array in read(module).items():
            new, message = reference.weights[path], f"{path} after step {number + 1}"
            np.testing.assert_allclose(array, new, rtol=rtol, atol=atol, err_msg=message)
            # Rules out that two arrays agree only because no step changed them.
            assert (np.abs(new - before[path]).max() > 5e-4) == is_due(path, number), message
    seeds.check(STEPS, replicator.num_replicas)
    return reference


class ActorCritic:
    """What the references share: weights, Adam for each network, and the number of steps."""

    def __init__(self, weights, **rates):
        self.weights = {path: array.astype(np.float64) for path, array in weights.items()}
        self._adams = {name: Adam(rate) for name, rate in rates.items()}
        self.steps = 0

    def importance(self, probabilities, table_size):
        """Those of `REPLAY`, [B]."""
        return importance(probabilities, table_size, 0.3 + 0.7 * min(1.0, self.steps / TOTAL_STEPS))

    def twin_loss(self, target, row_weights, observation, action):
        """Returns the loss of both critics as a function of all weights, and the priorities."""

        def errors(weights):
            return target[:, None] - twin(weights, "", observation, action)

        def loss(weights):
            return (row_weights * (0.5 * errors(weights) ** 2).sum(-1)).mean()

        return loss, np.abs(errors(self.weights)).max(-1)

    def gradients(self, losses):
        """Returns the gradients of each network's loss, `{network: {path: array}}`."""
        return {
            name: gradient(loss, self.weights, names(self.weights, name))
            for name, loss in losses.items()
        }

    def train(self, gradients):
        """Updates the networks whose gradients are given."""
        for name, changes in gradients.items():
            self.weights = self._adams[name].apply(self.weights, changes)


def norm(gradients):
    """The global norm of `{path: array}`."""
    return np.sqrt(sum((array**2).sum() for array in gradients.values()))


def names(weights, *networks):
    """The paths of the named networks' variables."""
    return [path for path in weights if path.split("/")[0] in networks]


def twin(weights, prefix, observation, action):
    """Both critics' values: [B, N], [B, A] -> [B, 2]."""
    x = np.concatenate([observation, action], -1)
    values = [mlp(weights, f"{prefix}critic/{which}", x) for which in ("first", "second")]
    return np.concatenate(values, -1)


def importance(probabilities, table_size, beta):
    """Schaul et al. 2016, section 3.4, divided by the largest weight."""
    weights = (table_size * probabilities) ** -beta
    return weights / weights.max()


def update_targets(weights, tau):
    """Returns the weights with every target variable moved by tau towards its online variable."""
    new = dict(weights)
    for path in weights:
        if path.startswith("target_"):
            new[path] = (1 - tau) * weights[path] + tau * weights[path.removeprefix("target_")]
    return new
