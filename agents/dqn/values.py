"""What DQN's outputs for an action mean: a distribution of the return, or its mean.

Shapes: B is the batch, Z the number of outputs for one action.
"""

from collections.abc import Callable

import numpy as np
import tensorflow as tf

from agents.learning import categorical


class CategoricalValues:
    """The logits of probabilities on atoms (C51, Bellemare et al. 2017, arXiv:1707.06887).

    Attributes:
      initial_outputs: [Z] float32, the outputs of a new network for every action.
    """

    def __init__(self, atoms: np.ndarray, prior_logits: np.ndarray):
        """Stores the support, [Z] float32, and the logits of a new network, [Z] float32."""
        self._atoms = atoms
        self.initial_outputs = prior_logits

    def mean(self, outputs: tf.Tensor) -> tf.Tensor:
        """Returns expected returns: [..., Z] -> [...]."""
        return tf.reduce_sum(tf.nn.softmax(outputs) * self._atoms, axis=-1)

    def td_loss(
        self, outputs_tm1: tf.Tensor, r_t: tf.Tensor, d_t: tf.Tensor, outputs_t: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Computes the loss of each transition: the cross-entropy to the projected target.

        Args:
          outputs_tm1: [B, Z] online network at the stored action.
          r_t: [B] n-step return, discounted by the adder.
          d_t: [B] gamma**n * prod(discounts); 0 after termination.
          outputs_t: [B, Z] target network at the bootstrap observation and the best action.

        Returns:
          [B] losses, and [B] priorities, the KL divergences. No gradient reaches the target.
        """
        losses, targets = categorical.categorical_td_loss(
            outputs_tm1, r_t, d_t, tf.nn.softmax(outputs_t), tf.constant(self._atoms)
        )
        return losses, categorical.kl_priorities(losses, targets)

    def metrics(self, outputs: tf.Tensor, mean: Callable) -> dict[str, tf.Tensor]:
        """Returns scalars by name, given outputs [B, Z]: the mass at the edges of the support."""
        low, high = categorical.edge_mass(tf.nn.softmax(outputs), mean)
        return {"value_edge_mass_low": low, "value_edge_mass_high": high}


class ScalarValues:
    """One output, the expected return (Mnih et al. 2015), or a function of it.

    See `CategoricalValues` for the methods.
    """

    def __init__(
        self,
        td_loss: Callable[[tf.Tensor], tf.Tensor],
        scaled: Callable[[tf.Tensor], tf.Tensor] = tf.identity,
        unscaled: Callable[[tf.Tensor], tf.Tensor] = tf.identity,
    ):
        """Stores functions of float32 tensors of any shape.

        Args:
          td_loss: TD error -> loss.
          scaled: return -> output that stands for it.
          unscaled: the inverse of `scaled`.
        """
        self._td_loss, self._scaled, self._unscaled = td_loss, scaled, unscaled
        self.initial_outputs = np.zeros(1, np.float32)

    def mean(self, outputs: tf.Tensor) -> tf.Tensor:
        """See `CategoricalValues`."""
        return self._unscaled(tf.squeeze(outputs, axis=-1))

    def td_loss(
        self, outputs_tm1: tf.Tensor, r_t: tf.Tensor, d_t: tf.Tensor, outputs_t: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """See `CategoricalValues`: the loss of the TD error, and its absolute value."""
        target = tf.stop_gradient(self._scaled(r_t + d_t * self.mean(outputs_t)))  # [B]
        td_errors = target - tf.squeeze(outputs_tm1, axis=-1)  # [B]
        return self._td_loss(td_errors), tf.stop_gradient(tf.abs(td_errors))

    def metrics(self, outputs: tf.Tensor, mean: Callable) -> dict[str, tf.Tensor]:
        """See `CategoricalValues`: none."""
        del outputs, mean
        return {}


Values = CategoricalValues | ScalarValues
