"""IMPALA: its queue, its networks and its learner."""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import dm_env
import numpy as np
import reverb
import sonnet as snt
import tensorflow as tf
from acme import specs

import rl_replicator as rr
from agents.acting.acting_policy import ActingPolicy
from agents.agent import ExplorationContext, VariableSource
from agents.config import EncoderSettings
from agents.impala.actions import Actions, CategoricalActions, GaussianActions
from agents.impala.learner import Clock, ImpalaLearner
from agents.learning.replay_learner import ReplayLearner
from agents.networks.actor_critic import ActorCritic, HeadedNetwork
from agents.off_policy_agent import PolicyAgent
from agents.replay.local import LocalTable
from agents.replay.table import make_queue, make_queue_input_fn
from agents.replay.transitions import TABLE
from agents.replay.unrolls import UnrollAdder, UnrollLayout
from rl_replicator.errors import check_option


class Impala(PolicyAgent):
    """The IMPALA agent (Espeholt et al. 2018, arXiv:1802.01561), for both kinds of actions."""

    @functools.cached_property
    def actions(self) -> Actions:
        """The kind of actions."""
        spec = self.environment_spec.actions
        is_discrete = isinstance(spec, dm_env.specs.DiscreteArray)
        return CategoricalActions(spec) if is_discrete else GaussianActions(spec)

    def check_config(self) -> None:
        """See `PolicyAgent`."""
        self.is_discrete = self.actions.is_discrete
        super().check_config()

    @property
    def extras_spec(self) -> dict[str, specs.Array]:
        """Log-density of the action, learner steps of the policy, and what densities need.

        With a memory, its state.
        """
        names = ("log_prob", "learner_steps")
        numbers = {name: specs.Array((), np.float32, name) for name in names}
        return numbers | self.actions.extras_spec | self.state_spec

    @functools.cached_property
    def layout(self) -> UnrollLayout:
        """How unrolls are laid out in the queue."""
        config = self.config
        stack = config.frame_stack if isinstance(config, EncoderSettings) else None
        return UnrollLayout(self.environment_spec, config.unroll_length, stack, self.extras_spec)

    # Networks and acting.

    def make_policy(self, name: str) -> snt.Module:
        """See `PolicyAgent`; the outputs are parameters of a distribution."""
        layers = self.after_encoder(self.config.policy_layers)
        return self.actions.make_policy(layers, self.make_torso, name)

    def policy_outputs(self, networks: Mapping[str, snt.Module], observation: tf.Tensor) -> Any:
        """See `PolicyAgent`: parameters of a distribution over legal actions."""
        outputs = super().policy_outputs(networks, observation)
        return self.actions.masked(outputs, self.observations.mask(observation))

    def greedy_action(self, outputs: Any) -> tf.Tensor:
        """See `PolicyAgent`: the most probable action, or tanh of the mean."""
        return self.actions.best(outputs)

    def make_exploring_policy(self, source: VariableSource) -> ActingPolicy:
        """See `PolicyAgent`; the outputs are followed by the learner steps of the weights."""
        source.get_variables(())
        clock = Clock()
        networks = {**self.make_acting_networks(), "clock": clock}

        def with_steps(outputs: Any) -> tuple[Any, tf.Tensor]:
            size = tf.nest.flatten(outputs)[0].shape[0]
            return outputs, tf.cast(clock.num_steps, tf.float32) + tf.zeros([size])

        return self._acting_policy(networks, networks, with_steps)

    def make_exploration(
        self, context: ExplorationContext
    ) -> Callable[[Any], tuple[np.ndarray, Any]]:
        """See `PolicyAgent`: actions are samples of the policy."""
        actions, random = self.actions, context.random

        def explore(outputs: Any) -> tuple[Any, Any]:
            distribution, steps = outputs
            action, log_prob, extras = actions.sample(distribution, random)
            return action, {"log_prob": log_prob, "learner_steps": steps, **extras}

        return explore

    # The contract of `agents.agent.Agent`.

    def estimate_memory(
        self, make_environment: Callable[[], dm_env.Environment], inserts: int
    ) -> None:
        """See `agents.agent.Agent`: a queue is small."""
        del make_environment, inserts

    def make_tables(
        self, num_replicas: int, num_shards: int = 1, online_fraction: float = 1.0
    ) -> Sequence[reverb.Table]:
        """Makes a queue of unrolls."""
        expected = "1 for impala, which learns from its own steps"
        check_option(online_fraction == 1, "online_fraction", expected, online_fraction)
        demand = self._demand(num_replicas)
        return [make_queue(self.config.queue_size, demand, self.layout, num_shards)]

    def make_adder(
        self,
        client: reverb.Client,
        on_wait: Callable[[float], bool | None],
        table: str = TABLE,
    ) -> UnrollAdder:
        """Makes the adder, which writes unrolls."""
        return UnrollAdder(client, self.layout, self.discount, on_wait, table)

    def learner_steps(self, agent_steps: int) -> int:
        """See `agents.agent.Agent`."""
        return agent_steps // (self.config.unroll_length * self.config.global_batch_size)

    def make_learner(
        self,
        replicator: rr.Replicator,
        replay_addresses: Sequence[str],
        total_steps: int,
        online_fraction: float = 1.0,
    ) -> ReplayLearner:
        """Makes the replicated learner."""
        demand = self._demand(replicator.num_replicas)
        input_fn = make_queue_input_fn(replay_addresses, self.layout, demand)
        return self._replicated(replicator, total_steps, input_fn, None)

    def make_local_learner(
        self, replicator: rr.Replicator, replay: LocalTable, total_steps: int
    ) -> ReplayLearner:
        """See `agents.agent.Agent`."""
        demand = self._demand(replicator.num_replicas)
        input_fn = replay.make_input_fn(self.layout, demand)
        return self._replicated(replicator, total_steps, input_fn, None)

    def make_module(self, replicator: rr.Replicator, total_steps: int) -> ImpalaLearner:
        """See `PolicyAgent`."""
        del total_steps
        online, again = self._networks(""), self._networks("again_")
        observation, _ = self.random_inputs()

        def outputs_of(networks: ActorCritic) -> Any:
            features = networks.encoder(observation)
            return networks.policy(features), networks.critic(features)

        self.copied(online, again, outputs_of)
        return ImpalaLearner(
            self.config,
            online=online,
            actions=self.actions,
            observations=self.observations,
            replicator=replicator,
            scale=self.make_scale(),
        )

    def _networks(self, prefix: str) -> ActorCritic:
        layers = self.after_encoder(self.config.critic_layers)
        return ActorCritic(
            self.make_encoder(f"{prefix}encoder"),
            self.make_policy(f"{prefix}policy"),
            HeadedNetwork(layers, 1, self.make_torso, f"{prefix}critic"),
        )
