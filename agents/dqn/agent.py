"""DQN: its networks and its learner, on top of the parts that off-policy agents share."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import sonnet as snt
import tensorflow as tf

import rl_replicator as rr
from agents.agent import ExplorationContext
from agents.dqn.learner import DQNLearner
from agents.dqn.losses import best_action, legal_values, rescaled, unrescaled
from agents.dqn.networks import DuellingNetwork, PlainNetwork, QNetworks
from agents.dqn.values import CategoricalValues, ScalarValues, Values
from agents.learning.categorical import ValueRange
from agents.learning.losses import TD_LOSSES
from agents.networks.torsos import find_torso
from agents.off_policy_agent import OffPolicyAgent


class DQN(OffPolicyAgent):
    """The DQN agent (Mnih et al. 2015; Hessel et al. 2018, arXiv:1710.02298).

    The network "policy" returns the outputs for all actions; actors get their expected returns,
    which are minus infinity for illegal actions.
    """

    is_discrete = True

    @property
    def value_range(self) -> ValueRange:
        """The returns that the atoms span, if the critic is categorical."""
        return ValueRange(self.config, self.environment_spec.rewards, self.discount)

    @property
    def follows_returns(self) -> bool:
        """See `OffPolicyAgent`."""
        if self._is_categorical:
            return self.value_range.follows_returns
        return super().follows_returns

    @property
    def initial_priority(self) -> float:
        """See `OffPolicyAgent`."""
        if self._is_categorical:
            return self.value_range.highest_priority()
        return super().initial_priority

    @property
    def _is_categorical(self) -> bool:
        return self.config.critic_loss == "categorical"

    def check_config(self) -> None:
        """See `OffPolicyAgent`."""
        super().check_config()
        self.make_values()

    def make_values(self) -> Values:
        """Makes the meaning of the network's outputs."""
        if self._is_categorical:
            return CategoricalValues(self.value_range.atoms(), self.value_range.prior_logits())
        td_loss = TD_LOSSES[self.config.critic_loss]
        if self.config.value_rescaling:
            return ScalarValues(td_loss, rescaled, unrescaled)
        return ScalarValues(td_loss)

    def make_policy(self, name: str) -> snt.Module:
        """Makes an unbuilt network: [B, F] features -> [B, A, Z] outputs."""
        config = self.config
        layers = self.after_encoder(config.critic_layers)
        num_actions = self.environment_spec.actions.num_values
        sizes = layers, num_actions, self.make_values().initial_outputs
        if config.duelling:
            return DuellingNetwork(*sizes, self.make_torso, find_torso(config.torso), name)
        return PlainNetwork(*sizes, self.make_torso, name)

    def policy_outputs(self, networks: Mapping[str, snt.Module], observation: tf.Tensor) -> Any:
        """Returns the values of the actions, [B, A]; minus infinity for illegal ones."""
        values = self.make_values().mean(super().policy_outputs(networks, observation))
        return legal_values(values, self.observations.mask(observation))

    def greedy_action(self, outputs: tf.Tensor) -> tf.Tensor:
        """Returns the action of the highest value, [B] int32."""
        return best_action(outputs)

    def make_exploration(
        self, context: ExplorationContext
    ) -> Callable[[Any], tuple[np.ndarray, Any]]:
        """See `OffPolicyAgent`: sometimes a random legal action, otherwise the best one.

        The probability of a random one is Ape-X's (Horgan et al. 2018, arXiv:1803.00933, section
        4.1): epsilon**(1 + exponent * rank).
        """
        config, random = self.config, context.random
        epsilon = config.exploration_epsilon ** (1 + config.exploration_exponent * context.rank)

        def explore(values: np.ndarray) -> tuple[Any, Any]:
            is_early = context.environment_steps() < config.exploration_random_steps
            if is_early or random.random() < epsilon:
                legal = np.flatnonzero(values != -np.inf)
                return legal[random.integers(len(legal))], ()
            return np.argmax(values), ()

        return explore

    def make_module(self, replicator: rr.Replicator, total_steps: int) -> DQNLearner:
        """See `OffPolicyAgent`."""
        online = QNetworks(**self.make_acting_networks())
        target = QNetworks(self.make_encoder("target_encoder"), self.make_policy("target_policy"))
        observation, _ = self.random_inputs()
        target = self.copied(
            online, target, lambda networks: networks.policy(networks.encoder(observation))
        )
        return DQNLearner(
            self.config,
            online=online,
            target=target,
            values=self.make_values(),
            total_steps=total_steps,
            mask=self.observations.mask,
            make_steps=self.make_steps(),
            replicator=replicator,
            scale=self.make_scale(),
        )
