"""Torsos with weights that receive no gradient."""

import sonnet as snt
import tensorflow as tf


class RandomFeatures(snt.Module):
    """[B, N] -> [B, sizes[-1]]: sines of a fixed random projection, then a linear layer."""

    def __init__(self, sizes, name):
        super().__init__(name=name)
        self._num_features = sizes[0]
        self._linear = snt.Linear(sizes[-1], name="linear")

    @snt.once
    def _build(self, size):
        projection = tf.random.normal([size, self._num_features])
        self.projection = tf.Variable(projection, trainable=False, name="projection")

    def __call__(self, x):
        self._build(x.shape[-1])
        return self._linear(tf.sin(x @ self.projection))


class Idle(RandomFeatures):
    """The same with a trainable variable on which nothing depends."""

    def __init__(self, sizes, name):
        super().__init__(sizes, name)
        self.idle = tf.Variable([1.0], name="idle")
