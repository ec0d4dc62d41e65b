"""Losses of a TD error for critics that predict the expected return, and importance weights."""

from collections.abc import Callable

import tensorflow as tf

from agents.registry import check_shape, find_part
from agents.replay.config import ReplayConfig
from agents.replay.transitions import Sample
from rl_replicator import collectives

TDLoss = Callable[[tf.Tensor], tf.Tensor]
_OPTION = "agent.td_loss"


def squared(td_errors):
    """Half of the squared error: L = e**2 / 2.

    Args:
      td_errors: float32 of any shape.

    Returns:
      As `td_errors`.
    """
    return 0.5 * tf.square(td_errors)


def huber(td_errors):
    """The Huber loss with threshold 1: e**2 / 2 for |e| <= 1, else |e| - 1 / 2.

    Huber 1964; used for TD errors by Mnih et al. 2015.

    Args:
      td_errors: float32 of any shape.

    Returns:
      As `td_errors`.
    """
    size = tf.abs(td_errors)
    return tf.where(size <= 1.0, 0.5 * tf.square(td_errors), size - 0.5)


TD_LOSSES = {"squared": squared, "huber": huber}


def find_td_loss(name: str) -> TDLoss:
    """Returns the function that `--agent.td-loss` names: TD errors -> losses of the same shape.

    Raises:
      ConfigError: if there is none.
    """
    return find_part(name, TD_LOSSES, _OPTION)


def checked_td_loss(td_loss: TDLoss) -> TDLoss:
    """Returns the function with a check of its results.

    Args:
      td_loss: TD errors -> losses of the same shape. It may be user-defined.

    Returns:
      The same, but it raises ConfigError for losses of another shape.
    """

    def losses_of(td_errors: tf.Tensor) -> tf.Tensor:
        losses = tf.convert_to_tensor(td_loss(td_errors))
        check_shape(_OPTION, "losses", losses.shape, td_errors.shape, each="TD error")
        return losses

    return losses_of


def importance_weights(probabilities, table_size, exponent):
    """Weights that undo the bias of prioritized sampling, before they are normalised.

    Schaul et al. 2016, section 3.4: w_i = (N P(i))**-beta.

    Args:
      probabilities: [B] float64, P(i) at the moment of sampling.
      table_size: [B] int64, N, the number of items in the table then.
      exponent: scalar beta in [0, 1]; 1 corrects fully.

    Returns:
      [B] float32 positive weights.
    """
    n_p = tf.cast(table_size, tf.float64) * tf.cast(probabilities, tf.float64)
    return tf.cast(tf.pow(n_p, -tf.cast(exponent, tf.float64)), tf.float32)


def importance_exponent(config: ReplayConfig, step: tf.Tensor, total_steps: int) -> tf.Tensor:
    """beta, which grows linearly from its start to its end over the learner steps of a run.

    Args:
      config: the config of the replay table.
      step: learner steps done, an integer scalar.
      total_steps: learner steps of the run.

    Returns:
      float32 scalar.
    """
    progress = tf.minimum(1.0, tf.cast(step, tf.float32) / float(total_steps))
    start, end = config.importance_exponent_start, config.importance_exponent_end
    return start + progress * (end - start)


def normalized_weights(
    sample: Sample, config: ReplayConfig, step: tf.Tensor, total_steps: int
) -> tf.Tensor:
    """Importance weights of a batch, divided by the largest one of the global batch.

    So they can only scale updates down. They are all 1 if the table samples uniformly.

    Args:
      sample: a batch of this replica.
      config: the config of the replay table.
      step: learner steps done, an integer scalar.
      total_steps: learner steps of the run.

    Returns:
      [B] float32 in (0, 1].
    """
    if config.priority_exponent == 0:
        return tf.ones_like(sample.probabilities, tf.float32)
    exponent = importance_exponent(config, step, total_steps)
    weights = importance_weights(sample.probabilities, sample.table_size, exponent)
    return weights / collectives.all_max(tf.reduce_max(weights))
