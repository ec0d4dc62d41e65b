"""The learner's variables and one step of D4PG, written for a single device."""

from collections.abc import Callable
from typing import Any

import numpy as np
import sonnet as snt
import tensorflow as tf

import rl_replicator as rr
from agents.d4pg import losses
from agents.d4pg.config import D4PGConfig
from agents.learning import categorical, diagnostics, value_scale
from agents.learning.losses import normalized_weights
from agents.learning.optimizers import make_optimizer
from agents.learning.replay_learner import StepOutput
from agents.learning.targets import update_targets
from agents.networks.actor_critic import ActorCritic, check_deterministic, preactivation_penalty
from agents.networks.torsos import Statistics, batch_norm, joint_values, to_unit_length
from agents.replay.transitions import Sample
from rl_replicator.collectives.randomness import StepSeeds


class D4PGLearner(tf.Module):
    """Owns the variables of D4PG and the step that trains them.

    Build it inside `replicator.scope()`; the caller then replicates `step_fn`. Replicas communicate
    in two places: the optimizers average gradients, and the importance weights are divided by the
    largest weight in the global batch.
    """

    def __init__(
        self,
        config: D4PGConfig,
        online: ActorCritic,
        target: ActorCritic,
        atoms: np.ndarray,
        total_steps: int,
        augment: Callable[[tf.Tensor, tf.Tensor], tf.Tensor],
        replicator: rr.Replicator,
        critic_loss: losses.CriticLoss,
        scale: Callable[[Any], tf.Tensor],
    ):
        """Makes the optimizers.

        Args:
          config: hyper-parameters.
          online: built networks.
          target: built networks with the same weights.
          atoms: [Z] float32 support of the critic.
          total_steps: learner steps over which the importance exponent grows to its final value.
          augment: (observations [B, ...], seed [2] int32) -> observations to train on.
          replicator: the replicator of the current scope.
          critic_loss: function with the arguments and results of `categorical.categorical_td_loss`.
          scale: the extras of a batch -> a scalar by which rewards are divided.
        """
        super().__init__(name="d4pg")
        check_deterministic(online.policy)
        self._config = config
        self._atoms = tf.constant(atoms, tf.float32)
        self._critic_loss = losses.checked(critic_loss)
        self._scale = scale
        self._total_steps = total_steps
        self._augment = augment
        self.step_seed = StepSeeds()
        self.online, self.target = online, target
        self._policy_optimizer, self._critic_optimizer = (
            make_optimizer(
                replicator,
                rate,
                config.weight_decay,
                variables,
                max_global_norm=config.max_gradient_norm,
            )
            for rate, variables in (
                (config.policy_learning_rate, online.policy.trainable_variables),
                (config.critic_learning_rate, online.critic_variables),
            )
        )
        self.num_steps = tf.Variable(0, dtype=tf.int64, trainable=False, name="num_steps")

    @property
    def acting_networks(self) -> dict[str, snt.Module]:
        """The online networks that act."""
        return {"encoder": self.online.encoder, "policy": self.online.policy}

    @tf.autograph.experimental.do_not_convert
    def step_fn(self, sample: Sample) -> StepOutput:
        """One update of the critic and of the policy from one batch.

        D4PG's Algorithm 1 (arXiv:1804.08617): project the n-step target, weight each example's
        cross-entropy by its importance, follow dQ/da with the policy, and update the target
        networks when due.

        Args:
          sample: a batch of this replica.

        Returns:
          The new priorities and the metrics.
        """
        config, online, target = self._config, self.online, self.target
        o_tm1, a_tm1, r_t, d_t, o_t, extras = sample.transition
        scale = self._scale(extras)
        o_tm1 = self._augment(o_tm1, self.step_seed(self.num_steps, 0))
        o_t = self._augment(o_t, self.step_seed(self.num_steps, 1))

        s_t = target.encoder(o_t)  # [B, F]
        with batch_norm(Statistics.BATCH):
            a_t = target.policy(s_t)  # [B, A]

        with tf.GradientTape() as critic_tape:
            s_tm1 = online.encoder(o_tm1)  # [B, F]
            logits_tm1, logits_t = joint_values(
                online.critic, target.critic, (s_tm1, a_tm1), (s_t, a_t)
            )  # [B, Z], or [B, 2, Z] of a pair
            # The bootstrap distribution, from the target networks.
            target_probs = tf.nn.softmax(losses.pessimistic(logits_t, self._atoms))  # [B, Z]
            td = [
                self._critic_loss(logits, r_t / scale, d_t, target_probs, self._atoms)
                for logits in losses.each_critic(logits_tm1)
            ]  # [B] and [B, Z] of each critic
            weights = normalized_weights(
                sample, config.replay, self.num_steps, self._total_steps
            )  # [B]
            critic_loss = tf.reduce_mean(weights * tf.add_n([loss for loss, _ in td]))

        # The policy follows dQ/da. Its gradients are those of its own variables alone, so its loss
        # trains neither the critic nor the encoder. Other terms of its loss are added to `penalty`.
        with tf.GradientTape() as policy_tape, batch_norm(Statistics.TRAINING):
            preactivations = online.policy.preactivations(s_tm1)  # [B, A]
            action = online.policy.squash(preactivations)  # [B, A]
            penalty = preactivation_penalty(preactivations, config.preactivation_penalty)
        with tf.GradientTape(watch_accessed_variables=False) as action_tape:
            action_tape.watch(action)
            logits = losses.pessimistic(online.critic(s_tm1, action), self._atoms)  # [B, Z]
            probs = tf.nn.softmax(logits)  # [B, Z]
            q = tf.linalg.matvec(probs, self._atoms)  # [B]
        dq_da = losses.action_gradient(
            action_tape.gradient(q, action), config.max_action_gradient_norm
        )  # [B, A]
        batch_size = tf.cast(tf.shape(action)[0], tf.float32)

        policy_variables = online.policy.trainable_variables
        critic_gradients = critic_tape.gradient(critic_loss, online.critic_variables)
        policy_gradients = policy_tape.gradient(
            [action, penalty],
            policy_variables,
            output_gradients=[-dq_da / batch_size, tf.ones([])],
        )
        self._critic_optimizer.apply(critic_gradients, online.critic_variables)
        self._policy_optimizer.apply(policy_gradients, policy_variables)
        to_unit_length(online.policy, online.critic)
        self.num_steps.assign_add(1)
        is_due = tf.equal(self.num_steps % config.target_update_period, 0)
        update_targets(target, online, config.target_update_rate, is_due)

        edge_low, edge_high = categorical.edge_mass(probs)
        priorities = tf.reduce_max(
            [categorical.kl_priorities(*of_critic) for of_critic in td], axis=0
        )
        return StepOutput(
            keys=sample.keys,
            priorities=priorities,
            metrics={
                "critic_loss": critic_loss,
                "q_mean": scale * tf.reduce_mean(q),
                "value_edge_mass_low": edge_low,
                "value_edge_mass_high": edge_high,
                **value_scale.metrics(self._scale, scale),
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
