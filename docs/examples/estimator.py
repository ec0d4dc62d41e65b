"""An Estimator: python docs/examples/estimator.py FOLDER [multi_device:2] [STEPS]"""

import sys

import numpy as np
import tensorflow as tf

import rl_replicator as rr

v1 = tf.compat.v1
X = np.random.default_rng(0).normal(size=(1024, 8)).astype(np.float32)
Y = np.sin(X.sum(axis=1, keepdims=True))
GLOBAL_BATCH_SIZE = 128


def input_fn(input_context=None):
    """Per-replica batches; the Estimator distributes them."""
    replicas = input_context.num_replicas_in_sync if input_context else 1
    data = tf.data.Dataset.from_tensor_slices((X, Y))
    return data.repeat().batch(GLOBAL_BATCH_SIZE // replicas)


def model_fn(features, labels, mode):
    def layer(x, size, seed, activation=None):
        start = tf.keras.initializers.GlorotUniform(seed)
        return v1.layers.dense(x, size, activation, kernel_initializer=start)

    y = layer(layer(features, 64, 1, tf.nn.tanh), 1, 2)
    loss = v1.losses.mean_squared_error(labels, y)
    optimizer = v1.train.AdamOptimizer(1e-2)
    update = optimizer.minimize(loss, v1.train.get_global_step())
    return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=update)


folder, name, steps = [*sys.argv[1:], *["single_device", "40"][len(sys.argv) - 2 :]]
replicator = rr.make(name)
config = tf.estimator.RunConfig(folder, train_distribute=replicator.strategy)
estimator = tf.estimator.Estimator(model_fn, config=config)
estimator.train(input_fn, max_steps=int(steps))
figures = estimator.evaluate(input_fn, steps=8)
print(f"after step {figures['global_step']}: loss {figures['loss']:.6f}")
