"""Frames in the replay: each is stored once, and stacks are formed when they are read.

An episode is one trajectory of frames; an item is a window onto it, and windows that overlap share
their compressed chunks. With S frames in a stack and n steps in a transition, an episode of frames
f_0 .. f_T lies in the table as

    f_0 .. f_0 (S times)   f_1 .. f_T   f_T .. f_T (n - 1 times)

and the transition of step t is the S + n frames that start S - 1 before f_t. Its first S frames are
the stack at t. The stack at the bootstrap observation starts k frames later, where k is the number
of steps in the return: n, or fewer if the episode ends before.

An item holds one transition, or L consecutive ones of one episode, with L - 1 more frames. The last
item of an episode whose length is not a multiple of L begins in the item before it; an episode
shorter than L repeats some of its transitions.

A frame is stored as its difference to f_0, modulo 256: if the camera stands still it is mostly
zeros and takes a third of the memory. Each item also refers to f_0, which is stored once.

A vector may belong to each frame. It is a column of its own, of which an item has the
part from f_t on.
"""

import collections
import itertools
from collections.abc import Mapping
from typing import Any

import numpy as np
import reverb
import tensorflow as tf
from acme import specs, types

from agents.replay.transitions import TABLE, EpisodeWriter, Layout
from environments.flat import frame_of


def vector_size(observation: Any) -> int:
    """Returns the length of the vector beside the frame, from the spec; 0 if there is none."""
    return observation["vector"].shape[0] if isinstance(observation, Mapping) else 0


def frame_shape(observation: Any) -> tuple[int, int, int]:
    """Returns height, width and channels of the frame in an observation.

    Args:
      observation: the spec of an observation, see `frame_of`.

    Raises:
      ValueError: if it has no uint8 frame.
    """
    frame = frame_of(observation)
    if len(frame.shape) != 3 or frame.dtype != np.uint8:
        raise ValueError(
            f"expected uint8 frames [height, width, channels], got shape {frame.shape} of "
            f"{frame.dtype}; make the environment with `pixels=`"
        )
    height, width, channels = frame.shape
    return height, width, channels


def difference(observation: Any, first: Any) -> dict[str, np.ndarray]:
    """Returns the columns of an observation in an episode that began with the frame `first`."""
    if not isinstance(observation, Mapping):
        return {"difference": observation - first}
    return {"difference": observation["pixels"] - first, "vector": observation["vector"]}


class FrameLayout(Layout):
    """See `agents.replay.transitions.Layout`, for observations of one frame each.

    An item of one transition is `{"first": [H, W, C] uint8, "differences": [S + n, H, W, C] uint8,
    "row": [A + E + 3] float32}`, a row being `[action | extras | n-step return | n-step discount |
    k]`. An item of L transitions has S + n + L - 1 differences and L rows, [L, A + E + 4] float32,
    with t at the end of each. With vectors of N numbers, there is `"vector": [n + L, N] float32`.

    Attributes:
      vector_size: N, 0 if observations are frames alone.
    """

    def __init__(
        self,
        spec: specs.EnvironmentSpec,
        stack: int,
        n_step: int,
        chunk_length: int,
        extras_spec: Any = (),
        transitions_per_item: int = 1,
    ):
        """Lays out transitions of an environment.

        Args:
          spec: the spec of an environment with uint8 frames [H, W, C].
          stack: frames in an observation of the agent.
          n_step: steps in a full transition.
          chunk_length: frames that are compressed together. Sampling decompresses whole chunks.
          extras_spec: nest of float32 `specs.Array` that actors record with each action.
          transitions_per_item: L.

        Raises:
          ValueError: if an observation is not a uint8 frame, or see `ActionColumns`.
        """
        self.frame_shape = frame_shape(spec.observations)
        self.vector_size = vector_size(spec.observations)
        super().__init__(spec, extras_spec, transitions_per_item)
        self.stack = stack
        self.n_step = n_step
        self.chunk_length = chunk_length
        self.window = stack + n_step + transitions_per_item - 1
        row = [self._action.size + self._extras.size + 3]
        if transitions_per_item > 1:
            row = [transitions_per_item, row[0] + 1]
        self.signature = {
            "first": tf.TensorSpec(self.frame_shape, tf.uint8, "first"),
            "differences": tf.TensorSpec([self.window, *self.frame_shape], tf.uint8, "differences"),
            "row": tf.TensorSpec(row, tf.float32, "row"),
        }
        if self.vector_size:
            shape = [self.window - stack + 1, self.vector_size]
            self.signature["vector"] = tf.TensorSpec(shape, tf.float32, "vector")

    def open(self, client: reverb.Client, table: str = TABLE) -> EpisodeWriter:
        """See `Layout`."""
        return FrameWriter(self, client, table)

    def columns(self, client: reverb.Client) -> reverb.TrajectoryWriter:
        """Opens Reverb's writer, configured for the frames and what belongs to each."""
        alive = max(self.window, self.chunk_length)
        columns = client.trajectory_writer(num_keep_alive_refs=alive)
        for column in ("difference", "row", "vector"):
            columns.configure(
                (column,), num_keep_alive_refs=alive, max_chunk_length=self.chunk_length
            )
        # Alive until the next episode has begun.
        columns.configure(("first",), num_keep_alive_refs=1, max_chunk_length=1)
        return columns

    def pack_row(self, transition: types.Transition, steps: int, step: int) -> np.ndarray:
        """Packs a transition, except its frames, into a row of the signature's width.

        Args:
          transition: arrays, with packed extras.
          steps: number of steps between its two observations.
          step: t, the number of its step in the episode.
        """
        numbers = [transition.reward, transition.discount, steps]
        if self.transitions_per_item > 1:
            numbers.append(step)
        action = np.ravel(transition.action).astype(np.float32, copy=False)
        return np.concatenate([action, transition.extras, np.array(numbers, np.float32)])

    def unpack(self, data: Any, places: tf.Tensor | None = None) -> types.Transition:
        """See `Layout`; observations are [B, S, H, W, C] uint8, the oldest frame first.

        With a vector they are `{"pixels": [B, S, H, W, C], "vector": [B, N]}`, of the newest frame.
        The learner stacks them along channels (`agents.networks.encoders`): this function runs
        in the thread of the input, and moving single channels takes longer than everything else in
        it.
        """
        row, start = data["row"], tf.zeros([data["row"].shape[0]], tf.int32)  # [B, A + E + 3], [B]
        if places is not None:
            row = tf.gather(data["row"], places, batch_dims=1)
            start = tf.cast(row[:, -1] - data["row"][:, 0, -1], tf.int32)
            row = row[:, :-1]

        def observation_at(start: tf.Tensor) -> Any:
            window = start[:, None] + tf.range(self.stack)
            frames = tf.gather(data["differences"], window, batch_dims=1) + data["first"][:, None]
            if not self.vector_size:
                return frames
            return {"pixels": frames, "vector": tf.gather(data["vector"], start, batch_dims=1)}

        return types.Transition(
            observation=observation_at(start),
            action=self._action.unpack(row[:, : self._action.size]),
            reward=row[:, -3],
            discount=row[:, -2],
            next_observation=observation_at(start + tf.cast(row[:, -1], tf.int32)),
            extras=self._extras.unpack(row[:, self._action.size : -3]),
        )


