"""The learner's variables and one step of IMPALA, written for a single device."""

from collections.abc import Callable
from typing import Any

import sonnet as snt
import tensorflow as tf
import tree

import rl_replicator as rr
from agents.impala import losses
from agents.impala.actions import Actions
from agents.impala.config import ImpalaConfig
from agents.learning import value_scale
from agents.learning.optimizers import make_optimizer
from agents.learning.replay_learner import StepOutput
from agents.networks.actor_critic import ActorCritic
from agents.observations import PixelObservations, StateObservations
from agents.replay.transitions import STATE, Sample
from agents.replay.unrolls import Unroll
from rl_replicator.collectives.randomness import StepSeeds


class Clock(snt.Module):
    """The learner steps that made the weights it is served with."""

    def __init__(self, name: str = "clock"):
        """Makes the counter."""
        super().__init__(name=name)
        self.num_steps = tf.Variable(0, dtype=tf.int64, trainable=False, name="num_steps")


class ImpalaLearner(tf.Module):
    """Owns the variables of IMPALA and the step that trains them.

    Build it inside `replicator.scope()`; the caller then replicates `step_fn`.
    """

    def __init__(
        self,
        config: ImpalaConfig,
        online: ActorCritic,
        actions: Actions,
        observations: StateObservations | PixelObservations,
        replicator: rr.Replicator,
        scale: Callable[[Any], tf.Tensor],
    ):
        """Makes the optimizer.

        Args:
          config: hyper-parameters.
          online: built networks; the critic is [B, F] features -> [B, 1] values.
          actions: the kind of actions.
          observations: the parts that depend on the kind of observation.
          replicator: the replicator of the current scope.
          scale: discounted rewards so far, [N] -> a scalar by which rewards are divided.
        """
        super().__init__(name="impala")
        self._config = config
        self._actions = actions
        self._scale = scale
        self._augment, self._mask = observations.augment, observations.mask
        self.step_seed = StepSeeds()
        self.online = online
        self._optimizer = make_optimizer(
            replicator,
            config.policy_learning_rate,
            0.0,
            online.trainable_variables,
            max_global_norm=config.max_gradient_norm,
        )
        self.clock = Clock()

    @property
    def num_steps(self) -> tf.Variable:
        """Learner steps done."""
        return self.clock.num_steps

    @property
    def acting_networks(self) -> dict[str, snt.Module]:
        """The online networks that act, and the number of steps that made them."""
        return {
            "encoder": self.online.encoder,
            "policy": self.online.policy,
            "clock": self.clock,
        }

    @tf.autograph.experimental.do_not_convert
    def step_fn(self, sample: Sample) -> StepOutput:
        """One update from a batch of unrolls: section 4.2 of Espeholt et al. 2018.

        Args:
          sample: a batch of this replica, whose transition is an `agents.replay.unrolls.Unroll`.

        Returns:
          The metrics; a queue has no priorities.
        """
        config, online, unroll = self._config, self.online, sample.transition
        rows = tree.map_structure(
            lambda x: tf.reshape(x, [-1, *x.shape[2:]]), unroll
        )  # [B * (T + 1), ...]
        steps = [-1, config.unroll_length + 1]
        valid, extras = unroll.valid[:, :-1], unroll.extras  # [B, T] and [B, T + 1, ...]
        scale = self._scale(tf.reshape(unroll.returns[:, :-1], [-1]))
        observation = self._augment(rows.observation, self.step_seed(self.num_steps, 0))

        variables = online.trainable_variables
        with tf.GradientTape() as tape:
            features = self._features(observation, unroll)  # [B * (T + 1), F]
            outputs = self._actions.masked(online.policy(features), self._mask(rows.observation))
            values = tf.reshape(online.critic(features), steps)  # [B, T + 1]
            log_probs = self._actions.log_prob(outputs, rows.action, rows.extras)
            log_probs = tf.reshape(log_probs, steps)[:, :-1]  # [B, T]
            entropies = tf.reshape(self._actions.entropy(outputs), steps)[:, :-1]  # [B, T]
            ratios = tf.exp(tf.stop_gradient(log_probs) - extras["log_prob"][:, :-1])
            ratios = tf.where(valid > 0, ratios, 0.0)
            trace = losses.vtrace(
                tf.stop_gradient(values),
                unroll.reward[:, :-1] / scale,
                unroll.discount[:, :-1],
                ratios,
                valid,
                config.max_rho,
                config.max_c,
                config.vtrace_lambda,
            )
            policy_loss = losses.policy_loss(log_probs, trace.advantages)
            baseline_loss = losses.baseline_loss(values[:, :-1], trace.targets)
            entropy = tf.reduce_mean(valid * entropies)
            loss = (
                policy_loss + config.baseline_cost * baseline_loss - config.entropy_cost * entropy
            )
        gradients = tape.gradient(loss, variables)
        self._optimizer.apply(gradients, variables)
        age = tf.cast(self.num_steps, tf.float32) - extras["learner_steps"][:, :-1]
        self.num_steps.assign_add(1)
        count = tf.maximum(tf.reduce_sum(valid), 1.0)
        return StepOutput(
            keys=(),
            priorities=(),
            metrics={
                "policy_loss": policy_loss,
                "critic_loss": baseline_loss,
                "entropy": entropy,
                # Not `q_mean`: these are the returns of a policy that explores.
                "value_mean": scale * tf.reduce_mean(values),
                "ratio_mean": tf.reduce_sum(ratios) / count,
                "data_age": tf.reduce_sum(valid * age) / count,
                "data_age_max": tf.reduce_max(valid * age),
                "gradient_norm": tf.linalg.global_norm(gradients),
                **value_scale.metrics(self._scale, scale),
            },
        )

    def _features(self, observation: Any, unroll: Unroll) -> tf.Tensor:
        """Returns the features of an unroll's rows; a memory starts from the actor's state.

        Where the first row has no action, it has no state: no gradient depends on its features.

        Args:
          observation: nest of [B * (T + 1), ...].
          unroll: the unroll.

        Returns:
          [B * (T + 1), F] float32.
        """
        if STATE not in unroll.extras:
            return self.online.encoder(observation)
        length = self._config.unroll_length + 1
        rows = tree.map_structure(lambda x: tf.reshape(x, [-1, length, *x.shape[1:]]), observation)
        kept = 1.0 - tf.pad(unroll.first[:, 1:], [[0, 0], [0, 1]])  # [B, T + 1]
        features, _ = self.online.encoder.unroll(rows, unroll.extras[STATE][:, 0], kept)
        return tf.reshape(features, [-1, features.shape[-1]])
