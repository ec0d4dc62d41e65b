"""Discrete and continuous actions: the policy's distribution, its density, and its samples.

Shapes: N is any number of observations, A the number of actions or of their dimensions.
"""

import math
from collections.abc import Sequence

import numpy as np
import tensorflow as tf
from acme import specs

from agents.networks.actor_critic import Gaussian, GaussianPolicy, HeadedNetwork
from agents.networks.mlp import MakeTorso

# Log-probability of an illegal action: its probability is 0, and its products are finite.
_ILLEGAL = -1e9
_HALF_LOG_2_PI = 0.5 * math.log(2.0 * math.pi)
# Gauss-Hermite quadrature: means over a standard normal x are sums of weight * f(node).
_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(32)
_WEIGHTS /= _WEIGHTS.sum()


class CategoricalActions:
    """Numbers, drawn by their logits.

    Attributes:
      is_discrete: whether actions are numbers.
      extras_spec: what the learner needs of an action besides itself, by name.
    """

    is_discrete = True

    def __init__(self, spec: specs.DiscreteArray):
        """Stores the number of actions."""
        self._num_actions = int(spec.num_values)
        self.extras_spec: dict[str, specs.Array] = {}

    def make_policy(self, layers: Sequence[int], make_torso: MakeTorso, name: str) -> HeadedNetwork:
        """Makes an unbuilt policy: [N, F] features -> parameters of a distribution, [N, A]."""
        return HeadedNetwork(layers, self._num_actions, make_torso, name)

    def masked(self, outputs: tf.Tensor, mask: tf.Tensor | None) -> tf.Tensor:
        """Returns the parameters without illegal actions; mask: see `StateObservations.mask`.

        After the end of an episode no action is legal, and all are equal.
        """
        return outputs if mask is None else tf.where(mask > 0, outputs, _ILLEGAL)

    def log_prob(
        self, outputs: tf.Tensor, action: tf.Tensor, extras: dict[str, tf.Tensor]
    ) -> tf.Tensor:
        """Returns the log-density of actions with their extras, [N]."""
        del extras
        return -tf.nn.sparse_softmax_cross_entropy_with_logits(action, outputs)

    def entropy(self, outputs: tf.Tensor) -> tf.Tensor:
        """Returns the entropies in nats, [N]."""
        log_probs = tf.nn.log_softmax(outputs)
        return -tf.reduce_sum(tf.exp(log_probs) * log_probs, axis=-1)

    def best(self, outputs: tf.Tensor) -> tf.Tensor:
        """Returns the actions without exploration, [N, A] or [N]."""
        return tf.argmax(outputs, axis=-1, output_type=tf.int32)

    def sample(
        self, outputs: np.ndarray, random: np.random.Generator
    ) -> tuple[np.int32, np.float32, dict[str, np.ndarray]]:
        """Draws an action for one observation: the action, its log-density and its extras.

        It has the highest logit, each with Gumbel noise.
        """
        action = np.argmax(outputs + random.gumbel(size=outputs.shape))
        highest = outputs.max()
        log_sum = highest + np.log(np.exp(outputs - highest).sum())
        return np.int32(action), np.float32(outputs[action] - log_sum), {}


class GaussianActions:
    """Vectors a = tanh(u), u from a diagonal Gaussian; see `CategoricalActions` for the methods.

    Densities are those of u, which actors record, because it cannot be computed from an action near
    1. tanh is one to one, so that the ratio of two densities of u is that of a. The entropy is that
    of a: that of u grows with the standard deviation for ever.
    """

    is_discrete = False

    def __init__(self, spec: specs.BoundedArray):
        """Stores the number of dimensions."""
        (self._size,) = spec.shape
        self.extras_spec = {"preactivation": specs.Array((self._size,), np.float32, "u")}

    def make_policy(
        self, layers: Sequence[int], make_torso: MakeTorso, name: str
    ) -> GaussianPolicy:
        """See `CategoricalActions`."""
        return GaussianPolicy(layers, self._size, make_torso, name)

    def masked(self, outputs: Gaussian, mask: tf.Tensor | None) -> Gaussian:
        """See `CategoricalActions`; there are no masks."""
        del mask
        return outputs

    def log_prob(
        self, outputs: Gaussian, action: tf.Tensor, extras: dict[str, tf.Tensor]
    ) -> tf.Tensor:
        """See `CategoricalActions`."""
        del action
        noise = (extras["preactivation"] - outputs.mean) / outputs.stddev
        each = -0.5 * tf.square(noise) - tf.math.log(outputs.stddev) - _HALF_LOG_2_PI
        return tf.reduce_sum(each, axis=-1)

    def entropy(self, outputs: Gaussian) -> tf.Tensor:
        """See `CategoricalActions`: the entropy of u, plus the mean of log(da/du) by quadrature."""
        of_u = tf.math.log(outputs.stddev) + 0.5 + _HALF_LOG_2_PI  # [N, A]
        spread = outputs.stddev[..., tf.newaxis] * tf.constant(_NODES, tf.float32)
        u = outputs.mean[..., tf.newaxis] + spread  # [N, A, nodes]
        log_slopes = 2.0 * (math.log(2.0) - u - tf.nn.softplus(-2.0 * u))  # log(1 - tanh(u)^2)
        means = tf.linalg.matvec(log_slopes, tf.constant(_WEIGHTS, tf.float32))  # [N, A]
        return tf.reduce_sum(of_u + means, axis=-1)

    def best(self, outputs: Gaussian) -> tf.Tensor:
        """See `CategoricalActions`."""
        return tf.tanh(outputs.mean)

    def sample(
        self, outputs: Gaussian, random: np.random.Generator
    ) -> tuple[np.ndarray, np.float32, dict[str, np.ndarray]]:
        """See `CategoricalActions`."""
        noise = random.standard_normal(outputs.mean.shape, np.float32)
        u = outputs.mean + outputs.stddev * noise
        each = -0.5 * np.square(noise) - np.log(outputs.stddev) - np.float32(_HALF_LOG_2_PI)
        return np.tanh(u), np.float32(each.sum()), {"preactivation": u}


Actions = CategoricalActions | GaussianActions
