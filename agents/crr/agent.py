"""CRR: D4PG with a stochastic policy that imitates the better recorded actions."""

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from agents.agent import ExplorationContext
from agents.crr.learner import CRRLearner
from agents.crr.networks import Mixture, MixturePolicy, most_probable
from agents.d4pg.agent import D4PG


class CRR(D4PG):
    """The CRR agent (Wang et al. 2020, arXiv:2006.15134), on D4PG's critic."""

    learner_type = CRRLearner
    trains_batch_norm = False

    def make_policy(self, name: str) -> MixturePolicy:
        """See `OffPolicyAgent`; the outputs are a `Mixture`."""
        config = self.config
        layers = self.after_encoder(config.policy_layers)
        num_actions = self.environment_spec.actions.shape[0]
        return MixturePolicy(layers, num_actions, config.num_components, self.make_torso, name)

    def greedy_action(self, outputs: Mixture) -> tf.Tensor:
        """Returns the mean of the most probable component: [B, A]."""
        return most_probable(outputs)

    def make_exploration(
        self, context: ExplorationContext
    ) -> Callable[[Any], tuple[np.ndarray, Any]]:
        """See `OffPolicyAgent`: actions are samples of the policy."""
        random = context.random

        def explore(mixture: Mixture) -> tuple[np.ndarray, Any]:
            noise = random.gumbel(size=mixture.logits.shape)
            chosen = int(np.argmax(mixture.logits + noise))
            mean, stddev = mixture.mean[chosen], mixture.stddev[chosen]
            return mean + stddev * random.standard_normal(mean.shape, np.float32), ()

        return explore
