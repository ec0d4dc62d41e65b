"""Distributions of the return on fixed atoms: their losses, and the range that the atoms span.

Bellemare et al. 2017, "A Distributional Perspective on Reinforcement Learning" (arXiv:1707.06887).
Shapes: B is the batch, Z the number of atoms.
"""

import dataclasses

import numpy as np
import tensorflow as tf
from acme import specs

from agents.config import MAX_RETURN, CategoricalSettings
from agents.learning.value_scale import BOUND
from rl_replicator.errors import ConfigError

# How much the initial logits fall from atom to atom, away from a return of 0: steep enough for a
# mean near 0, and flat enough that every atom stays within reach.
_PRIOR_SLOPE = 0.2


def logits_around_zero(atoms: np.ndarray) -> np.ndarray:
    """Logits of a distribution over returns whose mode is the atom nearest to a return of 0.

    A critic that starts in the middle of a one-sided value range takes thousands of steps to come
    down. Until then, the policy follows a critic that has learned only that everything gets worse,
    and saturates: on reacher:hard it never recovered. DrQ-v2's scalar critic also starts near 0.

    Args:
      atoms: [Z] float32, evenly spaced.

    Returns:
      [Z] float32, the largest 0.
    """
    distances = np.abs(atoms)
    return -_PRIOR_SLOPE * (distances - distances.min()) / (atoms[1] - atoms[0])


def project_categorical(r_t, d_t, probs_t, atoms):
    """Projects the distribution of `r_t + d_t * Z` onto the fixed support of Z.

    Bellemare et al. 2017, Algorithm 1: each atom is moved to `clip(r + d z)` and its mass is shared
    between the two nearest atoms of the support, in proportion to how near they are.

    Args:
      r_t: [B] float32 n-step return, discounted by the adder.
      d_t: [B] float32 gamma**n * prod(discounts); 0 after termination.
      probs_t: [B, Z] float32 probabilities on `atoms` at the bootstrap observation.
      atoms: [Z] float32 evenly spaced, increasing support.

    Returns:
      [B, Z] float32 probabilities; each row sums to the sum of its row in `probs_t`.
    """
    num_atoms = atoms.shape[0]
    spacing = (atoms[-1] - atoms[0]) / (num_atoms - 1)
    moved = r_t[:, None] + d_t[:, None] * atoms[None, :]  # [B, Z]
    position = (tf.clip_by_value(moved, atoms[0], atoms[-1]) - atoms[0]) / spacing  # in [0, Z-1]
    lower = tf.floor(position)
    to_upper = position - lower
    # A scatter into B rows of Z+1 cells costs Z per example, where the textbook's triangular kernel
    # costs Z * Z. The spare cell takes the (always zero) upper share of the last atom.
    row = tf.range(tf.shape(probs_t)[0])[:, None] * (num_atoms + 1)
    cell = tf.reshape(row + tf.cast(lower, tf.int32), [-1])
    num_cells = tf.shape(probs_t)[0] * (num_atoms + 1)
    projected = tf.math.unsorted_segment_sum(
        tf.concat(
            [tf.reshape(probs_t * (1.0 - to_upper), [-1]), tf.reshape(probs_t * to_upper, [-1])], 0
        ),
        tf.concat([cell, cell + 1], 0),
        num_cells,
    )
    return tf.reshape(projected, [-1, num_atoms + 1])[:, :num_atoms]  # [B, Z]


def categorical_td_loss(logits_tm1, r_t, d_t, probs_t, atoms):
    """Cross-entropy of the critic to the projected n-step target, per example.

    Bellemare et al. 2017, Algorithm 1 (arXiv:1707.06887), with n-step returns: the term
    d(T Z_target, Z) of D4PG's critic loss.

    Args:
      logits_tm1: [B, Z] float32, online critic at the stored action.
      r_t: [B] n-step return, discounted by the adder.
      d_t: [B] gamma**n * prod(discounts); 0 after termination.
      probs_t: [B, Z] target critic at the bootstrap observation.
      atoms: [Z] evenly spaced, increasing support shared by both critics.

    Returns:
      [B] losses in nats, and the [B, Z] targets. No gradient reaches the target.
    """
    target = tf.stop_gradient(project_categorical(r_t, d_t, probs_t, atoms))
    losses = tf.nn.softmax_cross_entropy_with_logits(labels=target, logits=logits_tm1)
    return losses, target


