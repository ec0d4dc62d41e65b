"""SAC: its policy, networks and learner, on top of the parts that off-policy agents share."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import sonnet as snt
import tensorflow as tf

import rl_replicator as rr
from agents.agent import ExplorationContext
from agents.learning.losses import TDLoss, find_td_loss
from agents.networks.mlp import MakeTorso, layer_norm_mlp
from agents.networks.torsos import find_torso, hidden
from agents.off_policy_agent import OffPolicyAgent
from agents.sac.learner import SACLearner, Target

# Bounds of the logarithm of the standard deviation, before squashing.
_LOG_STDDEV_MIN, _LOG_STDDEV_MAX = -10.0, 2.0


class Gaussian(NamedTuple):
    """A diagonal Gaussian over actions before they are squashed by tanh.

    Attributes:
      mean: [..., A] float32.
      stddev: [..., A] float32, positive.
    """

    mean: tf.Tensor
    stddev: tf.Tensor


class GaussianPolicy(snt.Module):
    """[B, N] float32 features -> `Gaussian` of [B, A]."""

    def __init__(
        self,
        layer_sizes: Sequence[int],
        num_actions: int,
        make_torso: MakeTorso = layer_norm_mlp,
        name: str = "policy",
    ):
        """Makes the layers.

        Args:
          layer_sizes: units of each hidden layer, at least one.
          num_actions: A.
          make_torso: makes the hidden layers.
          name: name of the module.
        """
        super().__init__(name=name)
        self._torso = make_torso(layer_sizes, "torso")
        # Nearly zero at first: the first actions have mean 0 and standard deviation 1.
        init = snt.initializers.VarianceScaling(1e-4)
        self._mean = snt.Linear(num_actions, w_init=init, name="mean")
        self._log_stddev = snt.Linear(num_actions, w_init=init, name="log_stddev")

    def __call__(self, features: tf.Tensor) -> Gaussian:
        """[B, N] float32 -> `Gaussian` of [B, A] float32."""
        x = hidden(self._torso, features)
        log_stddev = tf.clip_by_value(self._log_stddev(x), _LOG_STDDEV_MIN, _LOG_STDDEV_MAX)
        return Gaussian(self._mean(x), tf.exp(log_stddev))


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
        return GaussianPolicy(layers, num_actions, find_torso(self.config.torso), name)

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
