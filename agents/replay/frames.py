"""Frames in the replay: each is stored once, and stacks are formed when they are read.

An episode is one trajectory of frames; an item is a window onto it, and windows that overlap share
their compressed chunks. With S frames in a stack and n steps in a transition, an episode of frames
f_0 .. f_T lies in the table as

    f_0 .. f_0 (S times)   f_1 .. f_T   f_T .. f_T (n - 1 times)

and the item of step t is the S + n frames that start S - 1 before f_t. Its first S frames are the
stack at t. The stack at the bootstrap observation starts k frames later, after as many steps as the
return has: k = n, and less if the episode ends before.

A frame is stored as its difference to f_0, modulo 256: if the camera stands still it is mostly
zeros and takes a third of the memory. Each item also refers to f_0, of which there is one.
"""

from typing import Any

import numpy as np
import reverb
import tensorflow as tf
from acme import specs, types

from agents.replay.transitions import TABLE, Extras, TableWriter, check_array


class FrameLayout:
    """See `agents.replay.transitions.Layout`, for observations of one frame each.

    An item is `{"first": [H, W, C] uint8, "differences": [S + n, H, W, C] uint8, "row": [A + E + 3]
    float32}`, a row being `[action | extras | n-step return | n-step discount | k]`.
    """

    transitions_per_item = 1

    def __init__(
        self,
        spec: specs.EnvironmentSpec,
        stack: int,
        n_step: int,
        chunk_length: int,
        extras_spec: Any = (),
    ):
        """Lays out transitions of an environment.

        Args:
          spec: of an environment with uint8 frames [H, W, C] and float32 actions [A].
          stack: frames in an observation of the agent.
          n_step: steps in a full transition.
          chunk_length: frames that are compressed together. Sampling decompresses whole chunks.
          extras_spec: nest of float32 `specs.Array` that actors record with each action.

        Raises:
          ValueError: if an observation is not a uint8 frame, or an action not a float32 vector.
        """
        frame, action = spec.observations, spec.actions
        if len(frame.shape) != 3 or frame.dtype != np.uint8:
            raise ValueError(
                f"expected uint8 frames [height, width, channels], got shape {frame.shape} of "
                f"{frame.dtype}; make the environment with `pixels=`"
            )
        if len(action.shape) != 1 or action.dtype != np.float32:
            raise ValueError(
                f"expected a float32 vector as action, got shape {action.shape} of {action.dtype}; "
                "wrap the environment with `environments.make`"
            )
        self.frame_shape: tuple[int, int, int] = tuple(frame.shape)
        self.action_size = action.shape[0]
        self.stack = stack
        self.n_step = n_step
        self.chunk_length = chunk_length
        self.window = stack + n_step
        self._extras = Extras(extras_spec)
        self.signature = {
            "first": tf.TensorSpec(self.frame_shape, tf.uint8, "first"),
            "differences": tf.TensorSpec([self.window, *self.frame_shape], tf.uint8, "differences"),
            "row": tf.TensorSpec([self.action_size + self._extras.size + 3], tf.float32, "row"),
        }

    @property
    def observation_shape(self) -> tuple[int, int, int]:
        """[H, W, C * S]: the agent's observation, the newest frame last."""
        height, width, channels = self.frame_shape
        return height, width, channels * self.stack

    def open(self, client: reverb.Client) -> "FrameWriter":
        """See `Layout`."""
        return FrameWriter(self, client)

    def check_observation(self, observation: object) -> None:
        """See `Layout`."""
        check_array("observation", observation, self.frame_shape, np.uint8)

    def check_action(self, action: object, extras: object) -> None:
        """See `Layout`."""
        check_array("action", action, (self.action_size,), np.float32)
        self._extras.check(extras)

    def pack_row(self, transition: types.Transition, steps: int) -> np.ndarray:
        """Packs all of a transition but its frames into a row [A + E + 3] float32.

        Args:
          transition: arrays.
          steps: between its two observations.
        """
        extras = self._extras.pack(transition.extras)
        numbers = np.array([transition.reward, transition.discount, steps], np.float32)
        return np.concatenate([transition.action, extras, numbers])

    def unpack(self, data: Any) -> types.Transition:
        """See `Layout`; observations are [B, S, H, W, C] uint8, the oldest frame first.

        The learner stacks them along channels (`agents.networks.augmentation`): this function runs
        in the thread of the input, and moving single channels takes longer than all the rest of it.
        """
        row = data["row"]
        frames = data["differences"] + data["first"][:, None]  # [B, S + n, H, W, C]
        steps = tf.cast(row[:, -1], tf.int32)  # [B]
        later = tf.gather(frames, steps[:, None] + tf.range(self.stack), batch_dims=1)
        return types.Transition(
            observation=frames[:, : self.stack],
            action=row[:, : self.action_size],
            reward=row[:, -3],
            discount=row[:, -2],
            next_observation=later,
            extras=self._extras.unpack(row[:, self.action_size : -3]),
        )


class FrameWriter(TableWriter):
    """See `agents.replay.transitions.EpisodeWriter`."""

    def __init__(self, layout: FrameLayout, client: reverb.Client):
        """Opens the writer.

        Args:
          layout: of the items.
          client: of the replay server.
        """
        alive = max(layout.window, layout.chunk_length)
        super().__init__(client.trajectory_writer(num_keep_alive_refs=alive))
        self._layout = layout
        for column in ("difference", "row"):
            self._columns.configure(
                (column,), num_keep_alive_refs=alive, max_chunk_length=layout.chunk_length
            )
        # Alive until the next episode has begun.
        self._columns.configure(("first",), num_keep_alive_refs=1, max_chunk_length=1)
        self._first: np.ndarray | None = None
        self._stored_first: Any = None

    def begin(self, observation: np.ndarray) -> None:
        """See `EpisodeWriter`: the first frame fills the stack."""
        self._first = observation
        zeros = np.zeros_like(observation)
        self._columns.append({"first": observation, "difference": zeros})
        self._stored_first = self._columns.history["first"][-1]
        for _ in range(self._layout.stack - 1):
            self._columns.append({"difference": zeros})

    def follow(self, observation: np.ndarray) -> None:
        """See `EpisodeWriter`."""
        self._columns.append({"difference": observation - self._first})

    def write(self, transition: types.Transition, steps: int, priority: float) -> None:
        """See `EpisodeWriter`."""
        difference = transition.next_observation - self._first
        row = self._layout.pack_row(transition, steps)
        self._columns.append({"difference": difference, "row": row})
        history = self._columns.history
        item = {
            "first": self._stored_first,
            "differences": history["difference"][-self._layout.window :],
            "row": history["row"][-1],
        }
        self._columns.create_item(TABLE, priority, item)
