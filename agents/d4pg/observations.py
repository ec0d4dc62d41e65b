"""What depends on the kind of observation: its place in the replay, its encoder, its batches.

All else of D4PG is the same from state and from pixels.
"""

import dataclasses
from typing import Protocol

import dm_env
import numpy as np
import sonnet as snt
import tensorflow as tf
from acme import specs

from agents.acting.frame_stack import FrameStack, Memory, Present
from agents.d4pg.config import D4PGConfig
from agents.d4pg.networks import (
    CategoricalCritic,
    NoEncoder,
    PixelCritic,
    Policy,
    tanh_with_way_back,
)
from agents.d4pg.pixel_config import PixelD4PGConfig
from agents.networks.augmentation import random_shift
from agents.networks.encoders import make_encoder, smallest_frame
from agents.replay.frames import FrameLayout
from agents.replay.memory_estimate import ReplaySize, predict
from agents.replay.transitions import Layout, TransitionLayout
from rl_replicator.errors import check_option
from rl_replicator.layers import precision


class Observations(Protocol):
    """The parts of the agent that know what an observation is."""

    @property
    def published(self) -> tuple[str, ...]:
        """Networks that an actor needs."""
        ...

    @property
    def acts_with_xla(self) -> bool:
        """Whether an actor's networks gain from it."""
        ...

    def spec(self) -> tf.TensorSpec:
        """One observation of the agent."""
        ...

    def layout(self) -> Layout:
        """Of the replay."""
        ...

    def replay_size(self, environment: dm_env.Environment) -> ReplaySize | None:
        """How large the replay will become; None where that is not worth a word."""
        ...

    def make_encoder(self, name: str) -> snt.Module:
        """[B, ...] observations -> [B, F] float32 features; not yet built."""
        ...

    def make_policy(self, name: str) -> Policy:
        """[B, F] features -> [B, A] actions; not yet built."""
        ...

    def make_critic(self, atoms: np.ndarray, name: str) -> snt.Module:
        """([B, F] features, [B, A] actions) -> [B, Z] logits of the [Z] atoms; not yet built."""
        ...

    def augment(self, observations: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        """[B, ...] observations of a batch -> those to train on. The seed is [2] int32."""
        ...

    def make_memory(self) -> Memory:
        """For an actor."""
        ...


@dataclasses.dataclass(frozen=True)
class StateObservations:
    """See `Observations`: float32 vectors, which need no encoder.

    Attributes:
      config: hyper-parameters.
      environment_spec: of an environment with flat observations.
    """

    config: D4PGConfig
    environment_spec: specs.EnvironmentSpec
    published = ("policy",)
    acts_with_xla = True

    def spec(self) -> tf.TensorSpec:
        """[N] float32."""
        return tf.TensorSpec(self.environment_spec.observations.shape, tf.float32)

    def layout(self) -> TransitionLayout:
        """One row for each transition."""
        return TransitionLayout(self.environment_spec)

    def replay_size(self, environment: dm_env.Environment) -> None:
        """A million rows take less than most machines have."""

    def make_encoder(self, name: str) -> NoEncoder:
        """None."""
        return NoEncoder(name)

    def make_policy(self, name: str) -> Policy:
        """See `Observations`."""
        return Policy(self.config.policy_layers, self.environment_spec.actions.shape[0], name)

    def make_critic(self, atoms: np.ndarray, name: str) -> CategoricalCritic:
        """See `Observations`."""
        return CategoricalCritic(self.config.critic_layers, len(atoms), name)

    def augment(self, observations: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        """As they are."""
        del seed
        return observations

    def make_memory(self) -> Present:
        """See `Observations`."""
        return Present()


@dataclasses.dataclass(frozen=True)
class PixelObservations:
    """See `Observations`: stacks of frames, uint8.

    Attributes:
      config: hyper-parameters.
      environment_spec: of an environment with one frame as observation.
    """

    config: PixelD4PGConfig
    environment_spec: specs.EnvironmentSpec
    published = ("encoder", "policy")
    acts_with_xla = False

    def __post_init__(self) -> None:
        """Raises ConfigError if the frames are too small for the encoder."""
        size, least = min(self.layout().frame_shape[:2]), smallest_frame(self.config.encoder)
        expected = f"at least {least} pixels for the encoder '{self.config.encoder}'"
        check_option(size >= least, "picture.height, --picture.width", expected, size)

    def spec(self) -> tf.TensorSpec:
        """[H, W, C * S] uint8."""
        return tf.TensorSpec(self.layout().observation_shape, tf.uint8)

    def layout(self) -> FrameLayout:
        """Each frame once."""
        config = self.config
        return FrameLayout(
            self.environment_spec, config.frame_stack, config.n_step, config.replay.chunk_length
        )

    def replay_size(self, environment: dm_env.Environment) -> ReplaySize:
        """See `Observations`."""
        replay = self.config.replay
        return predict(environment, replay.max_size, replay.chunk_length)

    def make_encoder(self, name: str) -> snt.Module:
        """The convolutional network."""
        return make_encoder(self.config.encoder, precision.choose(self.config.precision), name)

    def make_policy(self, name: str) -> Policy:
        """See `Observations`; its first layer narrows the features."""
        layers = (self.config.feature_size, *self.config.policy_layers)
        num_actions = self.environment_spec.actions.shape[0]
        return Policy(layers, num_actions, name, squash=tanh_with_way_back)

    def make_critic(self, atoms: np.ndarray, name: str) -> PixelCritic:
        """See `Observations`."""
        return PixelCritic(self.config.feature_size, self.config.critic_layers, atoms, name)

    def augment(self, observations: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        """Shifts every picture at random."""
        if self.config.max_shift == 0:
            return observations
        return random_shift(observations, seed, self.config.max_shift)

    def make_memory(self) -> FrameStack:
        """See `Observations`."""
        return FrameStack(self.config.frame_stack)


def observations_of(
    config: D4PGConfig, environment_spec: specs.EnvironmentSpec
) -> StateObservations | PixelObservations:
    """The parts that fit a config: it says what it was made for."""
    if isinstance(config, PixelD4PGConfig):
        return PixelObservations(config, environment_spec)
    return StateObservations(config, environment_spec)
