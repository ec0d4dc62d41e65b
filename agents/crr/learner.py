"""The step of CRR: D4PG's critic, and a policy that imitates the better recorded actions."""

import tensorflow as tf

from agents.crr import losses
from agents.crr.networks import Mixture
from agents.d4pg.learner import D4PGLearner, PolicyUpdate
from agents.learning.steps import BatchSteps
from rl_replicator.collectives.randomness import normal


class CRRLearner(D4PGLearner):
    """Owns the variables of CRR and the step that trains them (Wang et al. 2020, Algorithm 1)."""

    def _next_action(self, s_t: tf.Tensor) -> tf.Tensor:
        """Returns an action of the target policy: [B, F] -> [B, A]."""
        return self._sample(self.target.policy(s_t), stream=2)

    def _update_policy(
        self, steps: BatchSteps, s_tm1: tf.Tensor, logits_tm1: tf.Tensor
    ) -> PolicyUpdate:
        """Returns the gradients of the weighted regression towards the recorded actions."""
        config, policy = self._config, self.online.policy
        with tf.GradientTape() as tape:
            mixture: Mixture = policy(s_tm1)
            with tape.stop_recording():
                actions = [self._sample(mixture, 3 + index) for index in range(config.num_samples)]
                logits = [self.online.critic(s_tm1, action) for action in actions]
                values = tf.stack([self._values(of_action) for of_action in logits])  # [m, B]
                advantages = losses.advantage(self._values(logits_tm1), values, config.advantage)
                weigh = losses.WEIGHTINGS[config.weighting]
                weights = weigh(advantages, config.beta, config.max_weight)  # [B]
            loss = losses.policy_loss(losses.log_density(*mixture, steps.action), weights)
        return PolicyUpdate(
            tape.gradient(loss, policy.trainable_variables),
            actions[0],
            logits[0],
            {"policy_loss": loss, "action_weight": tf.reduce_mean(weights)},
        )

    def _sample(self, mixture: Mixture, stream: int) -> tf.Tensor:
        batch_size, num_actions = tf.shape(mixture.logits)[0], mixture.mean.shape[-1]
        noise = normal([batch_size, 1 + num_actions], self.step_seed(self.num_steps, stream))
        return losses.sample(*mixture, noise)
