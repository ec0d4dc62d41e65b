"""The learner's variables and one step of D4PG, written for a single device."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import sonnet as snt
import tensorflow as tf

import rl_replicator as rr
from agents.d4pg import losses
from agents.learning import categorical, diagnostics, value_scale
from agents.learning.losses import normalized_weights
from agents.learning.optimizers import make_optimizer
from agents.learning.replay_learner import StepOutput
from agents.learning.steps import BatchSteps, MakeSteps
from agents.learning.targets import update_targets
from agents.networks.actor_critic import ActorCritic, check_deterministic, preactivation_penalty
from agents.networks.torsos import Statistics, batch_norm, joint_values, to_unit_length
from agents.replay.transitions import Sample
from rl_replicator.collectives.randomness import StepSeeds


class PolicyUpdate(NamedTuple):
    """The update of a policy that one step makes.

    Attributes:
      gradients: one for each of the policy's trainable variables.
      action: [B, A] actions of the policy.
      logits: [B, Z] of the critic at these actions, or [B, 2, Z] of a pair.
      metrics: scalars by name.
    """

    gradients: Sequence[tf.Tensor | None]
    action: tf.Tensor
    logits: tf.Tensor
    metrics: dict[str, tf.Tensor]


class D4PGLearner(tf.Module):
    """Owns the variables of D4PG and the step that trains them.

    Build it inside `replicator.scope()`; the caller then replicates `step_fn`. Replicas communicate
    in two places: the optimizers average gradients, and the importance weights are divided by the
    largest weight in the global batch.
    """

    def __init__(
        self,
        config: Any,
        online: ActorCritic,
        target: ActorCritic,
        atoms: np.ndarray,
        total_steps: int,
        make_steps: MakeSteps,
        replicator: rr.Replicator,
        critic_loss: losses.CriticLoss,
        scale: Callable[..., tf.Tensor],
    ):
        """Makes the optimizers.

        Args:
          config: hyper-parameters, with the settings of its critic.
          online: built networks.
          target: built networks with the same weights.
          atoms: [Z] float32 support of the critic.
          total_steps: learner steps over which the importance exponent grows to its final value.
          make_steps: makes the steps that a batch trains.
          replicator: the replicator of the current scope.
          critic_loss: function with the arguments and results of `categorical.categorical_td_loss`.
          scale: (extras of a batch, valid) -> a scalar by which rewards are divided.
        """
        super().__init__(name="d4pg")
        self._config = config
        self._atoms = tf.constant(atoms, tf.float32)
        self._critic_loss = losses.checked(critic_loss)
        self._scale = scale
        self._total_steps = total_steps
        self._make_steps = make_steps
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
        steps = self._make_steps(sample, lambda stream: self.step_seed(self.num_steps, stream))
        r_t, d_t, scale = steps.reward, steps.discount, self._scale(steps.extras, steps.valid)

        _, s_t = steps.features(target.encoder)  # [M, F]
        with batch_norm(Statistics.BATCH):
            a_t = self._next_action(s_t)  # [M, A]

        with tf.GradientTape() as critic_tape:
            s_tm1, _ = steps.features(online.encoder)  # [M, F]
            logits_tm1, logits_t = joint_values(
                online.critic, target.critic, (s_tm1, steps.action), (s_t, a_t)
            )  # [M, Z], or [M, 2, Z] of a pair
            # The bootstrap distribution, from the target networks.
            target_probs = self._probabilities(logits_t)  # [M, Z]
            td = [
                self._critic_loss(logits, r_t / scale, d_t, target_probs, self._atoms)
                for logits in losses.each_critic(logits_tm1)
            ]  # [M] and [M, Z] of each critic
            weights = normalized_weights(
                sample, config.replay, self.num_steps, self._total_steps
            )  # [B]
            td_losses = tf.add_n([loss for loss, _ in td])  # [M]
            critic_loss = tf.reduce_mean(steps.weighted(weights) * td_losses)

        # The policy's gradients are those of its own variables alone, so its loss trains neither
        # the critic nor the encoder.
        update = self._update_policy(steps, s_tm1, logits_tm1)
        critic_gradients = critic_tape.gradient(critic_loss, online.critic_variables)
        self._critic_optimizer.apply(critic_gradients, online.critic_variables)
        self._policy_optimizer.apply(update.gradients, online.policy.trainable_variables)
        to_unit_length(online.policy, online.critic)
        self.num_steps.assign_add(1)
        is_due = tf.equal(self.num_steps % config.target_update_period, 0)
        update_targets(target, online, config.target_update_rate, is_due)

        edge_low, edge_high = categorical.edge_mass(self._probabilities(update.logits), steps.mean)
        priorities = steps.item_priorities(
            tf.reduce_max([categorical.kl_priorities(*of_critic) for of_critic in td], axis=0)
        )  # [B]
        return StepOutput(
            keys=sample.keys,
            priorities=priorities,
            metrics={
                "critic_loss": critic_loss,
                "q_mean": scale * steps.mean(self._values(update.logits)),
                "value_edge_mass_low": edge_low,
                "value_edge_mass_high": edge_high,
                **value_scale.metrics(self._scale, scale),
                **diagnostics.step_metrics(
                    critic_gradients,
                    online.critic_variables,
                    update.gradients,
                    update.action,
                    weights,
                    priorities,
                    steps.mean,
                ),
                **update.metrics,
            },
        )

    def _next_action(self, s_t: tf.Tensor) -> tf.Tensor:
        """Returns the action of the target policy, given features: [B, F] -> [B, A]."""
        return self.target.policy(s_t)

    def _probabilities(self, logits: tf.Tensor) -> tf.Tensor:
        """Returns the distribution of the return: [B, Z], or [B, 2, Z] of a pair -> [B, Z]."""
        return tf.nn.softmax(losses.pessimistic(logits, self._atoms))

    def _values(self, logits: tf.Tensor) -> tf.Tensor:
        """Returns its mean: [B, Z] or [B, 2, Z] -> [B]."""
        return tf.linalg.matvec(self._probabilities(logits), self._atoms)

    def _update_policy(
        self, steps: BatchSteps, s_tm1: tf.Tensor, logits_tm1: tf.Tensor
    ) -> PolicyUpdate:
        """Returns the policy's gradients. It follows dQ/da; other terms are added to `penalty`.

        Args:
          steps: the steps of the batch.
          s_tm1: [M, F] features at these.
          logits_tm1: [M, Z] or [M, 2, Z] of the critic at their actions.
        """
        del logits_tm1
        valid = steps.valid[:, tf.newaxis]  # [M, 1]
        config, policy = self._config, self.online.policy
        check_deterministic(policy)
        with tf.GradientTape() as policy_tape, batch_norm(Statistics.TRAINING):
            preactivations = policy.preactivations(s_tm1)  # [M, A]
            action = policy.squash(preactivations)  # [M, A]
            penalty = preactivation_penalty(valid * preactivations, config.preactivation_penalty)
        with tf.GradientTape(watch_accessed_variables=False) as action_tape:
            action_tape.watch(action)
            logits = self.online.critic(s_tm1, action)  # [M, Z] or [M, 2, Z]
            q = self._values(logits)  # [M]
        dq_da = valid * losses.action_gradient(
            action_tape.gradient(q, action), config.max_action_gradient_norm
        )  # [M, A]
        batch_size = tf.cast(tf.shape(action)[0], tf.float32)
        # The gradients of mean(-valid * q) + penalty, but with dQ/da clipped in each row.
        gradients = policy_tape.gradient(
            [action, penalty],
            policy.trainable_variables,
            output_gradients=[-dq_da / batch_size, tf.ones([])],
        )
        return PolicyUpdate(gradients, action, logits, {})
