"""Pictures in the replay: every frame is stored once, and stacks are formed when they are read.

An episode is one trajectory of frames; an item is a window onto it, and windows that overlap share
their compressed chunks. With S frames in a stack and n steps in a transition, an episode of frames
f_0 .. f_T lies in the table as

    f_0 .. f_0 (S times)   f_1 .. f_T   f_T .. f_T (n - 1 times)

and the item of step t is the S + n frames that start S - 1 before f_t. Its first S frames are the
stack at t. The stack at the bootstrap observation starts k frames later, after as many steps as the
return has: k = n, and less where the episode ends before.

What is stored of a frame is its difference to f_0, modulo 256: where the camera stands still it is
mostly zeros, and takes a third of the memory. Each item refers to f_0 too, of which there is one.
"""

from typing import Any

import numpy as np
import reverb
import tensorflow as tf
from acme import specs, types

from agents.replay.transitions import check_array


class FrameLayout:
    """See `agents.replay.transitions.Layout`, for observations of one frame each.

    An item is `{"first": [H, W, C] uint8, "differences": [S + n, H, W, C] uint8, "row": [A + 3]
    float32}`, a row being `[action | n-step return | n-step discount | k]`.
    """

    def __init__(self, spec: specs.EnvironmentSpec, stack: int, n_step: int, chunk_length: int):
        """Lays out transitions of an environment.

        Args:
          spec: of an environment with uint8 frames [H, W, C] and float32 actions [A].
          stack: frames in an observation of the agent.
          n_step: steps in a full transition.
          chunk_length: frames that are compressed together. Sampling decompresses whole chunks.

        Raises:
          ValueError: if an observation is no uint8 frame, or an action no float32 vector.
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
        self.signature = {
            "first": tf.TensorSpec(self.frame_shape, tf.uint8, "first"),
            "differences": tf.TensorSpec([self.window, *self.frame_shape], tf.uint8, "differences"),
            "row": tf.TensorSpec([self.action_size + 3], tf.float32, "row"),
        }

    @property
    def observation_shape(self) -> tuple[int, int, int]:
        """[H, W, C * S]: what the agent sees, the newest frame last."""
        height, width, channels = self.frame_shape
        return height, width, channels * self.stack

    def open(self, client: reverb.Client) -> "FrameWriter":
        """See `Layout`."""
        return FrameWriter(self, client)

    def check_observation(self, observation: object) -> None:
        """See `Layout`."""
        check_array("observation", observation, self.frame_shape, np.uint8)

    def check_action(self, action: object) -> None:
        """See `Layout`."""
        check_array("action", action, (self.action_size,), np.float32)

    def unpack(self, data: Any) -> types.Transition:
        """[B, ...] items -> a transition with stacks [B, H, W, C * S] uint8.

        The channels of the oldest frame come first.
        """
        row = data["row"]
        frames = data["differences"] + data["first"][:, None]  # [B, S + n, H, W, C]
        steps = tf.cast(row[:, -1], tf.int32)  # [B]
        later = tf.gather(frames, steps[:, None] + tf.range(self.stack), batch_dims=1)
        return types.Transition(
            observation=stacked(frames[:, : self.stack]),
            action=row[:, :-3],
            reward=row[:, -3],
            discount=row[:, -2],
            next_observation=stacked(later),
        )


class FrameWriter:
    """See `agents.replay.transitions.EpisodeWriter`."""

    def __init__(self, layout: FrameLayout, client: reverb.Client):
        """Args:
        layout: of the items.
        client: of the replay server.
        """
        self._layout = layout
        alive = max(layout.window, layout.chunk_length)
        self.columns = client.trajectory_writer(num_keep_alive_refs=alive)
        for column in ("difference", "row"):
            self.columns.configure(
                (column,), num_keep_alive_refs=alive, max_chunk_length=layout.chunk_length
            )
        # Alive until the next episode has begun.
        self.columns.configure(("first",), num_keep_alive_refs=1, max_chunk_length=1)
        self._first: np.ndarray | None = None
        self._stored_first: Any = None

    def begin(self, observation: np.ndarray) -> None:
        """The first frame fills the stack."""
        self._first = observation
        nothing = np.zeros_like(observation)
        self.columns.append({"first": observation, "difference": nothing})
        self._stored_first = self.columns.history["first"][-1]
        for _ in range(self._layout.stack - 1):
            self.columns.append({"difference": nothing})

    def follow(self, observation: np.ndarray) -> None:
        """See `EpisodeWriter`."""
        self.columns.append({"difference": observation - self._first})

    def write(self, transition: types.Transition, steps: int) -> Any:
        """See `EpisodeWriter`."""
        row = np.empty(self._layout.action_size + 3, np.float32)
        row[:-3] = transition.action
        row[-3:] = transition.reward, transition.discount, steps
        self.columns.append({"difference": transition.next_observation - self._first, "row": row})
        history = self.columns.history
        return {
            "first": self._stored_first,
            "differences": history["difference"][-self._layout.window :],
            "row": history["row"][-1],
        }


def stacked(frames: tf.Tensor) -> tf.Tensor:
    """[B, S, H, W, C] -> [B, H, W, S * C], the first frame's channels first."""
    stack, height, width, channels = frames.shape[1:]
    last = tf.transpose(frames, [0, 2, 3, 1, 4])
    return tf.ensure_shape(
        tf.reshape(last, [-1, height, width, stack * channels]),
        [frames.shape[0], height, width, stack * channels],
    )
