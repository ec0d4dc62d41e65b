"""D4PG as the program sees it: five factories over one config."""

import dataclasses
import math
from collections.abc import Callable, Sequence

import numpy as np
import reverb
import tensorflow as tf
from acme import specs

import rl_replicator as rr
from agents.actors import ExploringActor, GaussianNoise, PolicyActor
from agents.agent import VariableSource
from agents.d4pg.config import D4PGConfig
from agents.d4pg.learner import D4PGLearner
from agents.d4pg.networks import CategoricalCritic, D4PGNetworks, Policy
from agents.replay.adder import NStepTransitionAdder
from agents.replay.input import make_input_fn
from agents.replay.table import LearnerDemand, make_table
from agents.replay.transitions import TransitionLayout
from agents.replay_learner import ReplayLearner
from rl_replicator.errors import ConfigError


@dataclasses.dataclass(frozen=True)
class D4PG:
    """The D4PG agent (see `agents.agent.Agent` for the contract of the five `make_*`).

    Attributes:
      config: hyper-parameters.
      environment_spec: of the environment to act in.
    """

    config: D4PGConfig
    environment_spec: specs.EnvironmentSpec

    def __post_init__(self) -> None:
        self.atoms()  # A value range that cannot be known is an error before anything starts.

    def make_tables(self, num_replicas: int) -> Sequence[reverb.Table]:
        """One prioritized table of n-step transitions."""
        return [make_table(self.config.replay, self._demand(num_replicas), self._layout())]

    def make_adder(
        self, client: reverb.Client, on_wait: Callable[[float], None]
    ) -> NStepTransitionAdder:
        """Writes n-step transitions, discounted. A new row has the highest priority that a row can
        have with a critic that knows nothing: KL(target || uniform) is at most log(atoms)."""
        return NStepTransitionAdder(
            client,
            self._layout(),
            n_step=self.config.n_step,
            discount=self.config.discount,
            initial_priority=math.log(self.config.num_atoms),
            max_in_flight_items=self.config.replay.max_in_flight_items,
            on_wait=on_wait,
        )

    def make_actor(
        self, source: VariableSource, adder: NStepTransitionAdder, random: np.random.Generator
    ) -> ExploringActor:
        """The online policy with Gaussian noise."""
        noise = GaussianNoise(self.config.exploration_sigma, random)
        size = self._layout().observation_size
        return ExploringActor(self._acting_policy(source), source, size, noise, adder)

    def make_evaluator(self, source: VariableSource) -> PolicyActor:
        """The online policy, without noise."""
        return PolicyActor(self._acting_policy(source), source, self._layout().observation_size)

    def make_learner(
        self, replicator: rr.Replicator, replay_address: str, total_environment_steps: int
    ) -> ReplayLearner:
        """The learner, replicated; its importance exponent ends its growth with the run."""
        config = self.config
        demand = self._demand(replicator.num_replicas)
        samples = total_environment_steps * config.replay.samples_per_insert
        with replicator.scope():
            module = self.make_module(
                replicator, importance_steps=max(1, int(samples / config.global_batch_size))
            )
        return ReplayLearner(
            module,
            replicator,
            input_fn=make_input_fn(replay_address, self._layout(), demand),
            replay_address=replay_address,
            steps_per_call=config.steps_per_call,
            published=("policy",),
        )

    def make_module(self, replicator: rr.Replicator, importance_steps: int) -> D4PGLearner:
        """The learner's variables and its step; call it inside `replicator.scope()`.

        Args:
          replicator: whose scope this is.
          importance_steps: learner steps over which the importance exponent grows to its end.
        """
        return D4PGLearner(
            self.config,
            online=self._networks(""),
            target=self._networks("target_"),
            atoms=self.atoms(),
            importance_steps=importance_steps,
            replicator=replicator,
        )

    def atoms(self) -> np.ndarray:
        """The support of the critic: [Z] float32, evenly spaced.

        A return lies between the lowest and the highest reward times 1 / (1 - gamma), the sum of
        gamma**t over all t.

        Raises:
          ConfigError: if neither the environment nor the config says how large a reward can be.
        """
        config, reward = self.config, self.environment_spec.rewards
        horizon = 1.0 / (1.0 - config.discount)
        low, high = config.value_min, config.value_max
        if low is None:
            low = float(np.min(getattr(reward, "minimum", -np.inf))) * horizon
        if high is None:
            high = float(np.max(getattr(reward, "maximum", np.inf))) * horizon
        if math.isfinite(low) and math.isfinite(high) and low >= high:
            raise ConfigError(
                f"--agent.value-min: expected less than the highest return ({high:g}), got "
                f"{low:g}; pass --agent.value-min and --agent.value-max"
            )
        if not (math.isfinite(low) and math.isfinite(high)):
            raise ConfigError(
                "expected the range of returns, but this environment does not bound its rewards "
                f"(got [{low:g}, {high:g}]); pass --agent.value-min and --agent.value-max"
            )
        return np.linspace(low, high, config.num_atoms, dtype=np.float32)

    def _demand(self, num_replicas: int) -> LearnerDemand:
        config = self.config
        return LearnerDemand(config.global_batch_size, config.steps_per_call, num_replicas)

    def _layout(self) -> TransitionLayout:
        return TransitionLayout(self.environment_spec)

    def _acting_policy(self, source: VariableSource) -> Policy:
        # Answered when the learner has drawn its weights. In threads all draw from one stream, and
        # the run's seed is to fix those of the learner.
        source.get_variables(["policy"])
        return self._policy()

    def _policy(self, prefix: str = "") -> Policy:
        layout = self._layout()
        policy = Policy(self.config.policy_layers, layout.action_size, name=f"{prefix}policy")
        policy(tf.zeros([1, layout.observation_size]))
        return policy

    def _networks(self, prefix: str) -> D4PGNetworks:
        layout = self._layout()
        policy = self._policy(prefix)
        critic = CategoricalCritic(
            self.config.critic_layers, self.config.num_atoms, name=f"{prefix}critic"
        )
        critic(tf.zeros([1, layout.observation_size]), tf.zeros([1, layout.action_size]))
        return D4PGNetworks(policy, critic)
