"""The losses of D4PG, as pure functions of tensors.

Barth-Maron et al. 2018, "Distributed Distributional Deterministic Policy Gradients"
(arXiv:1804.08617). The loss of its critic is in `agents.learning.categorical`. Shapes: B is the
batch, Z the number of atoms, A the number of action dimensions.
"""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from agents.learning.categorical import categorical_td_loss
from agents.registry import check_shape, find_part
from rl_replicator.errors import ConfigError

# See `categorical_td_loss`.
CriticLoss = Callable[..., Any]
_OPTION = "agent.critic_loss"


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
