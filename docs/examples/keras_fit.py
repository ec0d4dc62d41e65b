"""Keras: python docs/examples/keras_fit.py [single_device | multi_device:2 | ...] [FOLDER]

Trains for three epochs; with a folder, continues from the checkpoint in it, and saves there.
"""

import sys

import numpy as np
import tensorflow as tf

import rl_replicator as rr

X = np.random.default_rng(0).normal(size=(1000, 8)).astype(np.float32)
Y = np.sin(X.sum(axis=1, keepdims=True))

replicator = rr.make(sys.argv[1] if len(sys.argv) > 1 else "single_device")
tf.keras.utils.set_random_seed(1)
with replicator.strategy.scope():
    model = tf.keras.Sequential(
        [
            tf.keras.layers.Dense(64, activation="tanh", input_shape=[8]),
            tf.keras.layers.BatchNormalization(synchronized=True),  # Statistics of all replicas.
            tf.keras.layers.Dense(1),
        ]
    )
    model.compile(tf.keras.optimizers.Adam(1e-2), "mse", metrics=["mae"])
    model.optimizer.build(model.trainable_variables)  # Required before a restore.

parts = {"model": rr.parts.TrackablePart(model=model)}  # Includes the optimizer and its slots.
folder = sys.argv[2] if len(sys.argv) > 2 else None
if folder and rr.checkpoints.Checkpointer(folder).latest():
    rr.checkpoints.Checkpointer(folder).restore(parts)

data = tf.data.Dataset.from_tensor_slices((X, Y)).batch(100)  # The global batch size.
first = int(model.optimizer.iterations.numpy()) // 10
for epoch in range(first + 1, first + 4):
    history = model.fit(data, verbose=0).history
    if replicator.is_chief:
        print(f"step {10 * epoch}: loss {history['loss'][0]:.6f} mae {history['mae'][0]:.6f}")

loss, mae = model.evaluate(data, verbose=0)
mean = model.predict(data, verbose=0).mean()
if replicator.is_chief:
    print(f"after step {10 * epoch}: loss {loss:.6f} mae {mae:.6f} mean prediction {mean:.6f}")
    if folder:
        rr.checkpoints.Checkpointer(folder).save(10 * epoch, parts)
