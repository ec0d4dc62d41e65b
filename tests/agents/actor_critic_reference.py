"""Learner steps in NumPy float64, for every agent.

It shares no code with the learners under test. Every derivative is a central finite difference, so
a wrong sign or a wrongly stopped gradient in a learner shows. Weights are `{path: array}`.
"""

import collections

import numpy as np
import sonnet as snt
import tensorflow as tf
from acme import specs

import rl_replicator as rr
from agents.learning.weights import copy_variables
from agents.replay.config import ReplayConfig
from tests.agents import fixed_samples

_EPSILON = 1e-6  # Of the finite differences: their error is about 1e-9.
# Transitions per global batch, learner steps per test, and steps until the schedules end.
BATCH, STEPS, TOTAL_STEPS = 8, 4, 3
SPEC = fixed_samples.make_spec(rewards=specs.Array((), np.float32))
REPLAY = ReplayConfig(
    priority_exponent=0.6, importance_exponent_start=0.3, importance_exponent_end=0.9
)


def weights_of(module):
    """Copies of the variables of all online and target networks, by path."""
    targets = {f"target_{name}": network for name, network in module.target._asdict().items()}
    networks = module.online._asdict() | targets
    return copy_variables(networks, networks)


def batches(samples, global_batch_size=BATCH):
    """Returns an input function of batches of samples."""

    def input_fn(context):
        size = context.per_replica_batch_size(global_batch_size)
        data = tf.data.Dataset.from_tensor_slices(samples).batch(size, drop_remainder=True)
        return data.shard(context.num_input_pipelines, context.input_pipeline_id)

    return input_fn


class RecordedSeeds:
    """An augmentation that changes nothing, and records its seeds."""

    def __init__(self):
        self._seeds = []

    def __call__(self, observations, seed):
        tf.numpy_function(lambda seed: self._seeds.append(tuple(seed)), [seed], [])
        return observations

    def check(self, num_seeds, num_replicas):
        """Asserts that each augmentation had its own seed, the same on all replicas.

        tests/rl_replicator/collectives/test_randomness.py compares runs.
        """
        counts = collections.Counter(self._seeds)
        assert len(counts) == num_seeds and set(counts.values()) == {num_replicas}


def check_start(module, weights, trained):
    """Asserts that copies start equal, and that all slots exist, so checkpoints can be restored.

    Args:
      module: the learner's module, before its first step.
      weights: its weights.
      trained: names of the networks that optimizers train.
    """
    for path, array in weights.items():
        source = path.removeprefix("target_").removeprefix("model/model_")
        if source in weights:
            np.testing.assert_array_equal(array, weights[source], err_msg=path)
    wrapped = [getattr(value, "optimizer", None) for value in vars(module).values()]
    optimizers = [x for x in wrapped if isinstance(x, snt.optimizers.Adam)]
    assert sum(len(optimizer.m) for optimizer in optimizers) == len(names(weights, *trained))


def draw_weights(variable, random):
    return random.normal(scale=0.4, size=variable.shape)


def check_training(
    replicator_name,
    agent,
    make_reference,
    is_due,
    rtol,
    atol,
    local_metrics=(),
    read=weights_of,
    samples=None,
    draw_weights=draw_weights,
    least=5e-4,
):
    """Compares a learner with its reference after every step on the same batches.

    Args:
      replicator_name: such as "multi_device:2".
      agent: makes the learner's module.
      make_reference: makes the reference from the learner's weights, `{path: array}`.
      is_due: (path, number of the step from 0) -> whether the step changes this variable.
      rtol: relative tolerance of weights and priorities.
      atol: absolute tolerance of these and of metrics; an entropy may be close to zero.
      local_metrics: names of metrics whose mean over the replicas is not the global batch's.
      read: returns the weights of the learner's module.
      samples: `Sample` of all batches; None for transitions.
      draw_weights: (variable, generator) -> its value, so large that actions and values differ.
      least: the least change of a variable that a step changes.

    Returns:
      The reference after the last step.
    """
    tf.random.set_seed(1)  # The module draws the key of its noise.
    replicator = rr.make(replicator_name)
    agent.observations.augment = seeds = RecordedSeeds()
    with replicator.scope():
        module = agent.make_module(replicator, total_steps=TOTAL_STEPS)
    start, random = read(module), np.random.default_rng(11)
    for variable in module.trainable_variables:
        if variable.shape.rank:  # Not the temperature of SAC.
            variable.assign(draw_weights(variable, random).astype(np.float32))
    reference = make_reference(read(module))
    check_start(module, start, reference.trained)
    reference.draw = lambda shape, stream: tf.random.stateless_normal(
        shape, module.step_seed(reference.steps, stream)
    )
    is_scaled = samples is None and agent.follows_returns
    returns = random.normal(3.0, 2.0, STEPS * BATCH).astype(np.float32)
    if samples is None:
        samples = fixed_samples.make_samples(
            STEPS * BATCH,
            min_reward=-3.0,
            extras=returns if is_scaled else (),
            num_actions=getattr(agent.environment_spec.actions, "num_values", None),
        )
    batch_size = agent.config.global_batch_size
    inputs = replicator.make_inputs(batches(samples, batch_size))
    step = replicator.replicate(module.step_fn, inputs, 1)
    num_steps = len(tf.nest.flatten(samples)[0]) // batch_size
    for number in range(num_steps):
        outputs = replicator.local_results(step())
        rows = slice(number * batch_size, (number + 1) * batch_size)
        before, batch = reference.weights, tf.nest.map_structure(lambda x, r=rows: x[r], samples)
        transition = batch.transition
        seen = returns[: rows.stop]
        scale = max(seen.std(), np.abs(seen).max() / 5) if is_scaled else 1.0
        if is_scaled:
            transition = transition._replace(reward=transition.reward / scale)
        expected, metrics = reference.step(batch.probabilities, batch.table_size, transition)
        for name in {"q_mean", "soft_q_mean"} & set(metrics):
            metrics[name] *= scale  # In the environment's units.
        metrics |= {"return_scale": scale} if is_scaled else {}
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
            assert (np.abs(new - before[path]).max() > least) == is_due(path, number), message
    seeds.check(reference.num_augmented * num_steps, replicator.num_replicas)
    return reference


