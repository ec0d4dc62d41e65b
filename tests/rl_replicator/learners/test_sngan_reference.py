"""One step of the GAN against a reference in NumPy that shares no code with it.

The reference takes its gradients by finite differences, in float64.
"""

import numpy as np
import pytest
import tensorflow as tf

import rl_replicator as rr
from rl_replicator.learners.loop import Training
from rl_replicator.learners.run_options import RunOptions
from rl_replicator.learners.sngan import SNGANConfig
from rl_replicator.learners.sngan.learner import SNGANLearner
from rl_replicator.runs.metrics import read_metrics
from rl_replicator.runs.run_directory import RunDirectory
from tests.rl_replicator.learners import tiny_images

pytestmark = pytest.mark.usefixtures("plain_graphs")
BATCH, NOISE, CLASSES, SEED = 4, 3, 10, 5
RATES = {"generator": 3e-3, "discriminator": 2e-3}
BETA_2, EPSILON = 0.9, 1e-8
UPDATES = 2  # Of the discriminator in one step.
# The first of two uses of random numbers in an update: noise, then labels.
DISCRIMINATOR_USE, GENERATOR_USE = 0, 2


@pytest.fixture(scope="module")
def learner(tmp_path_factory):
    config = SNGANConfig(
        data_dir=tiny_images.fashion_mnist(tmp_path_factory.mktemp("images")),
        width=1,
        precision="float64",
        steps=1,
        global_batch_size=BATCH,
        discriminator_steps=UPDATES,
        generator_learning_rate=RATES["generator"],
        discriminator_learning_rate=RATES["discriminator"],
        decay_steps=1,  # Both rates fall only after the last update of the only step.
        noise_size=NOISE,
        seed=SEED,
    )
    replicator = rr.make("single_device")
    made = SNGANLearner(replicator, config)
    made.replicator = replicator
    rng = np.random.default_rng(0)
    for network in (made.generator, made.discriminator):  # Off their special initial values.
        for variable in network.trainable_variables:
            variable.assign_add(0.2 * rng.standard_normal(variable.shape))
    made.evaluation = lambda: None
    return made


def path(variable):
    """The variable's name without the network's: `block_0/conv_1/w`."""
    return variable.name.partition("/")[2].partition(":")[0]


def values(network):
    """The variables of a network by path."""
    found = {path(v): v.numpy() for v in network.variables if not v.name.endswith("/u:0")}
    for layer in network.submodules:  # The vectors' names do not identify their layer.
        if getattr(layer, "weight_norm", None) is not None:
            found[f"{path(layer.w).removesuffix('/w')}/spectral/u"] = layer.weight_norm.u.numpy()
    return found


