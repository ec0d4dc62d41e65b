"""The learner's variables and one step of SAC, written for a single device."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import sonnet as snt
import tensorflow as tf

import rl_replicator as rr
from agents.learning import diagnostics, value_scale
from agents.learning.losses import TDLoss, checked_td_loss, normalized_weights
from agents.learning.optimizers import make_optimizer
from agents.learning.replay_learner import StepOutput
from agents.learning.targets import update_targets
from agents.networks.actor_critic import ActorCritic
from agents.networks.torsos import Statistics, batch_norm, joint_values, to_unit_length
from agents.replay.transitions import Sample
from agents.sac import losses
from agents.sac.config import SACConfig
from rl_replicator.collectives.randomness import StepSeeds, normal


class Target(NamedTuple):
    """The built target networks; the policy has none.

    Attributes:
      encoder: see `ActorCritic`.
      critic: see `ActorCritic`.
    """

    encoder: snt.Module
    critic: snt.Module


class SACLearner(tf.Module):
    """Owns the variables of SAC and the step that trains them.

    Build it inside `replicator.scope()`; the caller then replicates `step_fn`.
    """

    def __init__(
        self,
        config: SACConfig,
        online: ActorCritic,
        target: ActorCritic,
        total_steps: int,
        augment: Callable[[tf.Tensor, tf.Tensor], tf.Tensor],
        replicator: rr.Replicator,
        td_loss: TDLoss,
        scale: Callable[[Any], tf.Tensor],
    ):
        """Makes the optimizers and the temperature.

        Args:
          config: hyper-parameters.
          online: built networks; the critic is a `TwinCritic`, the policy a `GaussianPolicy`.
          target: built networks with the same weights, of which the policy is not used.
          total_steps: learner steps over which the importance exponent grows to its final value.
          augment: (observations [B, ...], seed [2] int32) -> observations to train on.
          replicator: the replicator of the current scope.
          td_loss: TD errors [B, 2] -> losses [B, 2].
          scale: the extras of a batch -> a scalar by which rewards are divided.
        """
        super().__init__(name="sac")
        self._config = config
        self._td_loss = checked_td_loss(td_loss)
        self._scale = scale
        self._total_steps = total_steps
        self._augment = augment
        self.step_seed = StepSeeds()
        self.online, self.target = online, Target(target.encoder, target.critic)
        self.log_temperature = tf.Variable(
            math.log(config.initial_temperature), name="log_temperature"
        )

        self._policy_optimizer, self._critic_optimizer, self._temperature_optimizer = (
            make_optimizer(replicator, rate, weight_decay, variables)
            for rate, weight_decay, variables in (
                (
                    config.policy_learning_rate,
                    config.weight_decay,
                    online.policy.trainable_variables,
                ),
                (config.critic_learning_rate, config.weight_decay, online.critic_variables),
                (config.temperature_learning_rate, 0.0, [self.log_temperature]),
            )
        )
        self.num_steps = tf.Variable(0, dtype=tf.int64, trainable=False, name="num_steps")

    @property
    def acting_networks(self) -> dict[str, snt.Module]:
        """The online networks that act."""
        return {"encoder": self.online.encoder, "policy": self.online.policy}

    @tf.autograph.experimental.do_not_convert
    def step_fn(self, sample: Sample) -> StepOutput:
        """One update of the critics, the policy, the temperature and the targets.

        Algorithm 1 of Haarnoja et al. 2018 (arXiv:1812.05905), with n-step returns.

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
        temperature = tf.exp(self.log_temperature)

        a_t, log_prob_t = self._sample_action(online.encoder(o_t), stream=2)  # [B, A], [B]
        s_t = self.target.encoder(o_t)  # [B, F]

        with tf.GradientTape() as critic_tape:
            s_tm1 = online.encoder(o_tm1)  # [B, F]
            q_tm1, q_t = joint_values(
                online.critic, self.target.critic, (s_tm1, a_tm1), (s_t, a_t)
            )  # [B, 2] each
            target_t = losses.soft_target(r_t / scale, d_t, q_t, log_prob_t, temperature)  # [B]
            td_errors = target_t[:, None] - q_tm1  # [B, 2]
            weights = normalized_weights(sample, config.replay, self.num_steps, self._total_steps)
            td_loss = tf.reduce_sum(self._td_loss(td_errors), axis=-1)  # [B]
            critic_loss = tf.reduce_mean(weights * td_loss)

        # Only the policy's own variables get gradients, so its loss does not train the encoder.
        policy_variables = online.policy.trainable_variables
        with tf.GradientTape(watch_accessed_variables=False) as policy_tape:
            policy_tape.watch(policy_variables)
            with batch_norm(Statistics.TRAINING):
                action, log_prob_tm1 = self._sample_action(s_tm1, stream=3)  # [B, A], [B]
            policy_loss = losses.policy_loss(
                online.critic(s_tm1, action), log_prob_tm1, temperature
            )
        with tf.GradientTape() as temperature_tape:
            temperature_loss = losses.temperature_loss(
                self.log_temperature, log_prob_tm1, self._target_entropy(action)
            )

        critic_gradients = critic_tape.gradient(critic_loss, online.critic_variables)
        policy_gradients = policy_tape.gradient(policy_loss, policy_variables)
        temperature_gradient = temperature_tape.gradient(temperature_loss, [self.log_temperature])
        self._critic_optimizer.apply(critic_gradients, online.critic_variables)
        self._policy_optimizer.apply(policy_gradients, policy_variables)
        to_unit_length(online.policy, online.critic)
        self._temperature_optimizer.apply(temperature_gradient, [self.log_temperature])
        self.num_steps.assign_add(1)
        update_targets(self.target, (online.encoder, online.critic), config.target_update_rate)
        priorities = tf.reduce_max(tf.abs(td_errors), axis=-1)
        return StepOutput(
            keys=sample.keys,
            priorities=priorities,
            metrics={
                "critic_loss": critic_loss,
                # Not `q_mean`, which is compared with returns: this one counts entropy as reward.
                "soft_q_mean": scale * tf.reduce_mean(q_tm1),
                **value_scale.metrics(self._scale, scale),
                "entropy": -tf.reduce_mean(log_prob_tm1),
                "temperature": temperature,
                **diagnostics.step_metrics(
                    critic_gradients,
                    online.critic_variables,
                    policy_gradients,
                    action,
                    weights,
                    priorities,
                ),
            },
        )

    def _sample_action(self, features: tf.Tensor, stream: int) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns actions of the policy [B, A] and their log-probabilities [B]."""
        gaussian = self.online.policy(features)
        shape = [tf.shape(gaussian.mean)[0], gaussian.mean.shape[1]]
        noise = normal(shape, self.step_seed(self.num_steps, stream))
        return losses.squashed_sample(gaussian.mean, gaussian.stddev, noise)

    def _target_entropy(self, action: tf.Tensor) -> float:
        entropy = self._config.target_entropy
        return -float(action.shape[1]) if entropy is None else entropy
