"""Importance weights for prioritized sampling (Schaul et al. 2016, arXiv:1511.05952)."""

import tensorflow as tf

from agents.replay.config import ReplayConfig
from agents.replay.transitions import Sample
from rl_replicator import collectives


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
