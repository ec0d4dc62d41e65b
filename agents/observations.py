"""The parts that depend on the kind of observation: layout in the replay, encoder and batches.

Everything else of an agent is the same from state and from pixels.
"""

import functools
from collections.abc import Callable
from typing import Any

import dm_env
import sonnet as snt
import tensorflow as tf
from acme import specs

from agents.acting.acting_policy import FrameStack, LatestObservation
from agents.config import EncoderSettings, LearnerConfig
from agents.networks.encoders import (
    FrameAndVectorEncoder,
    IdentityEncoder,
    RunningNormalization,
    find_encoder,
    make_encoder,
    random_shift,
    smallest_frame,
    stacked,
)
from agents.replay.config import SequenceConfig
from agents.replay.frames import FrameLayout, frame_shape, vector_size
from agents.replay.memory_estimate import MemoryEstimate, estimate
from agents.replay.sequences import FrameSequenceLayout, SequenceLayout
from agents.replay.transitions import TransitionLayout
from environments.flat import mask_size
from rl_replicator.errors import check_option
from rl_replicator.layers import precision


class StateObservations:
    """Observations that are float32 vectors."""

    feature_size = None  # Policy and critic take all features.

    def __init__(self, config: Any, environment_spec: specs.EnvironmentSpec):
        """Stores the settings and the specs.

        Args:
          config: the config of the agent; layouts need an `OffPolicyConfig`.
          environment_spec: the spec of an environment with flat observations.
        """
        self._config = config
        self._environment_spec = environment_spec
        self._mask_size = mask_size(environment_spec.observations)

    def spec(self) -> tf.TensorSpec:
        """Returns the spec of [N] float32."""
        return tf.TensorSpec(self._environment_spec.observations.shape, tf.float32)

    def make_layout(
        self, extras_spec: Any, sequences: SequenceConfig | None = None
    ) -> TransitionLayout:
        """Returns a layout of rows; see `PixelObservations.make_layout`."""
        if sequences is not None:
            return SequenceLayout(self._environment_spec, sequences, extras_spec)
        return TransitionLayout(
            self._environment_spec, extras_spec, self._config.replay.item_length
        )

    def estimate_memory(
        self,
        make_environment: Callable[[], dm_env.Environment],
        layout: Any,
        inserts: int,
    ) -> MemoryEstimate:
        """Returns the size of the rows; see `PixelObservations.estimate_memory`."""
        del make_environment
        transitions = min(inserts, self._config.replay.max_size)
        return MemoryEstimate(transitions, 4.0 * layout.width, "before compression")

    def make_encoder(self, name: str) -> snt.Module:
        """Makes an encoder that returns its input without a mask, normalised or unchanged."""
        (size,) = self._environment_spec.observations.shape
        return _vector_encoder(self._config, size - self._mask_size, name)

    def mask(self, observations: tf.Tensor) -> tf.Tensor | None:
        """Returns which actions are legal, [..., A] float32, 0 where one is not; None: all are."""
        return observations[..., -self._mask_size :] if self._mask_size else None

    def augment(self, observations: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        """Returns `observations`."""
        del seed
        return observations

    def make_history(self) -> LatestObservation:
        """Makes a history of one observation."""
        return LatestObservation()


class PixelObservations:
    """Observations that are stacks of frames, with the methods of `StateObservations`.

    An actor's observations are [H, W, S * C] uint8. A batch has [B, S, H, W, C] uint8, which
    `augment` converts to [B, H, W, S * C] in the dtype of the convolutions. If the environment
    observes entries of its state too, all of these are `{"pixels": frames, "vector": [..., N]}`.
    """

    def __init__(self, settings: Any, environment_spec: specs.EnvironmentSpec):
        """Stores the settings and checks that the frames fit the encoder.

        Args:
          settings: the config of the agent, with `EncoderSettings`; layouts need an
            `OffPolicyConfig` with `PixelSettings`.
          environment_spec: the spec of an environment with one frame as observation, or one frame
            and a vector.

        Raises:
          ConfigError: if the frames are too small for the encoder, there is no such encoder, or
            there is nothing to normalise.
        """
        self._settings = settings
        self._frame_shape = frame_shape(environment_spec.observations)
        self._vector_size = vector_size(environment_spec.observations)
        self._mask_size = mask_size(environment_spec.observations)
        is_good = self._vector_size > self._mask_size or not settings.normalize_observations
        expected = "--frame.state with it, because frames are not normalised"
        check_option(is_good, "agent.normalize_observations", expected, True)
        self._environment_spec = environment_spec
        find_encoder(settings.encoder)
        size, least = min(self._frame_shape[:2]), smallest_frame(settings.encoder)
        expected = f"at least {least} pixels for the encoder '{settings.encoder}'"
        check_option(size >= least, "frame.height, --frame.width", expected, size)

    @property
    def feature_size(self) -> int:
        """Units to which policy and critic project the encoder's features."""
        return self._settings.feature_size

    def spec(self) -> Any:
        """Returns the spec of [H, W, S * C] uint8, or of that and of [N] float32."""
        height, width, channels = self._frame_shape
        frames = tf.TensorSpec([height, width, channels * self._settings.frame_stack], tf.uint8)
        if not self._vector_size:
            return frames
        return {"pixels": frames, "vector": tf.TensorSpec([self._vector_size], tf.float32)}

    def make_layout(self, extras_spec: Any, sequences: SequenceConfig | None = None) -> FrameLayout:
        """Returns a layout that stores each frame once.

        Args:
          extras_spec: nest of float32 `specs.Array` that actors record with each action.
          sequences: the windows of an agent that learns from sequences; None for transitions.
        """
        settings = self._settings
        if sequences is not None:
            return FrameSequenceLayout(
                self._environment_spec,
                sequences,
                settings.frame_stack,
                settings.replay.chunk_length,
                extras_spec,
            )
        return FrameLayout(
            self._environment_spec,
            settings.frame_stack,
            settings.n_step,
            settings.replay.chunk_length,
            extras_spec,
            settings.replay.item_length,
        )

    def estimate_memory(
        self,
        make_environment: Callable[[], dm_env.Environment],
        layout: Any,
        inserts: int,
    ) -> MemoryEstimate:
        """Estimates the memory of the replay table.

        Args:
          make_environment: makes an environment of the same kind, which is played for its frames.
          layout: the layout of the table.
          inserts: the largest number of transitions that the run inserts.
        """
        with make_environment() as environment:
            return estimate(environment, inserts, self._settings.replay.max_size, layout)

    def make_encoder(self, name: str) -> snt.Module:
        """Makes the convolutional network: [B, ...] observations to [B, F] float32 features.

        The vector without a mask, normalised or unchanged, follows the features of the frames.
        """
        frames = functools.partial(make_encoder, self._settings.encoder, self._dtype())
        if not self._vector_size:
            return frames(name)
        size = self._vector_size - self._mask_size
        vector = functools.partial(_vector_encoder, self._settings, size)
        return FrameAndVectorEncoder(frames, vector, name)

    def augment(self, observations: Any, seed: tf.Tensor) -> Any:
        """Stacks the frames and shifts every stack at random.

        Args:
          observations: [B, S, H, W, C] uint8 of a replica's batch, alone or with vectors, as the
            layout unpacks them.
          seed: [2] int32, equal on all replicas.
        """
        if self._vector_size:
            return {**observations, "pixels": self._augmented(observations["pixels"], seed)}
        return self._augmented(observations, seed)

    def _augmented(self, frames: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        frames = tf.cast(frames, self._dtype())
        if self._settings.max_shift == 0:
            return stacked(frames)
        return random_shift(frames, seed, self._settings.max_shift)

    def mask(self, observations: Any) -> tf.Tensor | None:
        """Returns which actions are legal; see `StateObservations.mask`."""
        return observations["vector"][..., -self._mask_size :] if self._mask_size else None

    def make_history(self) -> FrameStack:
        """Makes a stack of frames."""
        return FrameStack(self._settings.frame_stack)

    def _dtype(self) -> tf.DType:
        """Returns the dtype of the convolutions."""
        return precision.choose(self._settings.precision)


def make_observations(
    config: LearnerConfig, environment_spec: specs.EnvironmentSpec
) -> StateObservations | PixelObservations:
    """Makes the parts that fit a config: from pixels if it has `EncoderSettings`.

    Args:
      config: the config of an agent.
      environment_spec: the spec of the environment.

    Raises:
      ConfigError: if the frames are too small for the encoder, or there is no such encoder.
    """
    kind = PixelObservations if isinstance(config, EncoderSettings) else StateObservations
    return kind(config, environment_spec)


def _vector_encoder(config: LearnerConfig, size: int, name: str) -> snt.Module:
    kind = RunningNormalization if config.normalize_observations else IdentityEncoder
    return kind(name, size)
