"""Sequences in the replay: an item is a window of consecutive steps of one episode.

With a window of L steps, every P-th step of an episode starts one. A prefix of F steps in front of
that step belongs to the window, too. An episode of observations o_0 .. o_T lies in the table as

    o_0 (F times)   o_0 .. o_(T-1)   o_T (as often as its last window needs)

and each step but these copies of o_0 and o_T, which fill windows, is valid: it has the action at
its observation, and the reward and the discount that followed. So o_T can be bootstrapped from, and
nothing of another episode is in a window. An episode that is cut off ends like one that is
truncated, at the last observation that was written.
"""

import collections
from typing import Any, NamedTuple

import numpy as np
import reverb
import tensorflow as tf
from acme import specs, types

from agents.replay.config import SequenceConfig
from agents.replay.frames import FrameLayout, difference
from agents.replay.transitions import (
    ROWS_PER_CHUNK,
    SEQUENCE,
    TABLE,
    ActionColumns,
    EpisodeWriter,
    Extras,
    TransitionLayout,
)
from environments.flat import frame_of


class Sequence(NamedTuple):
    """A batch of windows of L steps.

    Attributes:
      observation: [B, L, N] float32, or [B, L, S, H, W, C] uint8 stacks of frames, the oldest frame
        first, or both: `{"pixels", "vector"}`.
      action: [B, L, A] float32 or [B, L] int32; 0 where a step is not valid.
      reward: [B, L] float32, the reward that followed; 0 where a step is not valid.
      discount: [B, L] float32, gamma times the discount that followed; 0 where a step is not valid.
      valid: [B, L] float32, 1 where a step has an action; these steps are consecutive.
      extras: nest of [B, ...] tensors, the extras of the action of the first step; 0 if that step
        is not valid.
    """

    observation: tf.Tensor
    action: tf.Tensor
    reward: tf.Tensor
    discount: tf.Tensor
    valid: tf.Tensor
    extras: Any


class NStepReturn(NamedTuple):
    """Returns of the first L - n steps of windows.

    Attributes:
      reward: [B, L - n] R_n.
      discount: [B, L - n] d, the factor of the value at `place`; gamma is in it.
      place: [B, L - n] int32, the position in the window of the observation to bootstrap from.
    """

    reward: tf.Tensor
    discount: tf.Tensor
    place: tf.Tensor


def n_step_return(sequence: Sequence, n: int) -> NStepReturn:
    """Computes n-step returns inside windows; at an episode's end they have fewer steps.

    As `agents.replay.adder.n_step_return` does for transitions. Where a step is not valid, its
    return is 0 and its place its own.

    Args:
      sequence: windows of L steps.
      n: number of rewards, less than L.
    """
    count = sequence.reward.shape[1] - n
    total, factor, steps = tf.zeros([]), tf.ones([]), tf.zeros([])
    for i in range(n):
        reward, discount, valid = (
            x[:, i : i + count] for x in (sequence.reward, sequence.discount, sequence.valid)
        )  # [B, L - n] each
        # A prefix is followed by valid steps, which are not those of its own steps.
        is_counted = valid * sequence.valid[:, :count]
        total += factor * reward * is_counted
        factor *= 1.0 - is_counted * (1.0 - discount)
        steps += is_counted
    place = tf.range(count) + tf.cast(steps, tf.int32)
    return NStepReturn(total, factor, place)


class StepColumns:
    """Packs steps into float32 rows: `[action | reward | discount | valid | extras]`.

    Attributes:
      width: numbers in a row, with those in front.
    """

    def __init__(self, action: ActionColumns, extras: Extras, start: int = 0):
        """Stores the parts.

        Args:
          action: the numbers of an action.
          extras: the numbers of the extras.
          start: numbers in front of an action.
        """
        self._action, self._extras = action, extras
        self._start, self._end = start, start + action.size
        self.width = self._end + 3 + extras.size

    def pack(self, row: np.ndarray, transition: types.Transition, has_extras: bool) -> None:
        """Packs a transition of one step, without its observations.

        Args:
          row: [width] zeros, which change.
          transition: arrays, with packed extras.
          has_extras: whether a window may start with the step.
        """
        row[self._start : self._end] = transition.action
        row[self._end : self._end + 3] = transition.reward, transition.discount, 1.0
        if has_extras:
            row[self._end + 3 :] = transition.extras

    def unpack(self, observation: tf.Tensor, rows: tf.Tensor) -> Sequence:
        """Unpacks a batch.

        Args:
          observation: the observations of the batch.
          rows: [B, L, width] float32.
        """
        end = self._end
        return Sequence(
            observation=observation,
            action=self._action.unpack(rows[..., self._start : end]),
            reward=rows[..., end],
            discount=rows[..., end + 1],
            valid=rows[..., end + 2],
            extras=self._extras.unpack(rows[:, 0, end + 3 :]),
        )


