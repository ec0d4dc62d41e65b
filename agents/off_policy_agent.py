"""What agents share, from the replay table to the actors: all but networks and losses.

An agent subclasses `OffPolicyAgent` and provides at least `make_module`: the variables and the step
of its learner. `docs/agents.md` builds one from scratch. An agent that learns from anything but
n-step transitions subclasses `PolicyAgent`.
"""

import abc
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
from agents.acting.actors import ExploringActor, PolicyActor
from agents.acting.exploration import find_exploration, make_exploration, with_range
from agents.agent import ExplorationContext, VariableSource
from agents.config import CoreConfig, EncoderSettings, NoiseSettings, memory_of
from agents.learning.losses import TDLoss, find_td_loss
from agents.learning.replay_learner import ReplayLearner, StepModule
from agents.learning.steps import MakeSteps, TransitionSteps, WindowSteps
from agents.learning.targets import PolicyAverage, average_name, update_targets
from agents.learning.value_scale import ReturnScale, unscaled
from agents.learning.weights import check_same_names, check_same_results
from agents.networks.actor_critic import (
    ActorCritic,
    DeterministicPolicy,
    ScalarCritic,
    TwinCritic,
    inverting_tanh,
)
from agents.networks.mlp import MakeTorso
from agents.networks.recurrent import RecurrentEncoder
from agents.networks.torsos import CriticTorso, behind_projection, find_torso, to_unit_length
from agents.observations import PixelObservations, StateObservations, make_observations
from agents.registry import features_of
from agents.replay.adder import NStepTransitionAdder, ReturnAdder
from agents.replay.config import ReplayConfig, SequenceConfig
from agents.replay.local import LocalTable
from agents.replay.memory_estimate import MemoryEstimate
from agents.replay.priorities import Priorities, PriorityWriter
from agents.replay.table import LearnerDemand, make_input_fn, make_tables
from agents.replay.transitions import RETURNS, STATE, TABLE, Layout
from rl_replicator.errors import ConfigError, check_option
from rl_replicator.runs.run_directory import AUTO

# The agents to recommend, by the kind of actions.
AGENTS = {
    "continuous": ("d4pg", "sac", "td3", "impala", "mrq"),
    "discrete": ("dqn", "impala", "mrq"),
}

# User-defined explorations share the dictionary.
_STATE_KEY = "agents.off_policy_agent.state"