@pytest.mark.timeout(300)
def test_one_step(learner, tmp_path):
    generator, discriminator = values(learner.generator), values(learner.discriminator)
    average = values(learner.average)
    data = learner.input_fn(rr.InputContext(num_replicas=1))
    batches = [(x.numpy(), y.numpy()) for x, y in data.take(UPDATES)]
    training = Training(
        learner.replicator,
        learner,
        RunDirectory(tmp_path),
        RunOptions(steps_per_call=1, checkpoint_seconds=1000.0),
    )
    assert training.run() is None

    names = [path(variable) for variable in learner.discriminator.trainable_variables]
    adam, losses, means = Adam(RATES["discriminator"]), [], []
    for update, (images, labels) in enumerate(batches):
        noise, fake_labels = draw(learner, DISCRIMINATOR_USE, update)
        fakes = generate(generator, noise, one_in_k(fake_labels))
        both = np.concatenate([images / 127.5 - 1.0, fakes])
        classes = one_in_k(np.concatenate([labels, fake_labels]))
        vectors = power_iteration(discriminator)

        def scores(weights, both=both, classes=classes, vectors=vectors):
            return np.split(judge(weights, vectors, both, classes), 2)

        def loss(weights, scores=scores):
            real, fake = scores(weights)
            return np.mean(np.maximum(0, 1 - real)) + np.mean(np.maximum(0, 1 + fake))

        losses.append(loss(discriminator))
        means.append([np.mean(x) for x in scores(discriminator)])
        gradients = differences(loss, discriminator, names)
        adam.apply(gradients, discriminator)
        for layer, (_, u) in vectors.items():
            discriminator[f"{layer}/spectral/u"] = u
    check(
        learner.discriminator,
        learner.trackables()["discriminator_optimizer"],
        discriminator,
        gradients,
    )

    noise, labels = draw(learner, GENERATOR_USE, 0)
    vectors = left_vectors(discriminator)

    def loss(weights):
        images = generate(weights, noise, one_in_k(labels))
        return -np.mean(judge(discriminator, vectors, images, one_in_k(labels)))

    rows = read_metrics(tmp_path, "train")
    np.testing.assert_allclose(rows["discriminator_loss"], [np.mean(losses)], rtol=1e-5)
    got = [*rows["discriminator_real_score"], *rows["discriminator_fake_score"]]
    np.testing.assert_allclose(got, np.mean(means, axis=0), rtol=1e-5)
    np.testing.assert_allclose(rows["generator_loss"], [loss(generator)], rtol=1e-5)
    names = [path(variable) for variable in learner.generator.trainable_variables]
    gradients = differences(loss, generator, names)
    Adam(RATES["generator"]).apply(gradients, generator)
    check(learner.generator, learner.trackables()["generator_optimizer"], generator, gradients)
    got = values(learner.average)
    for name in names:  # In the first update, a tenth of the average is kept.
        np.testing.assert_allclose(
            got[name], 0.1 * average[name] + 0.9 * values(learner.generator)[name], atol=1e-7
        )


def check(network, optimizer, weights, gradients):
    """Compares the last gradients, which Adam keeps because beta_1 is 0, and the weights."""
    pairs = zip(network.trainable_variables, optimizer.m, strict=True)
    found = {path(variable): m.numpy() for variable, m in pairs}
    assert found.keys() == gradients.keys()
    largest = max(np.abs(gradient).max() for gradient in gradients.values())
    assert largest > 0.1
    got, steep = values(network), 0
    for name, gradient in gradients.items():
        np.testing.assert_allclose(found[name], gradient, atol=1e-5 * largest, err_msg=name)
        # Where the gradient is nearly 0, a rounding error decides the sign of Adam's step.
        is_steep = np.abs(gradient) > 1e-4
        steep += is_steep.sum()
        np.testing.assert_allclose(
            got[name][is_steep], weights[name][is_steep], atol=1e-6, err_msg=name
        )
    assert steep > 0.7 * sum(gradient.size for gradient in gradients.values())
    for name in (name for name in got if name.endswith("/u")):
        np.testing.assert_allclose(got[name], weights[name], atol=1e-6, err_msg=name)


class Adam:
    """Kingma & Ba 2015, Algorithm 1, with beta_1 = 0."""

    def __init__(self, rate):
        self.rate, self.steps, self.v = rate, 0, {}

    def apply(self, gradients, weights):
        self.steps += 1
        for name, g in gradients.items():
            self.v[name] = BETA_2 * self.v.get(name, 0.0) + (1 - BETA_2) * g**2
            v_hat = self.v[name] / (1 - BETA_2**self.steps)
            weights[name] = weights[name] - self.rate * g / (np.sqrt(v_hat) + EPSILON)


def differences(loss, weights, names, h=1e-6):
    """Central differences of a loss with respect to the named weights."""
    gradients = {}
    for name in names:
        gradient = np.zeros_like(weights[name])
        for place in np.ndindex(gradient.shape):
            changed = {sign: weights[name].copy() for sign in (-1, 1)}
            for sign, array in changed.items():
                array[place] += sign * h
            high, low = (loss({**weights, name: changed[sign]}) for sign in (1, -1))
            gradient[place] = (high - low) / (2 * h)
        gradients[name] = gradient
    return gradients


