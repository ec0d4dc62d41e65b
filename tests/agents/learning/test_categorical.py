"""The categorical losses against numbers computed by hand and against plain NumPy."""

import numpy as np
import pytest
import tensorflow as tf

from agents.learning import categorical
from tests.agents import actor_critic_reference as reference

ATOMS = np.array([0.0, 1.0, 2.0, 3.0, 4.0], np.float32)


def project(r, d, probs, atoms=ATOMS):
    tensors = [tf.constant(x, tf.float32) for x in (r, d, probs, atoms)]
    return categorical.project_categorical(*tensors).numpy()


@pytest.mark.parametrize(
    ("r", "d", "probs", "expected"),
    [
        # All mass on the atom 2: r + d z = 0.5 + 0.5 * 2 = 1.5 lies halfway between 1 and 2.
        (0.5, 0.5, [0, 0, 1, 0, 0], [0, 0.5, 0.5, 0, 0]),
        # Uniform: every atom moves up by one, and the last stays where it is.
        (1.0, 1.0, [0.2] * 5, [0, 0.2, 0.2, 0.2, 0.4]),
        (3.25, 0.0, [0.1, 0.2, 0.3, 0.4, 0.0], [0, 0, 0, 0.75, 0.25]),  # After termination.
        (9.0, 1.0, [1, 0, 0, 0, 0], [0, 0, 0, 0, 1]),
        (-9.0, 1.0, [1, 0, 0, 0, 0], [1, 0, 0, 0, 0]),
    ],
)
def test_projection_by_hand(r, d, probs, expected):
    np.testing.assert_allclose(project([r], [d], [probs]), [expected], atol=1e-6)


def test_projection_equals_the_algorithm_in_loops():
    random = np.random.default_rng(0)
    atoms = np.linspace(-7, 11, 31, dtype=np.float32)
    probs = random.dirichlet(np.ones(31), size=64).astype(np.float32)
    r = random.uniform(-9, 9, 64).astype(np.float32)
    d = random.choice([0.0, 0.9, 0.99**5], 64).astype(np.float32)
    projected = project(r, d, probs, atoms)
    np.testing.assert_allclose(
        projected, reference.project(r, d, probs.astype(float), atoms), atol=2e-5
    )
    np.testing.assert_allclose(projected.sum(axis=1), 1.0, atol=1e-5)


def test_td_loss_equals_numpy_and_sends_no_gradient_to_the_target():
    random = np.random.default_rng(1)
    logits = tf.constant(random.normal(size=(8, 5)), tf.float32)
    probs = tf.constant(random.dirichlet(np.ones(5), size=8), tf.float32)
    r = tf.constant(random.uniform(0, 2, 8), tf.float32)
    d = tf.constant([0.9] * 8, tf.float32)
    with tf.GradientTape() as tape:
        tape.watch([logits, probs])
        loss, target = categorical.categorical_td_loss(logits, r, d, probs, tf.constant(ATOMS))
    log_softmax = reference.log_softmax(logits.numpy())
    expected_target = reference.project(r.numpy(), d.numpy(), probs.numpy(), ATOMS)
    np.testing.assert_allclose(target, expected_target, atol=1e-5)
    np.testing.assert_allclose(loss, -(expected_target * log_softmax).sum(axis=1), rtol=1e-4)
    gradient_logits, gradient_probs = tape.gradient(loss, [logits, probs])
    # d CE / d logits = softmax - target.
    np.testing.assert_allclose(gradient_logits, np.exp(log_softmax) - expected_target, atol=1e-4)
    assert gradient_probs is None


def test_priorities_are_what_is_left_to_learn_and_send_no_gradient():
    target = tf.constant([[0.25, 0.75], [1.0, 0.0], [0.5, 0.5]])
    entropy = -(0.25 * np.log(0.25) + 0.75 * np.log(0.75))
    # Nothing is left; log(1 / 0.5); less than the entropy, as rounding can make it.
    cross_entropy = tf.constant([entropy, np.log(2.0), 0.1], tf.float32)
    with tf.GradientTape() as tape:
        tape.watch(cross_entropy)
        priorities = categorical.kl_priorities(cross_entropy, target)
    np.testing.assert_allclose(priorities, [0.0, np.log(2.0), 0.0], atol=1e-6)
    assert tape.gradient(priorities, cross_entropy) is None


def test_edge_mass_is_the_mean_of_first_and_last_atom():
    low, high = categorical.edge_mass(tf.constant([[0.5, 0.4, 0.1], [0.1, 0.6, 0.3]]))
    np.testing.assert_allclose([low, high], [0.3, 0.2], rtol=1e-6)
