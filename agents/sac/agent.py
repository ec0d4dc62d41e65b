"""SAC: its policy and its learner, on top of the parts that off-policy agents share."""

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from agents.agent import ExplorationContext
from agents.networks.actor_critic import Gaussian, GaussianPolicy
from agents.off_policy_agent import TwinCriticAgent
from agents.sac.learner import SACLearner


class SAC(TwinCriticAgent):
    """The SAC agent (Haarnoja et al. 2018, arXiv:1812.05905)."""

    learner_type = SACLearner

    def make_policy(self, name: str) -> GaussianPolicy:
        """See `OffPolicyAgent`; the outputs are a `Gaussian`."""
        layers = self.after_encoder(self.config.policy_layers)
        num_actions = self.environment_spec.actions.shape[0]
        return GaussianPolicy(layers, num_actions, self.make_torso, name)

    def greedy_action(self, outputs: Gaussian) -> tf.Tensor:
        """Returns the mode of the Gaussian, squashed: [B, A]."""
        return tf.tanh(outputs.mean)

    def make_exploration(
        self, context: ExplorationContext
    ) -> Callable[[Any], tuple[np.ndarray, Any]]:
        """See `OffPolicyAgent`: actions are samples of the policy."""
        random = context.random

        def explore(gaussian: Gaussian) -> tuple[np.ndarray, Any]:
            noise = random.standard_normal(gaussian.mean.shape, np.float32)
            return np.tanh(gaussian.mean + gaussian.stddev * noise), ()

        return explore
