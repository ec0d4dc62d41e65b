"""The learner's variables and one step of TD3, written for a single device."""

from collections.abc import Callable
from typing import Any

import sonnet as snt
import tensorflow as tf

import rl_replicator as rr
from agents.learning import diagnostics, value_scale
from agents.learning.losses import TDLoss, checked_td_loss, normalized_weights
from agents.learning.optimizers import make_optimizer
from agents.learning.replay_learner import StepOutput
from agents.learning.targets import update_targets
from agents.networks.actor_critic import ActorCritic, check_deterministic, preactivation_penalty
from agents.networks.torsos import (
    Statistics,
    batch_norm,
    has_batch_norm,
    joint_values,
    to_unit_length,
)
from agents.replay.transitions import Sample
from agents.td3 import losses
from agents.td3.config import TD3Config
from rl_replicator import collectives
from rl_replicator.collectives.randomness import StepSeeds, normal


class TD3Learner(tf.Module):
    """Owns the variables of TD3 and the step that trains them.

    Build it inside `replicator.scope()`; the caller then replicates `step_fn`.
    """

    def __init__(
        self,
        config: TD3Config,
        online: ActorCritic,
        target: ActorCritic,
        total_steps: int,
        augment: Callable[[tf.Tensor, tf.Tensor], tf.Tensor],
        replicator: rr.Replicator,
        td_loss: TDLoss,
        scale: Callable[[Any], tf.Tensor],
    ):
        """Makes the optimizers.

        Args:
          config: hyper-parameters.
          online: built networks; the critic is a `TwinCritic`.
          target: built networks with the same weights.
          total_steps: learner steps over which the importance exponent grows to its final value.
          augment: (observations [B, ...], seed [2] int32) -> observations to train on.
          replicator: the replicator of the current scope.
          td_loss: TD errors [B, 2] -> losses [B, 2].
          scale: the extras of a batch -> a scalar by which rewards are divided.
        """
        super().__init__(name="td3")
        check_deterministic(online.policy)
        self._config = config
        self._td_loss = checked_td_loss(td_loss)
        self._scale = scale
        self._total_steps = total_steps
        self._augment = augment
        self.step_seed = StepSeeds()
        self.online, self.target = online, target
        # It is applied inside a `tf.cond`, only when an update is due, and gradients cannot be
        # averaged over replicas there: the step averages them beforehand.
        rate, variables = config.policy_learning_rate, online.policy.trainable_variables
        self._policy_optimizer = make_optimizer(
            replicator, rate, config.weight_decay, variables, reduction="none"
        )
        rate, variables = config.critic_learning_rate, online.critic_variables
        self._critic_optimizer = make_optimizer(replicator, rate, config.weight_decay, variables)
        self.num_steps = tf.Variable(0, dtype=tf.int64, trainable=False, name="num_steps")

    @property
    def acting_networks(self) -> dict[str, snt.Module]:
        """The online networks that act."""
        return {"encoder": self.online.encoder, "policy": self.online.policy}

    @tf.autograph.experimental.do_not_convert
    def step_fn(self, sample: Sample) -> StepOutput:
        """One update of the critics and, when due, of the policy and the targets.

        Algorithm 1 of Fujimoto et al. 2018 (arXiv:1802.09477), with n-step returns.

        Args:
          sample: a batch of this replica.

        Returns:
          The new priorities and the metrics.
        """
        config, online = self._config, self.online
        o_tm1, a_tm1, r_t, d_t, o_t, extras = sample.transition
        scale = self._scale(extras)
        o_tm1 = self._augment(o_tm1, self.step_seed(self.num_steps, 0))
        o_t = self._augment(o_t, self.step_seed(self.num_steps, 1))
        s_t = self.target.encoder(o_t)  # [B, F]
        a_t, smoothed_t = self._target_actions(s_t)  # [B, A] each

        with tf.GradientTape() as tape:
            s_tm1 = online.encoder(o_tm1)  # [B, F]
            q_tm1, q_t = joint_values(
                online.critic, self.target.critic, (s_tm1, a_tm1), (s_t, smoothed_t)
            )  # [B, 2] each
            target_t = losses.clipped_double_q_target(r_t / scale, d_t, q_t)  # [B]
            td_errors = target_t[:, None] - q_tm1  # [B, 2]
            weights = normalized_weights(sample, config.replay, self.num_steps, self._total_steps)
            td_loss = tf.reduce_sum(self._td_loss(td_errors), axis=-1)  # [B]
            critic_loss = tf.reduce_mean(weights * td_loss)
        critic_gradients = tape.gradient(critic_loss, online.critic_variables)

        self.num_steps.assign_add(1)
        is_due = tf.equal(self.num_steps % config.policy_delay, 0)
        policy_gradients = self._policy_gradients(s_tm1, is_due)
        self._critic_optimizer.apply(critic_gradients, online.critic_variables)
        self._update_policy(policy_gradients, is_due)
        to_unit_length(online.policy, online.critic)
        update_targets(self.target, online, config.target_update_rate, is_due)
        priorities = tf.reduce_max(tf.abs(td_errors), axis=-1)
        return StepOutput(
            keys=sample.keys,
            priorities=priorities,
            metrics={
                "critic_loss": critic_loss,
                "q_mean": scale * tf.reduce_mean(q_tm1),
                **value_scale.metrics(self._scale, scale),
                # The policy's gradients are zero in steps without an update of it.
                **diagnostics.step_metrics(
                    critic_gradients,
                    online.critic_variables,
                    policy_gradients,
                    a_t,
                    weights,
                    priorities,
                ),
            },
        )

    def _target_actions(self, s_t: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the target policy's actions without and with noise, [B, A] each."""
        config = self._config
        with batch_norm(Statistics.BATCH):
            action = self.target.policy(s_t)  # [B, A]
        noise = normal(
            [tf.shape(action)[0], action.shape[1]], self.step_seed(self.num_steps, 2)
        )  # [B, A]
        smoothed = losses.smoothed_action(
            action, config.target_noise_sigma * noise, config.target_noise_clip
        )
        return action, smoothed

    def _policy_gradients(self, s_tm1: tf.Tensor, is_due: tf.Tensor) -> tuple[tf.Tensor, ...]:
        """Returns the policy's gradients, averaged over the replicas; zeros if none are due."""
        policy, penalty = self.online.policy, self._config.preactivation_penalty
        variables = policy.trainable_variables

        def compute() -> tuple[tf.Tensor, ...]:
            with tf.GradientTape(watch_accessed_variables=False) as tape:
                tape.watch(variables)
                with batch_norm(Statistics.TRAINING):
                    preactivations = policy.preactivations(s_tm1)
                q = self.online.critic(s_tm1, policy.squash(preactivations))
                loss = losses.policy_loss(q) + preactivation_penalty(preactivations, penalty)
            # A user-defined part may have a variable that the actions do not depend on.
            zero = tf.UnconnectedGradients.ZERO
            return tuple(tape.gradient(loss, variables, unconnected_gradients=zero))

        if has_batch_norm(policy):  # Replicas exchange its statistics, which a branch cannot.
            gradients = tuple(tf.cast(is_due, tf.float32) * g for g in compute())
        else:
            zeros = tuple(tf.zeros(v.shape) for v in variables)
            gradients = tf.cond(is_due, compute, lambda: zeros)
        return collectives.all_mean(gradients)

    def _update_policy(self, gradients: tuple[tf.Tensor, ...], is_due: tf.Tensor) -> None:
        def apply() -> None:
            self._policy_optimizer.apply(gradients, self.online.policy.trainable_variables)

        tf.cond(is_due, apply, lambda: None)
