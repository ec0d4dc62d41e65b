"""Pictures in the replay: every frame is stored once, and stacks are formed when they are read.

An episode is one trajectory of frames; an item is a window onto it, and windows that overlap share
their compressed chunks. With S frames in a stack and n steps in a transition, an episode of frames
f_0 .. f_T lies in the table as

    f_0 .. f_0 (S times)   f_1 .. f_T   f_T .. f_T (n - 1 times)

and the item of step t is the S + n frames that start S - 1 before f_t. Its first S frames are the
stack at t. The stack at the bootstrap observation starts k frames later, after as many steps as the
return has: k = n, and less where the episode ends before.
"""

from typing import Any

import numpy as np
import reverb
import tensorflow as tf
from acme import specs, types

from agents.replay.transitions import check_array


class FrameLayout:
    """See `agents.replay.transitions.Layout`, for observations of one frame each.

    An item is `{"frames": [S + n, H, W, C] uint8, "row": [A + 3] float32}`, a row being
    `[action | n-step return | n-step discount | k]`.
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
        self.signature = {
            "frames": tf.TensorSpec([stack + n_step, *self.frame_shape], tf.uint8, "frames"),
            "row": tf.TensorSpec([self.action_size + 3], tf.float32, "row"),
        }

    @property
    def observation_shape(self) -> tuple[int, int, int]:
        """[H, W, C * S]: what the agent sees, the newest frame last."""
        height, width, channels = self.frame_shape
        return height, width, channels * self.stack

    def open(self, client: reverb.Client, n_step: int) -> reverb.TrajectoryWriter:
        """See `Layout`."""
        del n_step  # The layout's own.
        window = max(self.stack + self.n_step, self.chunk_length)
        writer = client.trajectory_writer(num_keep_alive_refs=window)
        for column in ("frame", "row"):
            writer.configure(
                (column,), num_keep_alive_refs=window, max_chunk_length=self.chunk_length
            )
        return writer

    def check_observation(self, observation: object) -> None:
        """See `Layout`."""
        check_array("observation", observation, self.frame_shape, np.uint8)

    def check_action(self, action: object) -> None:
        """See `Layout`."""
        check_array("action", action, (self.action_size,), np.float32)

    def begin(self, writer: reverb.TrajectoryWriter, observation: np.ndarray) -> None:
        """The first frame fills the stack."""
        for _ in range(self.stack):
            writer.append({"frame": observation})

    def follow(self, writer: reverb.TrajectoryWriter, observation: np.ndarray) -> None:
        """See `Layout`."""
        writer.append({"frame": observation})

    def write(
        self, writer: reverb.TrajectoryWriter, transition: types.Transition, steps: int
    ) -> Any:
        """See `Layout`."""
        row = np.empty(self.action_size + 3, np.float32)
        row[:-3] = transition.action
        row[-3:] = transition.reward, transition.discount, steps
        writer.append({"frame": transition.next_observation, "row": row})
        history = writer.history
        return {
            "frames": history["frame"][-(self.stack + self.n_step) :],
            "row": history["row"][-1],
        }

    def unpack(self, data: Any) -> types.Transition:
        """[B, S + n, H, W, C] frames and [B, A + 3] rows -> stacks [B, H, W, C * S] uint8.

        The channels of the oldest frame come first.
        """
        frames, row = data["frames"], data["row"]
        steps = tf.cast(row[:, -1], tf.int32)  # [B]
        later = tf.gather(frames, steps[:, None] + tf.range(self.stack), batch_dims=1)
        return types.Transition(
            observation=stacked(frames[:, : self.stack]),
            action=row[:, :-3],
            reward=row[:, -3],
            discount=row[:, -2],
            next_observation=stacked(later),
        )


def stacked(frames: tf.Tensor) -> tf.Tensor:
    """[B, S, H, W, C] -> [B, H, W, S * C], the first frame's channels first."""
    stack, height, width, channels = frames.shape[1:]
    last = tf.transpose(frames, [0, 2, 3, 1, 4])
    return tf.ensure_shape(
        tf.reshape(last, [-1, height, width, stack * channels]),
        [frames.shape[0], height, width, stack * channels],
    )
