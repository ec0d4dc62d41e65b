"""SAC: its policy, its networks and its learner, on top of what off-policy agents share."""

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

import rl_replicator as rr
from agents.learning.td_losses import find_td_loss
from agents.networks.critics import TwinCritic
from agents.off_policy_agent import OffPolicyAgent
from agents.sac.learner import SACLearner, Target
from agents.sac.networks import Gaussian, GaussianPolicy


class SAC(OffPolicyAgent):
    """The SAC agent (Haarnoja et al. 2018, arXiv:1812.05905)."""

    def check_config(self) -> None:
        """See `OffPolicyAgent`."""
        super().check_config()
        find_td_loss(self.config.td_loss)

    def make_policy(self, name: str) -> GaussianPolicy:
        """See `OffPolicyAgent`; the outputs are a `Gaussian`."""
        layers = self.config.policy_layers
        if self.observations.feature_size is not None:
            layers = (self.observations.feature_size, *layers)
        return GaussianPolicy(layers, self.environment_spec.actions.shape[0], name)

    def greedy_action(self, outputs: Gaussian) -> tf.Tensor:
        """Returns the mode of the Gaussian, squashed: [B, A]."""
        return tf.tanh(outputs.mean)

    def make_exploration(
        self, random: np.random.Generator, environment_steps: Callable[[], int]
    ) -> Callable[[Any], tuple[np.ndarray, Any]]:
        """See `OffPolicyAgent`: actions are samples of the policy."""
        del environment_steps

        def explore(gaussian: Gaussian) -> tuple[np.ndarray, Any]:
            noise = random.standard_normal(gaussian.mean.shape, np.float32)
            return np.tanh(gaussian.mean + gaussian.stddev * noise), ()

        return explore

    def make_module(self, replicator: rr.Replicator, total_steps: int) -> SACLearner:
        """See `OffPolicyAgent`."""
        online = self.make_networks(TwinCritic(self.make_critic_torso, "critic"))
        encoder = self.observations.make_encoder("target_encoder")
        critic = TwinCritic(self.make_critic_torso, "target_critic")
        critic(encoder(self.zero_observation()), self.zero_action())
        return SACLearner(
            self.config,
            online=online,
            target=Target(encoder, critic),
            total_steps=total_steps,
            augment=self.observations.augment,
            replicator=replicator,
        )