class PolicyAgent(abc.ABC):
    """An agent that acts by a policy network: its networks, actors and evaluators.

    The defaults suit an agent with a deterministic policy whose config has `NoiseSettings`; an
    agent with a stochastic policy overrides `make_policy`, `greedy_action` and `make_exploration`.
    """

    is_discrete = False
    """Whether it acts by discrete actions."""
    trains_batch_norm = False
    """Whether the learner can train the torso `xqc`; see `agents.networks.torsos`."""

    def __init__(self, config: Any, environment_spec: specs.EnvironmentSpec):
        """Stores the config and the specs, and checks that they fit each other.

        Args:
          config: a `LearnerConfig`; with `EncoderSettings` for an environment of frames.
          environment_spec: the spec of the environment to act in.

        Raises:
          ConfigError: if the config does not fit the environment.
        """
        self.config = config
        self.environment_spec = environment_spec
        self.check_config()

    @property
    def follows_returns(self) -> bool:
        """Whether the learner divides rewards by the spread of the returns."""
        return getattr(self.config, "value_scale", None) == "returns"

    @property
    def extras_spec(self) -> Any:
        """Nest of float32 `specs.Array` that actors record with each action for the learner.

        By default, the discounted rewards so far if the learner `follows_returns`, which the adder
        computes, and the state of the memory, if there is any.
        """
        returns = ReturnAdder.SPEC if self.follows_returns else ()
        if self.memory is None:
            return returns
        return {**self.state_spec, **({RETURNS: returns} if self.follows_returns else {})}

    @property
    def state_spec(self) -> dict[str, specs.Array]:
        """The state of the memory among the extras; nothing if it has none."""
        if self.memory is None:
            return {}
        return {STATE: specs.Array((self.make_encoder("encoder").state_size,), np.float32, STATE)}

    @property
    def memory(self) -> CoreConfig | None:
        """The recurrent core of its encoder; None if it has no memory."""
        return memory_of(self.config)

    @property
    def discount(self) -> float:
        """See `agents.agent.Agent`."""
        discount = self.config.discount
        if discount == AUTO:
            raise ConfigError(
                'agent.discount: expected a number, got "auto", which a run replaces; so does '
                "`agents.config.resolved`"
            )
        return discount

    def check_config(self) -> None:
        """Raises a ConfigError if the config does not fit the environment or names an unknown part.

        It is called before anything has started.
        """
        is_discrete = isinstance(self.environment_spec.actions, dm_env.specs.DiscreteArray)
        if is_discrete != self.is_discrete:
            kinds = ("continuous", "discrete")
            raise ConfigError(
                f"expected an environment with {kinds[self.is_discrete]} actions for "
                f"{type(self).__name__}, got {kinds[is_discrete]} ones; train "
                f"{' or '.join(AGENTS[kinds[is_discrete]])}"
            )
        self.observations  # noqa: B018 - raises for frames that do not fit.
        find_torso(self.config.torso)
        if self.config.torso == "xqc" and not self.trains_batch_norm:
            raise ConfigError(
                f"--agent.torso: expected mlp or simba for {type(self).__name__}, whose learner "
                "does not train batch norm, got xqc; use agents.networks.torsos.joint_values in "
                "its step, and set trains_batch_norm"
            )
        if isinstance(self.config, NoiseSettings):
            find_exploration(self.config)

    @abc.abstractmethod
    def make_module(self, replicator: rr.Replicator, total_steps: int) -> StepModule:
        """Makes the learner's variables and its step; called inside `replicator.scope()`.

        Args:
          replicator: the replicator of that scope.
          total_steps: approximate number of learner steps of the whole run, for schedules.
        """

    def make_scale(self) -> Callable[..., tf.Tensor]:
        """Makes the function from the extras of a batch to the number that divides its rewards."""
        return ReturnScale() if self.follows_returns else unscaled

    # Networks.

    def make_encoder(self, name: str) -> Any:
        """Makes an unbuilt encoder: [B, ...] observations -> [B, F] features.

        It is an `agents.networks.recurrent.RecurrentEncoder` if the agent has a memory.
        """
        if self.memory is None:
            return self.observations.make_encoder(name)
        return RecurrentEncoder(self.observations.make_encoder, self.memory, name)

    def make_policy(self, name: str) -> snt.Module:
        """Makes an unbuilt policy: [B, F] features -> [B, A] actions.

        The learners of D4PG and TD3 need one with the methods of `DeterministicPolicy`.

        Raises:
          ConfigError: if the config has no `NoiseSettings`.
        """
        config = self._noise_settings()
        layers = self.after_encoder(config.policy_layers)
        squash = inverting_tanh if config.squash_gradient == "inverting" else tf.tanh
        num_actions = self.environment_spec.actions.shape[0]
        return DeterministicPolicy(layers, num_actions, squash, self.make_torso, name)

    def after_encoder(self, layers: tuple[int, ...]) -> tuple[int, ...]:
        """Returns the sizes of layers that follow the encoder; from pixels, a projection is first.

        Args:
          layers: units of each hidden layer.
        """
        feature_size = self.observations.feature_size
        return layers if feature_size is None else (feature_size, *layers)

    @property
    def make_torso(self) -> MakeTorso:
        """Makes the hidden layers of `after_encoder`, given their sizes and a name."""
        torso = find_torso(self.config.torso)
        return torso if self.observations.feature_size is None else behind_projection(torso)

    def make_critic_torso(self) -> CriticTorso:
        """Makes a critic except for its last layer: ([B, F], [B, A]) -> [B, H]."""
        config = self.config
        return CriticTorso(
            config.critic_layers, self.observations.feature_size, find_torso(config.torso)
        )

    def make_twin_critic(self, name: str) -> TwinCritic:
        """Makes two unbuilt critics: ([B, F] features, [B, A] actions) -> [B, 2] values."""
        return TwinCritic(lambda which: ScalarCritic(self.make_critic_torso, which), name)

    def make_acting_networks(self) -> dict[str, snt.Module]:
        """Makes and builds the networks that an actor needs, by name.

        Raises:
          ConfigError: if a user-defined part is not a module, or does not return float32 features.
        """
        encoder, policy = self.make_encoder("encoder"), self.make_policy("policy")
        policy(features_of("agent.encoder", encoder, self.zero_observation()))
        return {"encoder": encoder, "policy": policy}

    def make_networks(
        self, make_critic: Callable[[str], snt.Module]
    ) -> tuple[ActorCritic, ActorCritic]:
        """Makes and builds the online and the target networks.

        Both share the encoder if it is not trained, so that online and target networks have the
        same statistics of the observations.

        Args:
          make_critic: name -> unbuilt module, ([B, F] features, [B, A] actions) -> values.

        Returns:
          The online and the target networks, with the same weights.

        Raises:
          ConfigError: if a network that is rebuilt and given the weights by name, as in actors,
            computes different results.
        """
        acting = self.make_acting_networks()
        online = ActorCritic(acting["encoder"], acting["policy"], make_critic("critic"))
        target = ActorCritic(
            self.make_encoder("target_encoder"),
            self.make_policy("target_policy"),
            make_critic("target_critic"),
        )
        observation, action = self.random_inputs()

        def outputs_of(networks: ActorCritic) -> Any:
            features = networks.encoder(observation)
            return networks.policy(features), networks.critic(features, action)

        return online, self.copied(online, target, outputs_of)

    def copied(self, online: Any, target: Any, outputs_of: Callable[[Any], Any]) -> Any:
        """Returns the target networks with the weights of the online ones.

        Args:
          online: networks as a `NamedTuple`, `encoder` and `policy` among them.
          target: others of the same kind.
          outputs_of: calls all of the networks, which builds them; returns a nest of tensors.

        Raises:
          ConfigError: see `make_networks`.
        """
        outputs_of(online), outputs_of(target)
        to_unit_length(*online)
        for name in ("encoder", "policy"):
            check_same_names(name, getattr(online, name), getattr(target, name))
        update_targets(target, online, rate=1.0)
        check_same_results(lambda: outputs_of(online), lambda: outputs_of(target))
        if not online.encoder.trainable_variables:
            target = target._replace(encoder=online.encoder)
        return target

    def zero_observation(self) -> Any:
        """Returns an observation to build networks with, a nest of [1, ...]."""
        return tf.nest.map_structure(
            lambda each: tf.zeros([1, *each.shape], each.dtype), self.observations.spec()
        )

    def random_inputs(self) -> tuple[Any, tf.Tensor]:
        """Returns some observations and actions to compare networks with, the same in every call.

        For a single observation, some outputs may be near zero.
        """
        random = np.random.default_rng(0)

        def draw(spec: tf.TensorSpec) -> tf.Tensor:
            low, high = (0, 256) if spec.dtype == tf.uint8 else (-1, 1)
            return tf.constant(random.uniform(low, high, [4, *spec.shape]), spec.dtype)

        observations = tf.nest.map_structure(draw, self.observations.spec())
        actions = random.uniform(-1, 1, [4, *self.environment_spec.actions.shape])
        return observations, tf.constant(actions, tf.float32)

    # Acting.

    def make_exploring_policy(self, source: VariableSource) -> ActingPolicy:
        """Makes an actor's policy: the newest weights, and the raw outputs of the policy network.

        Args:
          source: serves the weights.
        """
        # Wait until the learner has drawn its initial weights: nodes that are threads share one
        # random stream, and the seed of the run must determine the learner's weights.
        source.get_variables(())
        networks = self.make_acting_networks()
        return self._acting_policy(networks, networks, lambda outputs: outputs)

    def make_evaluation_policy(self, source: VariableSource) -> ActingPolicy:
        """Makes the policy without exploration, for evaluators and exported models.

        With `policy_average`, its weights are the average.

        Args:
          source: serves the weights.
        """
        source.get_variables(())
        networks = served = self.make_acting_networks()
        if self.config.policy_average > 1:
            served = {
                average_name(name) if network.trainable_variables else name: network
                for name, network in networks.items()
            }
        return self._acting_policy(networks, served, self.greedy_action)

    def _acting_policy(
        self,
        networks: Mapping[str, snt.Module],
        served: Mapping[str, snt.Module],
        select: Callable[[Any], Any],
    ) -> ActingPolicy:
        def act(observation: tf.Tensor) -> Any:
            return select(self.policy_outputs(networks, observation))

        def act_with_state(observation: tf.Tensor, state: tf.Tensor) -> tuple[Any, tf.Tensor]:
            features, state = networks["encoder"].step(observation, state)
            encoded = {**networks, "encoder": lambda _: features}
            return select(self.policy_outputs(encoded, observation)), state

        return ActingPolicy(
            networks=served,
            act=act if self.memory is None else act_with_state,
            observation_spec=self.observations.spec(),
            make_history=self.observations.make_history,
            state_size=0 if self.memory is None else networks["encoder"].state_size,
        )

    def policy_outputs(self, networks: Mapping[str, Any], observation: tf.Tensor) -> Any:
        """Returns what an action is chosen by: the outputs of the policy network.

        Args:
          networks: those of `make_acting_networks`; if the agent has a memory, an encoder that
            returns the features for the state.
          observation: [B, ...] of the agent.

        Returns:
          A nest of [B, ...] tensors.
        """
        return networks["policy"](networks["encoder"](observation))

    def greedy_action(self, outputs: Any) -> tf.Tensor:
        """Returns the action without exploration, [B, A], or [B] int32 if actions are discrete.

        Args:
          outputs: those of `policy_outputs`.
        """
        return outputs

    def make_exploration(
        self, context: ExplorationContext
    ) -> Callable[[Any], tuple[np.ndarray, Any]]:
        """Makes an actor's mapping from policy outputs to actions in one environment.

        Args:
          context: what it may depend on.

        Returns:
          A function from the `policy_outputs` for one observation, a nest of arrays, to the action,
          [A], which is clipped to [-1, 1], or a number, and its extras, () if there are none.

        Raises:
          ConfigError: if the config has no `NoiseSettings`.
        """
        explore = make_exploration(self._noise_settings(), context)
        return lambda action: (explore(action), ())

    def _noise_settings(self) -> Any:
        """Returns the config, which must have the settings of a deterministic policy."""
        if not isinstance(self.config, NoiseSettings):
            raise ConfigError(
                "expected a config with agents.config.NoiseSettings, got "
                f"{type(self.config).__name__}; derive it from them, or override make_policy and "
                f"make_exploration of {type(self).__name__}"
            )
        return self.config

    # The contract of `agents.agent.Agent`.

    def make_actor(
        self,
        source: VariableSource,
        adders: Sequence[NStepTransitionAdder],
        contexts: Sequence[ExplorationContext],
    ) -> ExploringActor:
        """Makes an actor: the policy with exploration."""
        policy = self.make_exploring_policy(source)
        spec, name = self.environment_spec.actions, type(self).__name__
        explorations = [
            with_range(self.make_exploration(context), spec, name) for context in contexts
        ]
        actor = ExploringActor(policy, source, explorations, adders)
        if self.memory is not None:
            for context, state in zip(contexts, actor.states, strict=True):
                context.memory[_STATE_KEY] = state  # Checkpoints of deterministic runs hold it.
        return actor

    def make_evaluator(self, source: VariableSource) -> PolicyActor:
        """Makes an evaluator: the policy without exploration."""
        return PolicyActor(self.make_evaluation_policy(source), source)

    def _replicated(
        self,
        replicator: rr.Replicator,
        total_steps: int,
        input_fn: Callable[[Any], tf.data.Dataset],
        priorities: Priorities | None,
    ) -> ReplayLearner:
        """Makes the replicated learner.

        Args:
          replicator: runs its step.
          total_steps: approximate number of learner steps of the whole run.
          input_fn: `InputContext` -> dataset of `Sample`s.
          priorities: writes the new priorities; None if there are none.
        """
        config = self.config
        with replicator.scope():
            module = self.make_module(replicator, max(1, total_steps))
            _check_acting(module)
            if config.policy_average > 1:
                networks = self.make_acting_networks()
                module = PolicyAverage(module, networks, config.policy_average)
        return ReplayLearner(
            module,
            replicator,
            input_fn=input_fn,
            priorities=priorities,
            steps_per_call=config.steps_per_call,
            dtype=self._layers_dtype,
        )

    @functools.cached_property
    def observations(self) -> StateObservations | PixelObservations:
        """The parts that depend on the kind of observation."""
        return make_observations(self.config, self.environment_spec)

    @property
    def _layers_dtype(self) -> tf.DType:
        """The dtype of the learner's fully connected layers; float32 from pixels."""
        config = self.config
        return tf.float32 if isinstance(config, EncoderSettings) else tf.as_dtype(config.precision)

    def _demand(self, num_replicas: int) -> LearnerDemand:
        config = self.config
        return LearnerDemand(config.global_batch_size, config.steps_per_call, num_replicas)


