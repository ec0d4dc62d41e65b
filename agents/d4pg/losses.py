"""The losses of D4PG, as pure functions of tensors.

Barth-Maron et al. 2018, "Distributed Distributional Deterministic Policy Gradients"
(arXiv:1804.08617), on the categorical distribution of Bellemare et al. 2017 (arXiv:1707.06887).
Shapes: B is the batch, Z the number of atoms, A the number of action dimensions.
"""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from agents.registry import check_shape, find_part
from rl_replicator.errors import ConfigError

# See `categorical_td_loss`.
CriticLoss = Callable[..., Any]
_OPTION = "agent.critic_loss"


def _check_atoms(atoms: tf.Tensor) -> None:
    if atoms.shape.rank != 1:
        raise ValueError(
            f"expected atoms of rank 1, evenly spaced and increasing; got shape {atoms.shape}"
        )


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

    Raises:
      ValueError: if `atoms` is not of rank 1.
    """
    _check_atoms(atoms)
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


def each_critic(logits):
    """Returns the logits of each critic, a list of [B, Z], given [B, Z] or those of two [B, 2, Z].

    Args:
      logits: float32.
    """
    return [logits] if logits.shape.rank == 2 else tf.unstack(logits, axis=1)


def pessimistic(logits, atoms):
    """Chooses the distribution with the smaller mean, per example.

    The clipped pair of Fujimoto et al. 2018 (TD3, equation 10) for distributions, as in FastTD3
    (Seo et al. 2025, arXiv:2505.22642).

    Args:
      logits: [B, Z] float32 of one critic, or [B, 2, Z] of two.
      atoms: [Z] float32 support of both.

    Returns:
      [B, Z] float32 logits.
    """
    if logits.shape.rank == 2:
        return logits
    first, second = each_critic(logits)
    means = [tf.linalg.matvec(tf.nn.softmax(x), atoms) for x in (first, second)]  # [B] each
    return tf.where((means[0] <= means[1])[:, None], first, second)


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

    Raises:
      ValueError: if `atoms` is not of rank 1.
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


def action_gradient(dq_da, max_norm: float | None):
    """Clips the deterministic policy gradient's dQ/da per example.

    Silver et al. 2014 (DPG): the policy follows dQ/da . da/dtheta. D4PG's released settings clip
    the norm of dQ/da to 1, so that one steep example does not outweigh the batch.

    Args:
      dq_da: [B, A] float32.
      max_norm: largest L2 norm of a row, or None for no clipping.

    Returns:
      [B, A] float32.
    """
    return dq_da if max_norm is None else tf.clip_by_norm(dq_da, max_norm, axes=[-1])


def edge_mass(probs):
    """Computes the probability on the first and the last atom, averaged over the batch.

    A large mass means that the value range is too narrow and clips returns.

    Args:
      probs: [B, Z] float32.

    Returns:
      Two scalars: the mass on the lowest and on the highest atom.
    """
    return tf.reduce_mean(probs[:, 0]), tf.reduce_mean(probs[:, -1])


CRITIC_LOSSES = {"categorical": categorical_td_loss}


def find_critic_loss(name: str) -> CriticLoss:
    """Returns the function that `--agent.critic-loss` names (see `categorical_td_loss`).

    Raises:
      ConfigError: if there is no such function.
    """
    return find_part(name, CRITIC_LOSSES, _OPTION)


def checked(critic_loss: CriticLoss) -> CriticLoss:
    """Returns the function with a check of its results.

    Args:
      critic_loss: function with the arguments and results of `categorical_td_loss`. It may be
        user-defined.

    Returns:
      The same function, but it raises ConfigError if its results are not a pair, or have other
      shapes.
    """

    def losses_of(logits_tm1, r_t, d_t, probs_t, atoms):
        results = critic_loss(logits_tm1, r_t, d_t, probs_t, atoms)
        # A tensor could be unpacked, too.
        if not (isinstance(results, tuple | list) and len(results) == 2):
            raise ConfigError(
                "--agent.critic-loss: expected a function that returns a pair, losses [B] and "
                f"targets [B, Z], got {type(results).__name__}; return these two"
            )
        losses, targets = (tf.convert_to_tensor(result) for result in results)
        check_shape(_OPTION, "losses", losses.shape, r_t.shape)
        check_shape(_OPTION, "targets", targets.shape, logits_tm1.shape)
        return losses, targets

    return losses_of