class SequenceLayout(TransitionLayout):
    """Windows of steps whose observations are vectors; see `agents.replay.transitions.Layout`.

    An item is [L, N + W] float32, each row an observation and its `StepColumns`. Only rows that a
    window may start with have extras.
    """

    def __init__(
        self, spec: specs.EnvironmentSpec, sequences: SequenceConfig, extras_spec: Any = ()
    ):
        """Lays out the steps of an environment.

        Args:
          spec: the spec of an environment with flat float32 observations [N].
          sequences: the windows.
          extras_spec: nest of float32 `specs.Array` that actors record with each action.

        Raises:
          ValueError: see `TransitionLayout`.
        """
        super().__init__(spec, extras_spec)
        self.sequences, self.period = sequences, sequences.period
        self.steps = StepColumns(self._action, self._extras, self.observation_size)
        self.width = self.steps.width
        self.signature = tf.TensorSpec([sequences.length, self.width], tf.float32, SEQUENCE)

    def open(self, client: reverb.Client, table: str = TABLE) -> EpisodeWriter:
        """See `Layout`."""
        chunk = max(ROWS_PER_CHUNK, self.sequences.period)
        alive = max(self.sequences.length, chunk)
        columns = client.trajectory_writer(num_keep_alive_refs=alive)
        columns.configure((), num_keep_alive_refs=alive, max_chunk_length=chunk)
        return SequenceWriter(self, columns, table)

    def unpack(self, rows: tf.Tensor, places: tf.Tensor | None = None) -> Sequence:
        """See `Layout`: [B, L, width] float32 rows, of which each item has one sequence."""
        del places
        return self.steps.unpack(rows[..., : self.observation_size], rows)


class FrameSequenceLayout(FrameLayout):
    """Windows of steps whose observations are stacks of frames, which are stored once.

    An item is `{"first": [H, W, C] uint8, "differences": [S + L - 1, H, W, C] uint8, "row": [L, W]
    float32}`; see `FrameLayout` for the frames. Each row has the vector of its
    observation, if there is one, and its `StepColumns`.
    """

    def __init__(
        self,
        spec: specs.EnvironmentSpec,
        sequences: SequenceConfig,
        stack: int,
        chunk_length: int,
        extras_spec: Any = (),
    ):
        """Lays out the steps of an environment.

        Args:
          spec: the spec of an environment with uint8 frames [H, W, C].
          sequences: the windows.
          stack: frames in an observation of the agent.
          chunk_length: see `FrameLayout`.
          extras_spec: nest of float32 `specs.Array` that actors record with each action.

        Raises:
          ValueError: see `FrameLayout`.
        """
        # After an episode's end are as many frames as in a transition of L steps.
        super().__init__(spec, stack, sequences.length, chunk_length, extras_spec)
        self.sequences, self.period = sequences, sequences.period
        self.steps = StepColumns(self._action, self._extras, self.vector_size)
        self.width = self.steps.width
        self.window = stack + sequences.length - 1
        self.signature = {
            "first": self.signature["first"],
            "differences": tf.TensorSpec([self.window, *self.frame_shape], tf.uint8, "differences"),
            "row": tf.TensorSpec([sequences.length, self.width], tf.float32, SEQUENCE),
        }

    def open(self, client: reverb.Client, table: str = TABLE) -> EpisodeWriter:
        """See `Layout`."""
        return FrameSequenceWriter(self, self.columns(client), table)

    def unpack(self, data: Any, places: tf.Tensor | None = None) -> Sequence:
        """See `Layout`; observations are [B, L, S, H, W, C] uint8, the oldest frame first.

        With vectors they are `{"pixels": [B, L, S, H, W, C], "vector": [B, L, N]}`.
        """
        del places
        windows = tf.range(self.sequences.length)[:, None] + tf.range(self.stack)  # [L, S]
        frames = tf.gather(data["differences"], windows, axis=1) + data["first"][:, None, None]
        vectors = data["row"][..., : self.vector_size]
        observation = {"pixels": frames, "vector": vectors} if self.vector_size else frames
        return self.steps.unpack(observation, data["row"])