def check_metrics(output):
    """Asserts that a replica's metrics describe its own priorities, if there are any."""
    if output.priorities != ():
        variation = np.std(output.priorities) / np.mean(output.priorities)
        np.testing.assert_allclose(output.metrics["priority_variation"], variation, rtol=1e-4)


class ActorCritic:
    """What the references share: weights, Adam for each network, and the number of steps.

    Attributes:
      num_augmented: augmentations in a step.
      trained: names of the networks that optimizers train.
    """

    num_augmented = 2

    def __init__(self, weights, weight_decay=0.0, **rates):
        self.weights = {path: array.astype(np.float64) for path, array in weights.items()}
        self._adams = {name: Adam(rate, weight_decay) for name, rate in rates.items()}
        self.trained = [*rates]
        self.steps = 0
        self.clipped = []  # For every norm of a gradient with a limit, whether it is above.

    def importance(self, probabilities, table_size):
        """Schaul et al. 2016, section 3.4, divided by the largest weight, as `REPLAY` asks; [B]."""
        weights = (table_size * probabilities) ** -(0.3 + 0.6 * min(1.0, self.steps / TOTAL_STEPS))
        return weights / weights.max()

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

    def clip(self, gradients, max_norm):
        """Returns `{path: array}`, scaled to a global norm of at most `max_norm`."""
        factor = max_norm / norm(gradients)
        self.clipped.append(factor < 1)
        return {path: array * min(1.0, factor) for path, array in gradients.items()}

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


def update_targets(weights, tau):
    """Returns the weights with every target variable moved by tau towards its online variable."""
    new = dict(weights)
    for path in weights:
        if path.startswith("target_"):
            new[path] = (1 - tau) * weights[path] + tau * weights[path.removeprefix("target_")]
    return new


def mlp(weights, name, x, head="head"):
    """linear, LayerNorm, tanh, then linear and elu for each further layer, then a linear head."""
    head = f"{name}/{head}"
    if f"{name}/torso/linear_0/w" in weights:
        name = f"{name}/torso"
    x = x @ weights[f"{name}/linear_0/w"] + weights[f"{name}/linear_0/b"]
    centred = x - x.mean(-1, keepdims=True)
    x = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5)
    x = x * weights[f"{name}/layer_norm/scale"] + weights[f"{name}/layer_norm/offset"]
    x = np.tanh(x)
    layer = 1
    while f"{name}/linear_{layer}/w" in weights:
        x = x @ weights[f"{name}/linear_{layer}/w"] + weights[f"{name}/linear_{layer}/b"]
        x = np.where(x > 0, x, np.expm1(np.minimum(x, 0)))
        layer += 1
    return x @ weights[f"{head}/w"] + weights[f"{head}/b"]


def log_softmax(logits):
    shifted = logits - logits.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


def project(r, d, probs, atoms):
    """Bellemare et al. 2017, Algorithm 1, as loops."""
    spacing = atoms[1] - atoms[0]
    result = np.zeros_like(probs)
    for i in range(len(r)):
        for j, atom in enumerate(atoms):
            b = (min(max(r[i] + d[i] * atom, atoms[0]), atoms[-1]) - atoms[0]) / spacing
            low = min(int(b), len(atoms) - 2)
            result[i, low] += probs[i, j] * (low + 1 - b)
            result[i, low + 1] += probs[i, j] * (b - low)
    return result


def gradient(loss, weights, names):
    """Central finite differences of a scalar function of `weights`."""
    result = {}
    for name in names:
        array = np.zeros_like(weights[name])
        for index in np.ndindex(*array.shape):
            sides = []
            for sign in (1, -1):
                moved = weights[name].copy()
                moved[index] += sign * _EPSILON
                sides.append(loss(weights | {name: moved}))
            array[index] = (sides[0] - sides[1]) / (2 * _EPSILON)
        result[name] = array
    return result


class Adam:
    """Kingma & Ba 2015, Algorithm 1; with a decay, Loshchilov & Hutter 2019, Algorithm 2."""

    def __init__(self, learning_rate, weight_decay=0.0):
        self._rate, self._decay, self._t = learning_rate, weight_decay, 0
        self._m, self._v = {}, {}

    def apply(self, weights, gradients):
        """The new weights."""
        self._t += 1
        new = dict(weights)
        for name, g in gradients.items():
            self._m[name] = 0.9 * self._m.get(name, 0.0) + 0.1 * g
            self._v[name] = 0.999 * self._v.get(name, 0.0) + 0.001 * g * g
            m_hat = self._m[name] / (1 - 0.9**self._t)
            v_hat = self._v[name] / (1 - 0.999**self._t)
            direction = m_hat / (np.sqrt(v_hat) + 1e-8) + self._decay * weights[name]
            new[name] = weights[name] - self._rate * direction
        return new
