"""The learner's variables and one step of DQN, written for a single device."""

from collections.abc import Callable

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
from agents.learning.steps import MakeSteps
from agents.learning.targets import update_targets
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
        mask: Callable[[tf.Tensor], tf.Tensor | None],
        make_steps: MakeSteps,
        replicator: rr.Replicator,
        scale: Callable[..., tf.Tensor],
    ):
        """Makes the optimizer.

        Args:
          config: hyper-parameters.
          online: built networks.
          target: built networks with the same weights.
          values: the meaning of their outputs.
          total_steps: learner steps over which the importance exponent grows to its final value.
          mask: observations [M, ...] -> legal actions [M, A], or None if all are.
          make_steps: makes the steps that a batch trains.
          replicator: the replicator of the current scope.
          scale: (extras of a batch, valid) -> a scalar by which rewards are divided.
        """
        super().__init__(name="dqn")
        self._config = config
        self._values = values
        self._scale = scale
        self._total_steps = total_steps
        self._mask, self._make_steps = mask, make_steps
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
        steps = self._make_steps(sample, lambda stream: self.step_seed(self.num_steps, stream))
        scale = self._scale(steps.extras, steps.valid)  # []
        mask_t = self._mask(steps.next_observation)  # [M, A] or None
        _, s_t = steps.features(self.target.encoder)  # [M, F]
        target_t = self.target.policy(s_t)  # [M, A, Z]
        weights = normalized_weights(sample, config.replay, self.num_steps, self._total_steps)

        with tf.GradientTape() as tape:
            s_tm1, s_t = steps.features(online.encoder)  # [M, F] each
            outputs_tm1 = losses.of_action(online.policy(s_tm1), steps.action)  # [M, Z]
            choosing_t = online.policy(s_t) if config.double_q else target_t  # [M, A, Z]
            a_t = losses.best_action(losses.legal_values(values.mean(choosing_t), mask_t))  # [M]
            td_losses, priorities = values.td_loss(
                outputs_tm1, steps.reward / scale, steps.discount, losses.of_action(target_t, a_t)
            )  # [M] each
            loss = tf.reduce_mean(steps.weighted(weights) * td_losses)

        variables = online.trainable_variables
        gradients = tape.gradient(loss, variables)
        self._optimizer.apply(gradients, variables)
        self.num_steps.assign_add(1)
        is_due = tf.equal(self.num_steps % config.target_update_period, 0)
        update_targets(self.target, online, config.target_update_rate, is_due)
        priorities = steps.item_priorities(priorities)  # [B]
        return StepOutput(
            keys=sample.keys,
            priorities=priorities,
            metrics={
                "critic_loss": loss,
                "q_mean": scale * steps.mean(values.mean(outputs_tm1)),
                **values.metrics(outputs_tm1, steps.mean),
                **value_scale.metrics(self._scale, scale),
                **diagnostics.critic_metrics(gradients, variables, weights, priorities),
            },
        )
