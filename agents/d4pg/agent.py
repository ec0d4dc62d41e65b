"""D4PG as the program sees it: five factories over one config."""

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence

import dm_env
import numpy as np
import reverb
import sonnet as snt
import tensorflow as tf
from acme import specs

import rl_replicator as rr
from agents.acting.actors import Acting, ExploringActor, GaussianNoise, LinearSchedule, PolicyActor
from agents.agent import VariableSource
from agents.d4pg.config import D4PGConfig
from agents.d4pg.learner import D4PGLearner
from agents.d4pg.networks import D4PGNetworks, Policy
from agents.d4pg.observations import PixelObservations, StateObservations, observations_of
from agents.learning.replay_learner import ReplayLearner
from agents.replay.adder import NStepTransitionAdder
from agents.replay.input import make_input_fn
from agents.replay.memory_estimate import ReplaySize
from agents.replay.table import LearnerDemand, make_table
from agents.replay.transitions import Layout
from rl_replicator.errors import ConfigError


@dataclasses.dataclass(frozen=True)
class D4PG:
    """The D4PG agent (see `agents.agent.Agent` for the contract of the five `make_*`).

    Its config says whether it sees states or pictures (`agents.d4pg.observations`).

    Attributes:
      config: hyper-parameters.
      environment_spec: of the environment to act in.
    """

    config: D4PGConfig
    environment_spec: specs.EnvironmentSpec

    def __post_init__(self) -> None:
        # What cannot work is an error before anything starts.
        self.atoms()
        observations_of(self.config, self.environment_spec)

    def replay_size(self, environment: dm_env.Environment) -> ReplaySize | None:
        """See `agents.agent.Agent`."""
        return self._observations.replay_size(environment)

    def make_tables(self, num_replicas: int) -> Sequence[reverb.Table]:
        """One prioritized table of n-step transitions."""
        return [make_table(self.config.replay, self._demand(num_replicas), self._layout)]

    def make_adder(
        self, client: reverb.Client, on_wait: Callable[[float], None]
    ) -> NStepTransitionAdder:
        """Writes n-step transitions, discounted. A new row has the highest priority that a row can
        have with a critic that knows nothing: KL(target || uniform) is at most log(atoms)."""
        return NStepTransitionAdder(
            client,
            self._layout,
            n_step=self.config.n_step,
            discount=self.config.discount,
            initial_priority=math.log(self.config.num_atoms),
            max_in_flight_items=self.config.replay.max_in_flight_items,
            on_wait=on_wait,
        )

    def make_actor(
        self,
        source: VariableSource,
        adder: NStepTransitionAdder,
        random: np.random.Generator,
        environment_steps: Callable[[], int],
    ) -> ExploringActor:
        """The online policy with Gaussian noise, less and less of it where so configured."""
        config = self.config
        start, end = config.exploration_sigma, config.exploration_sigma_end
        schedule = LinearSchedule(start, start if end is None else end, config.exploration_steps)
        noise = GaussianNoise(lambda: schedule(environment_steps()), random)
        return ExploringActor(self._acting(source), source, noise, adder)

    def make_evaluator(self, source: VariableSource) -> PolicyActor:
        """The online policy, without noise."""
        return PolicyActor(self._acting(source), source)

    def make_learner(
        self, replicator: rr.Replicator, replay_address: str, total_agent_steps: int
    ) -> ReplayLearner:
        """The learner, replicated; its importance exponent ends its growth with the run."""
        config = self.config
        demand = self._demand(replicator.num_replicas)
        samples = total_agent_steps * config.replay.samples_per_insert
        with replicator.scope():
            module = self.make_module(
                replicator, importance_steps=max(1, int(samples / config.global_batch_size))
            )
        return ReplayLearner(
            module,
            replicator,
            input_fn=make_input_fn(replay_address, self._layout, demand),
            replay_address=replay_address,
            steps_per_call=config.steps_per_call,
            published=self._observations.published,
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
            augment=self._observations.augment,
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

    @functools.cached_property
    def _observations(self) -> StateObservations | PixelObservations:
        return observations_of(self.config, self.environment_spec)

    @functools.cached_property
    def _layout(self) -> Layout:
        return self._observations.layout()

    def _acting(self, source: VariableSource) -> Acting:
        # Answered when the learner has drawn its weights. In threads all draw from one stream, and
        # the run's seed is to fix those of the learner.
        names = self._observations.published
        source.get_variables(names)
        encoder, policy = self._acting_networks("")
        networks = {"encoder": encoder, "policy": policy}
        return Acting(
            networks={name: networks[name] for name in names},
            act=lambda observation: policy(encoder(observation)),
            observation_spec=self._observations.spec(),
            memory=self._observations.make_memory(),
            jit_compile=self._observations.acts_with_xla,
        )

    def _acting_networks(self, prefix: str) -> tuple[snt.Module, Policy]:
        spec = self._observations.spec()
        encoder = self._observations.make_encoder(f"{prefix}encoder")
        policy = self._observations.make_policy(f"{prefix}policy")
        policy(encoder(tf.zeros([1, *spec.shape], spec.dtype)))
        return encoder, policy

    def _networks(self, prefix: str) -> D4PGNetworks:
        spec = self._observations.spec()
        encoder, policy = self._acting_networks(prefix)
        critic = self._observations.make_critic(self.atoms(), f"{prefix}critic")
        features = encoder(tf.zeros([1, *spec.shape], spec.dtype))
        critic(features, tf.zeros([1, *self.environment_spec.actions.shape]))
        return D4PGNetworks(encoder, policy, critic)
