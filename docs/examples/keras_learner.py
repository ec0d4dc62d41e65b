"""A compiled Keras model as a learner: rl-replicator train keras_learner:make_learner"""

import dataclasses

import numpy as np
import tensorflow as tf

from rl_replicator import learners


@dataclasses.dataclass(frozen=True)
class Config(learners.KerasConfig):
    """Tell two rings apart with a small network."""

    units: int = 32
    """Units of the hidden layer."""
    learning_rate: float = 1e-2
    """Learning rate of Adam."""
    seed: int = 1
    """Seed of the weights and of the order of the examples."""


def model_fn(config: Config) -> tf.keras.Model:
    tf.keras.utils.set_random_seed(config.seed)
    decay = tf.keras.regularizers.L2(1e-4)
    model = tf.keras.Sequential(
        [
            tf.keras.layers.Dense(config.units, kernel_regularizer=decay),
            tf.keras.layers.BatchNormalization(synchronized=True),
            tf.keras.layers.ReLU(),
            tf.keras.layers.Dense(1),
        ]
    )
    model.compile(
        tf.keras.optimizers.Adam(config.learning_rate),
        tf.keras.losses.BinaryCrossentropy(from_logits=True),
        metrics=[tf.keras.metrics.BinaryAccuracy("accuracy", threshold=0.0), "mae"],
    )
    return model


def data_fn(config):
    return tf.data.Dataset.from_tensor_slices(rings(2000, seed=1)).shuffle(2000, seed=config.seed)


def evaluation_data_fn(config):
    del config
    return tf.data.Dataset.from_tensor_slices(rings(500, seed=2))


def rings(count, seed):
    """Points on two rings, [count, 2], and the index of each point's ring, [count, 1]."""
    rng = np.random.default_rng(seed)
    y = rng.integers(2, size=[count, 1])
    angle = rng.uniform(0, 2 * np.pi, size=[count, 1])
    x = (1 + y) * np.concatenate([np.cos(angle), np.sin(angle)], axis=1)
    return (x + 0.1 * rng.normal(size=x.shape)).astype(np.float32), y.astype(np.float32)


make_learner = learners.from_keras(model_fn, data_fn, evaluation_data_fn, best="accuracy")
