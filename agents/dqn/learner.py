"""The learner's variables and one step of DQN, written for a single device."""

from collections.abc import Callable
from typing import Any

import sonnet as snt
import tensorflow as tf

import rl_replicator as rr
from agents.dqn import losses
from agents.dqn.config import DQNConfig
from agents.dqn.networks import QNetworks
from agents.dqn.values import Values
from agents.learning import diagnostics, value_scale
from agents.learning.losses import normalized_weights
from agents.learning.optimizers import make_optimizer
from agents.learning.replay_learner import StepOutput
from agents.learning.targets import update_targets
from agents.observations import PixelObservations, StateObservations
from agents.replay.transitions import Sample
from rl_replicator.collectives.randomness import StepSeeds


class DQNLearner(tf.Module):
    """Owns the variables of DQN and the step that trains them.

    Build it inside `replicator.scope()`; the caller then replicates `step_fn`.
    """

    def __init__(
        self,
        config: DQNConfig,
        online: QNetworks,
        target: QNetworks,
        values: Values,
        total_steps: int,
        observations: StateObservations | PixelObservations,
        replicator: rr.Replicator,
        scale: Callable[[Any], tf.Tensor],
    ):
        """Makes the optimizer.

        Args:
          config: hyper-parameters.
          online: built networks.
          target: built networks with the same weights.
          values: the meaning of their outputs.
          total_steps: learner steps over which the importance exponent grows to its final value.
          observations: the parts that depend on the kind of observation.
          replicator: the replicator of the current scope.
          scale: the extras of a batch -> a scalar by which rewards are divided.
        """
        super().__init__(name="dqn")
        self._config = config
        self._values = values
        self._scale = scale
        self._total_steps = total_steps
        self._augment, self._mask = observations.augment, observations.mask
        self.step_seed = StepSeeds()
        self.online, self.target = online, target
        self._optimizer = make_optimizer(
            replicator,
            config.critic_learning_rate,
            config.weight_decay,
            online.trainable_variables,
            max_global_norm=config.max_gradient_norm,
        )
        self.num_steps = tf.Variable(0, dtype=tf.int64, trainable=False, name="num_steps")

    @property
    def acting_networks(self) -> dict[str, snt.Module]:
        """The online networks that act."""
        return self.online._asdict()

    @tf.autograph.experimental.do_not_convert
    def step_fn(self, sample: Sample) -> StepOutput:
        """One update from one batch.

        Equation 3 of Rainbow (Hessel et al. 2018, arXiv:1710.02298): the n-step target bootstraps
        from the target network at the action that the online network prefers.

        Args:
          sample: a batch of this replica.

        Returns:
          The new priorities and the metrics.
        """
        config, online, values = self._config, self.online, self._values
        o_tm1, a_tm1, r_t, d_t, o_t, extras = sample.transition
        scale, mask_t = self._scale(extras), self._mask(o_t)  # [], [B, A] or None
        o_tm1 = self._augment(o_tm1, self.step_seed(self.num_steps, 0))
        o_t = self._augment(o_t, self.step_seed(self.num_steps, 1))

        target_t = self.target.outputs(o_t)  # [B, A, Z]
        choosing_t = online.outputs(o_t) if config.double_q else target_t  # [B, A, Z]
        a_t = losses.best_action(losses.legal_values(values.mean(choosing_t), mask_t))  # [B]
        best_t = losses.of_action(target_t, a_t)  # [B, Z]

        with tf.GradientTape() as tape:
            outputs_tm1 = losses.of_action(online.outputs(o_tm1), a_tm1)  # [B, Z]
            td_losses, priorities = values.td_loss(
                outputs_tm1, r_t / scale, d_t, best_t
            )  # [B] each
            weights = normalized_weights(
                sample, config.replay, self.num_steps, self._total_steps
            )  # [B]
            loss = tf.reduce_mean(weights * td_losses)

        variables = online.trainable_variables
        gradients = tape.gradient(loss, variables)
        self._optimizer.apply(gradients, variables)
        self.num_steps.assign_add(1)
        is_due = tf.equal(self.num_steps % config.target_update_period, 0)
        update_targets(self.target, online, config.target_update_rate, is_due)
        return StepOutput(
            keys=sample.keys,
            priorities=priorities,
            metrics={
                "critic_loss": loss,
                "q_mean": scale * tf.reduce_mean(values.mean(outputs_tm1)),
                **values.metrics(outputs_tm1),
                **value_scale.metrics(self._scale, scale),
                **diagnostics.critic_metrics(gradients, variables, weights, priorities),
            },
        )