class OffPolicyAgent(PolicyAgent):
    """An agent with a policy and a critic that learns from n-step transitions in a replay table.

    It implements `agents.agent.Agent`; its config is an `OffPolicyConfig`.
    """

    def check_config(self) -> None:
        """See `PolicyAgent`; a window of steps is an item alone."""
        super().check_config()
        items = self.config.replay.transitions_per_item
        is_good = self.sequences is None or items in (1, ReplayConfig.transitions_per_item)
        expected = "1, because each item is a window of steps"
        check_option(is_good, "agent.replay.transitions_per_item", expected, items)

    @property
    def initial_priority(self) -> float:
        """Priority of a transition that the learner has not seen."""
        return 1.0

    @property
    def adder_type(self) -> type[NStepTransitionAdder]:
        """The adder that stores them."""
        return ReturnAdder if self.follows_returns else NStepTransitionAdder

    @property
    def sequences(self) -> SequenceConfig | None:
        """The windows that the learner's batches consist of, as `agents.replay.sequences.Sequence`.

        None, as by default without a memory, if it learns from n-step transitions. From sequences,
        `n_step_return` computes them.
        """
        if self.memory is None:
            return None
        memory = self.config.memory
        length = memory.burn_in + memory.trained_steps + self.config.n_step
        return SequenceConfig(length, memory.period, memory.burn_in)

    def make_steps(self) -> MakeSteps:
        """Makes the function from a batch, and seeds by stream, to the steps that it trains."""
        augment = self.observations.augment
        if self.memory is None:
            return lambda sample, seed: TransitionSteps(sample, seed, augment)
        memory, n_step = self.config.memory, self.config.n_step
        return lambda sample, seed: WindowSteps(sample, seed, augment, memory, n_step)

    @property
    def replay(self) -> ReplayConfig:
        """The settings of the table; of sequences, it counts windows."""
        replay = self.config.replay
        return replay if self.sequences is None else replay.of_windows(self.sequences.period)

    def estimate_memory(
        self, make_environment: Callable[[], dm_env.Environment], inserts: int
    ) -> MemoryEstimate:
        """See `agents.agent.Agent`."""
        return self.observations.estimate_memory(make_environment, self.layout, inserts)

    def make_tables(
        self, num_replicas: int, num_shards: int = 1, online_fraction: float = 1.0
    ) -> Sequence[reverb.Table]:
        """Makes one table of n-step transitions, or two."""
        demand = self._demand(num_replicas)
        try:
            return make_tables(self.replay, demand, self.layout, num_shards, online_fraction)
        except ConfigError as error:
            if self.sequences is None:
                raise
            period = self.sequences.period
            raise ConfigError(
                f"{error}; these count windows, of which one starts every {period} steps, so the "
                f"option is {period} times as large; or lower --agent.global-batch-size"
            ) from None

    def make_adder(
        self,
        client: reverb.Client,
        on_wait: Callable[[float], bool | None],
        table: str = TABLE,
    ) -> NStepTransitionAdder:
        """Makes the adder, which writes discounted n-step transitions."""
        return self.adder_type(
            client,
            self.layout,
            n_step=self.config.n_step if self.sequences is None else 1,
            discount=self.discount,
            initial_priority=self.initial_priority,
            max_in_flight=self.config.replay.max_in_flight_items,
            on_wait=on_wait,
            table=table,
        )

    def learner_steps(self, agent_steps: int) -> int:
        """See `agents.agent.Agent`."""
        replay = self.config.replay
        # The learner starts when the table has `min_size` rows, and takes no extra steps for these.
        inserts = max(0, agent_steps - replay.min_size)
        if self.sequences is not None:
            inserts //= self.sequences.period
        return int(inserts * replay.samples_per_insert / self.config.global_batch_size)

    def make_learner(
        self,
        replicator: rr.Replicator,
        replay_addresses: Sequence[str],
        total_steps: int,
        online_fraction: float = 1.0,
    ) -> ReplayLearner:
        """Makes the replicated learner."""
        demand = self._demand(replicator.num_replicas)
        input_fn = make_input_fn(replay_addresses, self.layout, demand, online_fraction)
        is_prioritized = self.config.replay.priority_exponent > 0
        writer = PriorityWriter(replay_addresses, online_fraction) if is_prioritized else None
        return self._replicated(replicator, total_steps, input_fn, writer)

    def make_local_learner(
        self, replicator: rr.Replicator, replay: LocalTable, total_steps: int
    ) -> ReplayLearner:
        """See `agents.agent.Agent`."""
        is_known = self.memory is not None or self.adder_type is ReturnAdder
        if self.extras_spec != () and not is_known:
            raise ConfigError(
                f"--deterministic: expected an agent without extras, got {type(self).__name__} "
                "with extras, which cannot be computed again; leave the option out"
            )
        demand = self._demand(replicator.num_replicas)
        input_fn = replay.make_input_fn(self.layout, demand)
        priorities = replay if self.config.replay.priority_exponent > 0 else None
        return self._replicated(replicator, total_steps, input_fn, priorities)

    @functools.cached_property
    def layout(self) -> Layout:
        """How transitions are laid out in the table."""
        return self.observations.make_layout(self.extras_spec, self.sequences)


