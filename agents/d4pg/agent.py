"""D4PG: its networks and its learner, on top of the parts that off-policy agents share."""

from collections.abc import Callable

import numpy as np
import sonnet as snt
import tensorflow as tf

import rl_replicator as rr
from agents.d4pg.learner import D4PGLearner
from agents.d4pg.losses import CriticLoss, find_critic_loss
from agents.learning.categorical import ValueRange
from agents.networks.actor_critic import TwinCritic
from agents.networks.torsos import CriticTorso
from agents.off_policy_agent import OffPolicyAgent


class CategoricalCritic(snt.Module):
    """Distribution of the return: ([B, N] features, [B, A] actions) -> [B, Z] logits."""

    def __init__(
        self,
        make_torso: Callable[[], CriticTorso],
        initial_logits: np.ndarray,
        name: str = "critic",
    ):
        """Makes the layers.

        Args:
          make_torso: makes all but the last layer.
          initial_logits: [Z] float32, initial bias of the last layer.
          name: name of the module.
        """
        super().__init__(name=name)
        self._torso = make_torso()
        self._head = snt.Linear(
            len(initial_logits),
            w_init=snt.initializers.VarianceScaling(1e-2),
            b_init=lambda shape, dtype: tf.constant(initial_logits, dtype, shape),
            name="head",
        )

    def __call__(self, features: tf.Tensor, action: tf.Tensor) -> tf.Tensor:
        """([B, N] float32, [B, A] float32) -> [B, Z] float32."""
        return self._head(self._torso(features, action))


class D4PG(OffPolicyAgent):
    """The D4PG agent (Barth-Maron et al. 2018, arXiv:1804.08617)."""

    trains_batch_norm = True
    learner_type = D4PGLearner

    @property
    def initial_priority(self) -> float:
        """See `ValueRange.highest_priority`."""
        return self.value_range.highest_priority()

    @property
    def value_range(self) -> ValueRange:
        """The returns that the critic's atoms span."""
        return ValueRange(self.config, self.environment_spec.rewards, self.discount)

    @property
    def follows_returns(self) -> bool:
        """See `ValueRange`."""
        return self.value_range.follows_returns

    def check_config(self) -> None:
        """See `OffPolicyAgent`."""
        super().check_config()
        self.value_range.atoms()
        self.make_critic_loss()

    def make_critic_loss(self) -> CriticLoss:
        """Returns the critic's loss, with the signature of `losses.categorical_td_loss`."""
        return find_critic_loss(self.config.critic_loss)

    def make_module(self, replicator: rr.Replicator, total_steps: int) -> D4PGLearner:
        """See `OffPolicyAgent`."""
        online, target = self.make_networks(self._make_critic)
        return self.learner_type(
            self.config,
            online=online,
            target=target,
            atoms=self.value_range.atoms(),
            total_steps=total_steps,
            make_steps=self.make_steps(),
            replicator=replicator,
            critic_loss=self.make_critic_loss(),
            scale=self.make_scale(),
        )

    def _make_critic(self, name: str) -> snt.Module:
        def make(name: str) -> snt.Module:
            prior = self.value_range.prior_logits()
            return CategoricalCritic(self.make_critic_torso, prior, name)

        return make(name) if self.config.num_critics == 1 else TwinCritic(make, name)
