"""Diagnostics of why an agent does not learn, checked by hand."""

import numpy as np
import pytest
import sonnet as snt
import tensorflow as tf

from agents.learning import diagnostics


def test_units_without_gradient_are_dormant():
    """One of four ReLU units has a bias so low that no example activates it."""
    hidden, head = snt.Linear(4, name="hidden"), snt.Linear(3, name="head")
    random = np.random.default_rng(0)
    x = tf.constant(random.normal(size=[32, 5]), tf.float32)

    def gradients():
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(head(tf.nn.relu(hidden(x))) ** 2)
        variables = (*hidden.trainable_variables, *head.trainable_variables)
        return tape.gradient(loss, variables), variables

    gradients()  # Builds the layers.
    # A unit whose weights in the head happen to be small is dormant, too.
    for layer in (hidden, head):
        layer.w.assign(random.normal(size=layer.w.shape).astype(np.float32))
    assert diagnostics.dormant_share(*gradients()).numpy() == 0.0
    hidden.b.assign([0.0, -100.0, 0.0, 0.0])
    assert diagnostics.dormant_share(*gradients()).numpy() == 0.25
    # The outputs of a head are allowed to have no gradient.
    head.w.assign(tf.zeros_like(head.w))
    found, variables = gradients()
    heads = [i for i, v in enumerate(variables) if v.name.startswith("head/")]
    assert len(heads) == 2
    none = diagnostics.dormant_share([found[i] for i in heads], [variables[i] for i in heads])
    assert none.numpy() == 0.0


def layer_gradient(*norms):
    """The gradient of a layer with two inputs, [2, units], with these norms."""
    return tf.constant([[0.6 * norm for norm in norms], [0.8 * norm for norm in norms]])


def test_the_share_is_a_mean_over_layers():
    first, second, biases = (
        tf.Variable(tf.ones(shape), name="mlp/w") for shape in ([2, 4], [2, 3], [4])
    )
    # The limits are 2.5 % of (3 + x) / 4: 0.01886.
    active, dormant = layer_gradient(1.0, 1.0, 1.0, 0.019), layer_gradient(1.0, 1.0, 1.0, 0.018)
    unused = layer_gradient(0.0, 0.0, 0.0)
    for gradients, expected in ([active, unused], 0.5), ([dormant, unused], (0.25 + 1.0) / 2):
        share = diagnostics.dormant_share([*gradients, tf.zeros([4])], [first, second, biases])
        assert share.numpy() == pytest.approx(expected)
    metrics = diagnostics.step_metrics(
        [3.0 * dormant], [first], [tf.constant([3.0, 4.0])], tf.ones([1, 1]), *2 * [tf.ones([2])]
    )
    assert metrics["dormant_share"].numpy() == 0.25
    assert metrics["critic_gradient_norm"].numpy() == pytest.approx(3.0 * 3.000324**0.5)
    assert metrics["policy_gradient_norm"].numpy() == pytest.approx(5.0)


def test_a_layer_without_influence_is_dormant():
    first, second = (tf.Variable(tf.ones([2, 4]), name="mlp/w") for _ in range(2))
    gradients = [layer_gradient(1.0, 1.0, 1.0, 1.0), None]
    assert diagnostics.dormant_share(gradients, [first, second]).numpy() == 0.5
    metrics = diagnostics.step_metrics(
        *(gradients, [first, second], gradients, tf.ones([1, 1])), *2 * [tf.ones([2])]
    )
    assert metrics["critic_gradient_norm"].numpy() == pytest.approx(2.0)


@pytest.mark.parametrize(
    ("weights", "share"),
    [([0.3, 0.3], 1.0), ([1.0, 0.0, 0.0, 0.0], 0.25), ([1.0, 3.0], 16 / 20)],
)
def test_saturation_effective_batch_and_variation(weights, share):
    action = tf.constant([[1.0, -0.995], [0.5, -1.0]])
    for priorities, variation in ([1.0, 3.0], 0.5), ([0.0, 0.0], 0.0):
        metrics = diagnostics.step_metrics(
            [tf.ones([2])],
            [tf.Variable([1.0, 1.0])],
            [tf.ones([2])],
            *(action, tf.constant(weights), tf.constant(priorities), lambda rows: rows[1]),
        )
        assert metrics["action_saturation"].numpy() == 0.5  # Of the second action.
        assert metrics["effective_batch_share"].numpy() == pytest.approx(share)
        assert metrics["priority_variation"].numpy() == pytest.approx(variation)
