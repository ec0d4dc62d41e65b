"""SAC: its policy, networks and learner, on top of the parts that off-policy agents share."""

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

import rl_replicator as rr
from agents.agent import ExplorationContext
from agents.learning.losses import TDLoss, find_td_loss
from agents.networks.actor_critic import Gaussian, GaussianPolicy
from agents.off_policy_agent import OffPolicyAgent
from agents.sac.learner import SACLearner, Target


class SAC(OffPolicyAgent):
    """The SAC agent (Haarnoja et al. 2018, arXiv:1812.05905)."""

    trains_batch_norm = True

    def check_config(self) -> None:
        """See `OffPolicyAgent`."""
        super().check_config()
        self.make_td_loss()

    def make_td_loss(self) -> TDLoss:
        """Returns the critics' loss: TD errors [B, 2] -> losses [B, 2], one for each error."""
        return find_td_loss(self.config.td_loss)

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

    def make_module(self, replicator: rr.Replicator, total_steps: int) -> SACLearner:
        """See `OffPolicyAgent`."""
        online, target = self.make_networks(self.make_twin_critic)
        return SACLearner(
            self.config,
            online=online,
            target=Target(target.encoder, target.critic),
            total_steps=total_steps,
            augment=self.observations.augment,
            replicator=replicator,
            td_loss=self.make_td_loss(),
            scale=self.make_scale(),
        )