def kl_priorities(losses, target_probs):
    """Computes KL(target || critic) per example: the part of the loss that learning can remove.

    The cross-entropy holds the target's own entropy, which no critic can reduce; without it, a
    transition that is noisy but fully learned would keep a high priority.

    Args:
      losses: [B] float32 cross-entropies in nats.
      target_probs: [B, Z] float32 projected targets.

    Returns:
      [B] float32, not negative. No gradient.
    """
    entropy = -tf.reduce_sum(tf.math.xlogy(target_probs, target_probs), axis=-1)
    return tf.stop_gradient(tf.maximum(losses - entropy, 0.0))


def edge_mass(probs, mean=tf.reduce_mean):
    """Computes the probability on the first and the last atom, averaged over the batch.

    A large mass means that the value range is too narrow and clips returns.

    Args:
      probs: [B, Z] float32.
      mean: [B] -> [], over the rows that count.

    Returns:
      Two scalars: the mass on the lowest and on the highest atom.
    """
    return mean(probs[:, 0]), mean(probs[:, -1])


@dataclasses.dataclass(frozen=True)
class ValueRange:
    """The returns that the atoms of a critic span.

    Attributes:
      config: the agent's settings.
      rewards: spec of the environment's rewards, with or without bounds.
      discount: gamma.
    """

    config: CategoricalSettings
    rewards: specs.Array
    discount: float

    @property
    def follows_returns(self) -> bool:
        """Whether rewards are divided by the spread of the returns, see `CategoricalSettings`.

        Some specs use float32's greatest number where rewards are unbounded.
        """
        low, high = self._bounds()
        is_bounded = abs(low) <= MAX_RETURN and abs(high) <= MAX_RETURN
        return self.config.value_scale == "returns" or not is_bounded

    def atoms(self) -> np.ndarray:
        """Returns the support of the critic: [Z] float32, evenly spaced.

        If rewards are divided by the spread of the returns, it is that of the divided returns.

        Raises:
          ConfigError: if the range is empty, too narrow for float32, or given on one side
          only, if the environment does not bound its rewards.
        """
        num_atoms = self.config.num_atoms
        given = self.config.value_min, self.config.value_max
        if self.follows_returns and self.config.value_scale == "bounds" and given != (None, None):
            raise ConfigError(
                "expected both --agent.value-min and --agent.value-max, as the environment does "
                f"not bound its rewards, got {given[0]} and {given[1]}; pass both, or neither"
            )
        low, high = (-BOUND, BOUND) if self.follows_returns else self._bounds()
        if low >= high:
            raise ConfigError(
                f"--agent.value-min: expected less than the highest return ({high:g}), got "
                f"{low:g}; pass --agent.value-min and --agent.value-max"
            )
        atoms = np.linspace(low, high, num_atoms, dtype=np.float32)
        if not (np.diff(atoms) > 0).all():
            raise ConfigError(
                f"expected a range of returns whose {num_atoms} atoms differ in float32, "
                f"got {low!r} to {high!r}; "
                "pass --agent.value-min and --agent.value-max further apart"
            )
        return atoms

    def prior_logits(self) -> np.ndarray:
        """Returns the logits of a new critic in every state, [Z] float32."""
        atoms = self.atoms()
        is_uniform = self.config.critic_prior == "uniform"
        return np.zeros_like(atoms) if is_uniform else logits_around_zero(atoms)

    def highest_priority(self) -> float:
        """Returns the highest priority that a transition can have for a critic of the prior.

        KL(target || prior) is greatest where all of the target lies on the least probable atom. For
        a uniform prior it is log(atoms).
        """
        logits = self.prior_logits().astype(np.float64)
        # For logits far from 0, all exponentials could be 0 without the shift.
        return float(np.log(np.exp(logits - logits.max()).sum()) + logits.max() - logits.min())

    def _bounds(self) -> tuple[float, float]:
        """Returns the lowest and the highest return.

        The sum of gamma**t over all t is 1 / (1 - gamma). An episode may end at any step, with
        returns near 0. So returns lie between min(lowest reward, 0) and max(highest reward, 0),
        each times this sum.
        """
        horizon = 1.0 / (1.0 - self.discount)
        low, high = self.config.value_min, self.config.value_max
        if low is None:
            low = min(0.0, float(getattr(self.rewards, "minimum", -np.inf))) * horizon
        if high is None:
            high = max(0.0, float(getattr(self.rewards, "maximum", np.inf))) * horizon
        return low, high
