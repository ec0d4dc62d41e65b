"""MR.Q: its networks and its learner, on top of the parts that off-policy agents share."""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import dm_env
import numpy as np
import sonnet as snt
import tensorflow as tf

import rl_replicator as rr
from agents.agent import ExplorationContext
from agents.dqn.losses import best_action, legal_values
from agents.learning.targets import update_targets
from agents.mrq.actions import ActionVectors, ContinuousVectors, OneHotVectors
from agents.mrq.learner import MRQLearner
from agents.mrq.networks import (
    LatentModel,
    Networks,
    PairCritic,
    PairEncoder,
    StateEncoder,
    normalized_mlp,
)
from agents.networks.actor_critic import DeterministicPolicy, TwinCritic, inverting_tanh
from agents.networks.mlp import MakeTorso
from agents.networks.torsos import find_torso
from agents.off_policy_agent import OffPolicyAgent
from agents.replay.config import SequenceConfig


class MRQ(OffPolicyAgent):
    """The MR.Q agent (Fujimoto et al. 2025, arXiv:2501.16142).

    The network "policy" returns actions, or the logits of discrete ones.
    """

    def check_config(self) -> None:
        """See `OffPolicyAgent`; it acts by both kinds of actions."""
        spec = self.environment_spec.actions
        self.is_discrete = isinstance(spec, dm_env.specs.DiscreteArray)
        super().check_config()

    @property
    def sequences(self) -> SequenceConfig:
        """See `OffPolicyAgent`: the steps of the unrolled model, from every step of an episode."""
        return SequenceConfig(length=self.config.horizon + 1)

    @functools.cached_property
    def actions(self) -> ActionVectors:
        """The parts that depend on the kind of action."""
        if self.is_discrete:
            num_actions = self.environment_spec.actions.num_values
            return OneHotVectors(num_actions, self.config.temperature)
        return ContinuousVectors()

    @property
    def make_torso(self) -> MakeTorso:
        """See `OffPolicyAgent`."""
        torso = self.config.torso
        return normalized_mlp if torso == "mlp" else find_torso(torso)

    def make_encoder(self, name: str) -> StateEncoder:
        """See `OffPolicyAgent`."""
        width, feature_size = self.config.width, self.observations.feature_size
        layers = (width, width, width) if feature_size is None else (feature_size,)
        return StateEncoder(self.observations.make_encoder, layers, self.make_torso, name)

    def make_policy(self, name: str) -> DeterministicPolicy:
        """See `OffPolicyAgent`."""
        config = self.config
        layers = config.policy_layers or (config.width,) * 2
        if self.is_discrete:
            size, squash = self.environment_spec.actions.num_values, tf.identity
        else:
            size = self.environment_spec.actions.shape[0]
            squash = inverting_tanh if config.squash_gradient == "inverting" else tf.tanh
        return DeterministicPolicy(layers, size, squash, self.make_torso, name)

    def policy_outputs(self, networks: Mapping[str, snt.Module], observation: tf.Tensor) -> Any:
        """Returns the actions, or the logits of discrete ones, minus infinity for illegal ones."""
        outputs = super().policy_outputs(networks, observation)
        return legal_values(outputs, self.observations.mask(observation))

    def greedy_action(self, outputs: tf.Tensor) -> tf.Tensor:
        """Returns the action, or the most probable one: [B, A] or [B] int32."""
        return best_action(outputs) if self.is_discrete else outputs

    def make_exploration(
        self, context: ExplorationContext
    ) -> Callable[[Any], tuple[np.ndarray, Any]]:
        """See `OffPolicyAgent`: noise, for discrete actions on a sample of Gumbel-softmax."""
        explore = super().make_exploration(context)
        if not self.is_discrete:
            return explore
        random, temperature = context.random, self.config.temperature

        def explore_discrete(logits: np.ndarray) -> tuple[np.ndarray, Any]:
            scaled = (logits + random.gumbel(size=logits.shape)) / temperature
            soft = np.exp(scaled - scaled.max())
            soft /= soft.sum()
            # Noise is in units of half of a range of 2.
            action, extras = explore((2.0 * soft - 1.0).astype(np.float32))
            legal = np.where(np.isneginf(logits), -np.inf, action)
            return np.array(np.argmax(legal)), extras

        return explore_discrete

    def make_module(self, replicator: rr.Replicator, total_steps: int) -> MRQLearner:
        """See `OffPolicyAgent`."""
        observation, action = self.random_inputs()
        action = self.actions.encode(tf.cast(action, tf.int32) if self.is_discrete else action)

        def outputs_of(networks: Networks) -> Any:
            features = networks.encoder(observation)
            pair = networks.pair_encoder(features, action)
            return networks.policy(features), networks.critic(pair)

        online = self._make_networks("", self.make_acting_networks())
        policy = self.make_policy("target_policy")
        others = {"encoder": self.make_encoder("target_encoder"), "policy": policy}
        target = self.copied(online, self._make_networks("target_", others), outputs_of)
        encoders = self.make_encoder("model_encoder"), self._make_pair_encoder("model_pair_encoder")
        model = LatentModel(*encoders, self.config.num_bins)
        model(observation, action[:, None])
        update_targets(encoders, (online.encoder, online.pair_encoder), rate=1.0)
        return MRQLearner(
            self.config,
            online=online,
            target=target,
            model=model,
            total_steps=total_steps,
            observations=self.observations,
            actions=self.actions,
            replicator=replicator,
        )

    def _make_networks(self, prefix: str, acting: Mapping[str, snt.Module]) -> Networks:
        config = self.config
        layers = config.critic_layers or (config.width,) * 3
        make_critic = functools.partial(PairCritic, layers, self.make_torso)
        return Networks(
            pair_encoder=self._make_pair_encoder(f"{prefix}pair_encoder"),
            critic=TwinCritic(make_critic, f"{prefix}critic"),
            **acting,
        )

    def _make_pair_encoder(self, name: str) -> PairEncoder:
        return PairEncoder(self.config.width, self.make_torso, name)
