"""Figures of a learner step that show why an agent does not learn.

`agents.runs.advice` reads them at the end of a run. They are cheap: only norms of values that the
step computes anyway.
"""

from collections.abc import Callable, Sequence

import tensorflow as tf

# Actions span [-1, 1]; beyond this size, tanh passes less than 2 % of a gradient.
_SATURATED = 0.99
# A unit is dormant below this share of the mean of its layer (tau of Sokar et al. 2023).
_DORMANT = 0.025
_HEAD = "head"


def step_metrics(
    critic_gradients: Sequence[tf.Tensor | None],
    critic_variables: Sequence[tf.Variable],
    policy_gradients: Sequence[tf.Tensor | None],
    action: tf.Tensor,
    weights: tf.Tensor,
    priorities: tf.Tensor,
    mean: Callable = tf.reduce_mean,
) -> dict[str, tf.Tensor]:
    """Computes all of these figures, on one replica and before the clipping by norm.

    Args:
      critic_gradients: the gradients of the critic's loss; None for a variable without influence.
      critic_variables: one for each gradient.
      policy_gradients: the gradients of the policy's loss.
      action: [M, A] actions of the policy, in [-1, 1].
      weights: [B] importance weights.
      priorities: [B] new priorities.
      mean: [M] -> [], over the actions that count.

    Returns:
      Scalars by name, for `StepOutput.metrics`.
    """
    return {
        "policy_gradient_norm": tf.linalg.global_norm(policy_gradients),
        # The share of dimensions at their bounds.
        "action_saturation": mean(
            tf.reduce_mean(tf.cast(tf.abs(action) > _SATURATED, tf.float32), axis=-1)
        ),
        **critic_metrics(critic_gradients, critic_variables, weights, priorities),
    }


def critic_metrics(
    critic_gradients: Sequence[tf.Tensor | None],
    critic_variables: Sequence[tf.Variable],
    weights: tf.Tensor,
    priorities: tf.Tensor,
) -> dict[str, tf.Tensor]:
    """Computes those of `step_metrics` that need no policy; see there for the arguments."""
    mean_square = tf.reduce_mean(tf.square(weights))
    spread = tf.math.reduce_std(priorities)
    return {
        "critic_gradient_norm": tf.linalg.global_norm(critic_gradients),
        "dormant_share": dormant_share(critic_gradients, critic_variables),
        # Kish's effective sample size, as a share: (sum w)^2 / (B sum w^2).
        "effective_batch_share": tf.square(tf.reduce_mean(weights)) / mean_square,
        # The coefficient of variation; 0 if all priorities are 0.
        "priority_variation": tf.math.divide_no_nan(spread, tf.reduce_mean(priorities)),
    }


def dormant_share(
    gradients: Sequence[tf.Tensor | None], variables: Sequence[tf.Variable]
) -> tf.Tensor:
    """Computes the share of hidden units that the batch does not train.

    The dormant neurons of Sokar et al. 2023 (arXiv:2302.12902), found by the gradient of a unit's
    incoming weights in place of its activation: a unit is dormant if the norm of that gradient is
    at most 2.5 % of the mean over its layer. Last layers, named "head", are left out: an atom
    without mass is not a dormant unit.

    Args:
      gradients: the gradients of the loss; None for a variable that does not influence it.
      variables: one for each gradient; those of rank 2 are the weights of a layer, [inputs, units].

    Returns:
      float32 scalar: the mean over layers; 0 without any layer.
    """
    shares = []
    for gradient, variable in zip(gradients, variables, strict=True):
        if len(variable.shape) == 2 and _HEAD not in variable.name.split("/"):
            if gradient is None:
                gradient = tf.zeros_like(variable)
            norms = tf.norm(gradient, axis=0)  # [units]
            is_dormant = norms <= _DORMANT * tf.reduce_mean(norms)
            shares.append(tf.reduce_mean(tf.cast(is_dormant, tf.float32)))
    return tf.add_n(shares) / len(shares) if shares else tf.constant(0.0)
