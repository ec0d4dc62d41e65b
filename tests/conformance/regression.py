"""The regression that replicators under test train on: the target is the sum of the features."""

import numpy as np
import tensorflow as tf


def set_weights(model):
    """Sets a model's trainable variables to fixed random values."""
    rng = np.random.default_rng(1)
    for variable in model.trainable_variables:
        variable.assign(rng.normal(size=variable.shape).astype(np.float32))


def make_step_fn(model, optimizer):
    """Returns a step function of one optimizer step on the squared error: [B, features] -> loss."""

    def step_fn(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(x)[:, 0] - tf.reduce_sum(x, axis=1)))
        parameters = model.trainable_variables
        optimizer.apply(tape.gradient(loss, parameters), parameters)
        return loss

    return step_fn