class FrameWriter(EpisodeWriter):
    """A writer whose items are windows onto the frames of an episode."""

    def __init__(self, layout: FrameLayout, client: reverb.Client, table: str):
        """Opens the writer.

        Args:
          layout: the layout of the items.
          client: the client of the replay server.
          table: name of the table.
        """
        super().__init__(layout.columns(client), layout.transitions_per_item)
        self._layout, self._table = layout, table
        self._first: np.ndarray | None = None
        self._stored_first: Any = None
        self._newest: Mapping[str, np.ndarray] = {}
        # Of the current episode: the newest rows, the number of all rows, and of those in no item
        # yet.
        self._rows: collections.deque[np.ndarray] = collections.deque(maxlen=self._length)
        self._num_rows = self._num_pending = 0
        self._priority = 0.0

    def begin(self, observation: np.ndarray) -> None:
        """See `EpisodeWriter`: the first frame fills the stack."""
        self.complete()
        self._rows.clear()
        self._num_rows = 0
        self._first = frame_of(observation)
        step = difference(observation, self._first)
        self._columns.append({"first": self._first, **step})
        self._stored_first = self._columns.history["first"][-1]
        for _ in range(self._layout.stack - 1):
            self._columns.append(step)

    def append_observation(self, observation: np.ndarray) -> None:
        """See `EpisodeWriter`."""
        self._columns.append(difference(observation, self._first))

    def write(self, transition: types.Transition, steps: int, priority: float) -> None:
        """See `EpisodeWriter`."""
        self._newest = difference(transition.next_observation, self._first)
        self._priority = priority
        self._append(self._layout.pack_row(transition, steps, self._num_rows))
        self._num_rows += 1
        self._num_pending += 1
        if self._num_pending == self._length:
            self._create_item()

    def complete(self) -> None:
        """See `EpisodeWriter`; no more may be written to an episode of fewer than L transitions."""
        if not self._num_pending:
            return
        rows = itertools.cycle(tuple(self._rows))
        for _ in range(self._length - self._num_rows):
            self._append(next(rows))
        self._create_item()

    def _append(self, row: np.ndarray) -> None:
        self._columns.append({**self._newest, "row": row})
        self._rows.append(row)

    def _create_item(self) -> None:
        history = self._columns.history
        rows = history["row"]
        item = {
            "first": self._stored_first,
            "differences": history["difference"][-self._layout.window :],
            "row": rows[-1] if self._length == 1 else rows[-self._length :],
        }
        if self._layout.vector_size:
            item["vector"] = history["vector"][self._layout.stack - 1 - self._layout.window :]
        self._columns.create_item(self._table, self._priority, item)
        self._num_pending = 0