class SequenceWriter(EpisodeWriter):
    """A writer whose items are windows of rows."""

    def __init__(
        self,
        layout: SequenceLayout | FrameSequenceLayout,
        columns: reverb.TrajectoryWriter,
        table: str,
    ):
        """Stores Reverb's writer.

        Args:
          layout: the layout of the items.
          columns: Reverb's writer, configured for the layout.
          table: name of the table.
        """
        super().__init__(columns, layout.transitions_per_item)
        self._table = table
        self._steps, self._sequences = layout.steps, layout.sequences
        self._priority = 0.0
        self._newest: types.Transition | None = None
        # Of the current episode: the rows that were appended, and the valid ones among them.
        self._num_rows = self._num_steps = 0
        self._rows: collections.deque[np.ndarray] = collections.deque(maxlen=self._sequences.length)

    def begin(self, observation: np.ndarray) -> None:
        """See `EpisodeWriter`."""
        self.complete()
        self._num_rows = 0
        self._rows.clear()
        for _ in range(self._sequences.prefix):
            self._append(observation, None)

    def append_observation(self, observation: np.ndarray) -> None:
        """Does nothing: `write` gets the observation."""

    def write(self, transition: types.Transition, steps: int, priority: float) -> None:
        """See `EpisodeWriter`.

        Raises:
          ValueError: if the transition has several steps.
        """
        if steps != 1:
            raise ValueError(f"expected an n_step of 1 for sequences, got {steps} steps")
        self._newest, self._priority = transition, priority
        self._num_steps += 1
        self._append(transition.observation, transition)

    def complete(self) -> None:
        """Completes the windows of an episode; no more may be written to it."""
        if self._newest is None:
            return
        period = self._sequences.period
        end = (self._num_steps - 1) // period * period + self._sequences.length
        while self._num_rows < end:
            self._append(self._newest.next_observation, None)
        self._newest, self._num_steps = None, 0

    def pending(self) -> list[Any]:
        """See `EpisodeWriter`."""
        return [row.copy() for row in self._rows]

    def set_pending(self, steps: list[Any]) -> None:
        """See `EpisodeWriter`."""
        for row, step in zip(self._rows, steps, strict=True):
            row[:] = step  # The table in this process keeps the row itself until it is in an item.

    def _append(self, observation: np.ndarray, transition: types.Transition | None) -> None:
        """Appends a row, and creates the window that ends with it, if any."""
        period, length = self._sequences.period, self._sequences.length
        row = np.zeros(self._steps.width, np.float32)
        if transition is not None:
            self._steps.pack(row, transition, has_extras=self._num_rows % period == 0)
        self._append_row(observation, row)
        self._rows.append(row)
        self._num_rows += 1
        start = self._num_rows - length
        if start >= 0 and start % period == 0:
            self._columns.create_item(self._table, self._priority, self._window())

    def _append_row(self, observation: np.ndarray, row: np.ndarray) -> None:
        row[: len(observation)] = observation
        self._columns.append(row)

    def _window(self) -> Any:
        return self._columns.history[-self._sequences.length :]


class FrameSequenceWriter(SequenceWriter):
    """A writer whose items are windows of rows and frames."""

    def __init__(self, layout: FrameSequenceLayout, columns: reverb.TrajectoryWriter, table: str):
        """Stores Reverb's writer; see `SequenceWriter`."""
        super().__init__(layout, columns, table)
        self._stack, self._num_frames = layout.stack, layout.window
        self._first: np.ndarray | None = None
        self._stored_first: Any = None

    def begin(self, observation: np.ndarray) -> None:
        """See `EpisodeWriter`: the first frame fills the stack."""
        self.complete()
        self._first = frame_of(observation)
        self._columns.append({"first": self._first})
        self._stored_first = self._columns.history["first"][-1]
        for _ in range(self._stack - 1):
            self._columns.append({"difference": np.zeros_like(self._first)})
        super().begin(observation)

    def _append_row(self, observation: np.ndarray, row: np.ndarray) -> None:
        columns = difference(observation, self._first)
        if "vector" in columns:
            vector = columns.pop("vector")
            row[: len(vector)] = vector
        self._columns.append({**columns, "row": row})

    def _window(self) -> Any:
        history = self._columns.history
        return {
            "first": self._stored_first,
            "differences": history["difference"][-self._num_frames :],
            "row": history["row"][-self._sequences.length :],
        }