def draw(learner, use, update):
    """The noise and the labels of an update, from the seeds of the implementation."""
    seeds = [learner.step_seed(tf.constant(update), use + i) for i in range(2)]
    noise = tf.random.stateless_normal([BATCH, NOISE], seeds[0])
    labels = tf.random.stateless_uniform([BATCH], seeds[1], maxval=CLASSES, dtype=tf.int32)
    return noise.numpy().astype(np.float64), labels.numpy()


def one_in_k(labels):
    return np.eye(CLASSES)[labels]


def generate(p, noise, classes):
    """The generator for 8x8 images: one block that doubles 4x4."""

    def conditional(norm, x):
        scale, offset = (classes @ p[f"{norm}/{part}/w"] for part in ("scale", "offset"))
        return normalise(x) * scale[:, None, None] + offset[:, None, None]

    x = (noise @ p["first/w"] + p["first/b"]).reshape(BATCH, 4, 4, -1)
    y = double(relu(conditional("block_0/norm_0", x)))
    y = relu(conditional("block_0/norm_1", convolve(y, p["block_0/conv_0/w"])))
    y = convolve(y, p["block_0/conv_1/w"])
    x = y + convolve(double(x), p["block_0/shortcut/w"])
    x = relu(normalise(x) * p["norm/scale"] + p["norm/offset"])
    return np.tanh(convolve(x, p["last/w"]) + p["last/b"])


def judge(p, vectors, images, classes):
    """The discriminator for 8x8 images: one block that halves, one that does not."""

    def weight(layer):
        w, (v, u) = p[f"{layer}/w"], vectors[layer]
        return w / (v @ w.reshape(-1, w.shape[-1]) @ u)

    def apply(layer, x):
        return convolve(x, weight(layer)) + p[f"{layer}/b"]

    def residual(block, x):
        return apply(f"{block}/conv_1", relu(apply(f"{block}/conv_0", x)))

    x = halve(residual("block_0", images)) + apply("block_0/shortcut", halve(images))
    x = residual("block_1", relu(x)) + apply("block_1/shortcut", x)
    features = relu(x).sum(axis=(1, 2))
    scores = (features @ weight("linear"))[:, 0] + p["linear/b"]
    return scores + np.sum((classes @ weight("embedding")) * features, axis=1)


def power_iteration(p):
    """The singular vectors of each weight after one iteration; constants for the gradient."""
    found = {}
    for layer, (v, _) in left_vectors(p).items():
        w = p[f"{layer}/w"]
        u = v @ w.reshape(-1, w.shape[-1])
        found[layer] = v, u / np.linalg.norm(u)
    return found


def left_vectors(p):
    found = {}
    for name in p:
        if name.endswith("/spectral/u"):
            layer = name.removesuffix("/spectral/u")
            w = p[f"{layer}/w"]
            v = w.reshape(-1, w.shape[-1]) @ p[name]
            found[layer] = v / np.linalg.norm(v), p[name]
    return found


def convolve(x, w):
    """A convolution with zero padding, [B, H, W, C] and [k, k, C, D], or [C, D] for 1x1."""
    w = w.reshape(-1, *w.shape[-2:]) if w.ndim > 2 else w[None]
    side = round(len(w) ** 0.5)
    margin = side // 2
    padded = np.pad(x, [(0, 0), (margin, margin), (margin, margin), (0, 0)])
    height, width = x.shape[1:3]
    return sum(
        padded[:, i // side : i // side + height, i % side : i % side + width] @ w[i]
        for i in range(len(w))
    )


def normalise(x):
    mean, variance = x.mean(axis=(0, 1, 2)), x.var(axis=(0, 1, 2))
    return (x - mean) / np.sqrt(variance + 1e-5)


def relu(x):
    return np.maximum(x, 0)


def double(x):
    return x.repeat(2, axis=1).repeat(2, axis=2)


def halve(x):
    return (x[:, ::2, ::2] + x[:, 1::2, ::2] + x[:, ::2, 1::2] + x[:, 1::2, 1::2]) / 4
