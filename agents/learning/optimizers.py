"""The optimizers of agents."""

from collections.abc import Sequence

import tensorflow as tf

import rl_replicator as rr


def make_optimizer(
    replicator: rr.Replicator,
    learning_rate: float,
    weight_decay: float,
    variables: Sequence[tf.Variable],
    reduction: str = "mean",
    max_global_norm: float | None = None,
) -> rr.optimizers.Adam:
    """Makes Adam, or AdamW, for some variables; called inside `replicator.scope()`.

    Its slots exist, as a checkpoint can only be restored into existing variables.

    Args:
      replicator: the replicator of the scope.
      learning_rate: step size.
      weight_decay: AdamW's decay; 0 for Adam.
      variables: what it will train.
      reduction: see `rr.Replicator.wrap_optimizer`.
      max_global_norm: see `rr.Replicator.wrap_optimizer`.
    """
    adam = rr.optimizers.Adam(learning_rate)
    made = rr.optimizers.AdamW(learning_rate, weight_decay) if weight_decay else adam
    optimizer = replicator.wrap_optimizer(
        made, reduction=reduction, max_global_norm=max_global_norm
    )
    replicator.build_optimizer(optimizer, variables)
    return optimizer
