"""The losses against numbers computed by hand, and a critic's loss of the user's own."""

import numpy as np
import pytest
import tensorflow as tf

from agents.d4pg import losses
from agents.learning.categorical import categorical_td_loss
from rl_replicator.errors import ConfigError


def test_action_gradient_is_clipped_per_example():
    dq_da = tf.constant([[3.0, 4.0], [0.3, 0.4]])
    np.testing.assert_allclose(
        losses.action_gradient(dq_da, 1.0), [[0.6, 0.8], [0.3, 0.4]], rtol=1e-6
    )
    np.testing.assert_allclose(losses.action_gradient(dq_da, None), dq_da)


def only_losses(*arguments):
    return categorical_td_loss(*arguments)[0]


WRONG = {
    "only_losses": only_losses,
    "three": lambda *arguments: (*categorical_td_loss(*arguments), arguments[1]),
    "summed": lambda *arguments: (only_losses(*arguments)[:, None], arguments[3]),
    "without_targets": lambda *arguments: (only_losses(*arguments), arguments[1]),
}


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("only_losses", r"losses \[B\] and targets \[B, Z\], got EagerTensor; return"),
        ("three", r"--agent.critic-loss: expected .* a pair, losses .*, got tuple; return"),
        ("summed", r"--agent.critic-loss: expected losses of shape \(2,\), got \(2, 1\)"),
        ("without_targets", r"--agent.critic-loss: expected targets of shape \(2, 3\), got \(2,\)"),
    ],
)
def test_a_loss_of_other_results_is_refused(name, message):
    """A wrong shape would broadcast with the importance weights."""
    atoms, probs = tf.constant([0.0, 1.0, 2.0]), tf.fill([2, 3], 1 / 3)
    arguments = (probs, tf.ones([2]), tf.ones([2]), probs, atoms)
    assert losses.find_critic_loss(f"{__name__}:only_losses") is only_losses
    found = losses.checked(losses.find_critic_loss("categorical"))(*arguments)
    for ours, theirs in zip(found, categorical_td_loss(*arguments), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    with pytest.raises(ConfigError, match=message):
        losses.checked(WRONG[name])(*arguments)