class TwinCriticAgent(OffPolicyAgent):
    """An agent with two critics of the expected return, such as TD3 and SAC.

    Attributes:
      learner_type: the class that `make_module` constructs.
    """

    learner_type: Callable[..., StepModule]
    trains_batch_norm = True

    def check_config(self) -> None:
        """See `PolicyAgent`."""
        super().check_config()
        self.make_td_loss()

    def make_td_loss(self) -> TDLoss:
        """Returns the critics' loss: TD errors [B, 2] -> losses [B, 2], one for each error."""
        return find_td_loss(self.config.td_loss)

    def make_module(self, replicator: rr.Replicator, total_steps: int) -> StepModule:
        """See `PolicyAgent`."""
        online, target = self.make_networks(self.make_twin_critic)
        return self.learner_type(
            self.config,
            online=online,
            target=target,
            total_steps=total_steps,
            augment=self.observations.augment,
            replicator=replicator,
            td_loss=self.make_td_loss(),
            scale=self.make_scale(),
        )


def _check_acting(module: StepModule) -> None:
    """Checks that actors will find their networks: one without variables is missed much later."""
    found = sorted(module.acting_networks)
    if not {"encoder", "policy"} <= set(found):
        raise ConfigError(
            f"expected acting_networks of {type(module).__name__} with 'encoder' and 'policy', got "
            f"{found}; return those of the online networks"
        )
