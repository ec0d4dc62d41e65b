"""Unrolls: consecutive steps of one environment, across the ends of its episodes.

An unroll of T steps has T + 1 rows, the last of which is also the first one of the next unroll: it
has the observation to bootstrap from. A row is one observation and what followed it. If an episode
was terminated, nothing follows its last action, and its last observation has no row. If it was cut
off, its last observation has a row of its own, without an action and with a discount of 0, so that
its value is known and nothing of the next episode counts.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import dm_env
import numpy as np
import reverb
import tensorflow as tf
from acme import specs, types

from agents.replay.adder import TableAdder
from agents.replay.frames import vector_size
from agents.replay.transitions import TABLE, ItemLayout
from environments.flat import frame_of

# Unrolls of an environment that were sent and that the table has not taken yet.
_MAX_IN_FLIGHT = 1
# Columns of a row in front of its action: first, valid, reward, discount, returns.
_NUMBERS = 5


class Unroll(NamedTuple):
    """A batch of unrolls of T steps.

    Attributes:
      observation: [B, T + 1, N] float32, or [B, T + 1, S, H, W, C] uint8 stacks of frames, the
        oldest frame first, or both: `{"pixels", "vector"}`.
      action: [B, T + 1, A] float32 or [B, T + 1] int32; 0 where a row is not valid.
      reward: [B, T + 1] float32, the reward that followed; 0 where a row is not valid.
      discount: [B, T + 1] float32, gamma times the discount that followed; 0 where a row is not
        valid.
      valid: [B, T + 1] float32, 1 where a row has an action.
      first: [B, T + 1] float32, 1 where an episode starts.
      returns: [B, T + 1] float32, the discounted rewards of the episode so far, including `reward`.
      extras: nest of [B, T + 1, ...] float32, the extras of the action.
    """

    observation: tf.Tensor
    action: tf.Tensor
    reward: tf.Tensor
    discount: tf.Tensor
    valid: tf.Tensor
    first: tf.Tensor
    returns: tf.Tensor
    extras: Any


class UnrollLayout(ItemLayout):
    """An item is `{"observation": [S + T, ...], "row": [S + T, W] float32}`.

    S is the number of observations in a stack, 1 from state: the S - 1 rows in front of the unroll
    hold the earlier frames, each of which is stored once. With a vector of N numbers beside each
    frame, there is `"vector": [S + T, N] float32`. A row is `[first | valid | reward |
    discount | returns | action | extras]`.

    Attributes:
      transitions_per_item: T.
      window: S + T.
      stack: S.
      has_vector: whether there is a vector beside each frame.
    """

    def __init__(
        self, spec: specs.EnvironmentSpec, length: int, stack: int | None, extras_spec: Any
    ):
        """Lays out the steps of an environment.

        Args:
          spec: the spec of an environment with flat float32 observations, or uint8 frames.
          length: T.
          stack: S for frames, None for the state.
          extras_spec: nest of float32 `specs.Array` that actors record with each action.

        Raises:
          ValueError: see `ActionColumns` and `Extras`.
        """
        super().__init__(spec, extras_spec, transitions_per_item=length)
        self.stack = stack or 1
        self.window = self.stack + length
        self._has_stacks = stack is not None
        self.has_vector = vector_size(spec.observations) > 0
        self._width = _NUMBERS + self._action.size + self._extras.size
        frame = frame_of(spec.observations)
        self.signature = {
            "observation": tf.TensorSpec([self.window, *frame.shape], frame.dtype, "observation"),
            "row": tf.TensorSpec([self.window, self._width], tf.float32, "row"),
        }
        if self.has_vector:
            shape = [self.window, vector_size(spec.observations)]
            self.signature["vector"] = tf.TensorSpec(shape, tf.float32, "vector")

    def row(self, is_first: bool) -> np.ndarray:
        """Returns a row without an action: [W] float32."""
        row = np.zeros(self._width, np.float32)
        row[0] = is_first
        return row

    def pack(self, row: np.ndarray, action: Any, numbers: tuple[float, ...], extras: Any) -> None:
        """Adds an action to a row.

        Args:
          row: a row without an action, which changes.
          action: the action.
          numbers: its reward, its discount, and the discounted rewards so far.
          extras: its extras.

        Raises:
          ValueError: if the extras do not fit the layout.
        """
        end = _NUMBERS + self._action.size
        row[1], row[2:_NUMBERS] = 1.0, numbers
        row[_NUMBERS:end], row[end:] = action, self._extras.pack(extras)

    def unpack(self, data: Any) -> Unroll:
        """Unpacks a batch: nest of [B, ...] tensors, as `signature` -> `Unroll`."""
        rows = data["row"][:, self.stack - 1 :]  # [B, T + 1, W]
        end = _NUMBERS + self._action.size

        def each(function: Callable[[tf.Tensor], Any], columns: tf.Tensor) -> Any:
            """Applies a function of [B * (T + 1), ...]."""
            flat = function(tf.reshape(columns, [-1, columns.shape[-1]]))
            lead = [-1, self.transitions_per_item + 1]
            return tf.nest.map_structure(lambda x: tf.reshape(x, [*lead, *x.shape[1:]]), flat)

        first, valid, reward, discount, returns = tf.unstack(rows[..., :_NUMBERS], axis=-1)
        return Unroll(
            observation=self._observations(data),
            action=each(self._action.unpack, rows[..., _NUMBERS:end]),
            reward=reward,
            discount=discount,
            valid=valid,
            first=first,
            returns=returns,
            extras=each(self._extras.unpack, rows[..., end:]),
        )

    def _observations(self, data: Any) -> Any:
        """Forms stacks; the first frame of an episode fills those that begin before it."""
        if not self._has_stacks:
            return data["observation"]
        places = tf.range(self.window)
        begins = tf.where(data["row"][..., 0] > 0, places, 0)  # [B, S + T]
        # The start of the episode of each row, 0 if it is earlier.
        is_before = places[None, :] <= places[:, None]  # [S + T, S + T]
        starts = tf.reduce_max(tf.where(is_before, begins[:, None, :], 0), axis=-1)
        wanted = places[self.stack - 1 :, None] - tf.range(self.stack)[::-1]  # [T + 1, S]
        indices = tf.maximum(wanted, starts[:, self.stack - 1 :, None])  # [B, T + 1, S]
        frames = tf.gather(data["observation"], indices, batch_dims=1)
        if not self.has_vector:
            return frames
        return {"pixels": frames, "vector": data["vector"][:, self.stack - 1 :]}


class _UnrollWriter:
    """Writes unrolls, each as one chunk."""

    def __init__(self, client: reverb.Client, table: str):
        self._table = table
        self._columns = client.trajectory_writer(num_keep_alive_refs=1)
        for column in ("observation", "row", "vector"):
            self._columns.configure((column,), num_keep_alive_refs=1, max_chunk_length=1)

    def write(self, item: Any) -> None:
        self._columns.append(item)
        newest = {name: column[-1] for name, column in self._columns.history.items()}
        self._columns.create_item(self._table, 1.0, newest)

    def complete(self) -> None:
        """Does nothing: an unroll that lacks steps is not written."""

    def flush(self, max_in_flight: int, timeout_ms: int) -> None:
        self._columns.flush(block_until_num_items=max_in_flight, timeout_ms=timeout_ms)

    def close(self) -> None:
        self._columns.close()


class UnrollAdder(TableAdder):
    """Writes unrolls of T steps, episode after episode."""

    def __init__(
        self,
        client: reverb.Client,
        layout: UnrollLayout,
        discount: float,
        on_wait: Callable[[float], bool | None],
        table: str = TABLE,
    ):
        """Opens a writer on the table.

        Args:
          client: the client of the server.
          layout: the layout of the items.
          discount: gamma.
          on_wait: see `TableAdder`.
          table: name of the table.
        """
        super().__init__(_UnrollWriter(client, table), layout, _MAX_IN_FLIGHT, on_wait)
        self._discount = discount
        self._steps: list[Any] = []  # Pairs of an observation and its row.
        self._is_first = False
        self._returns = self._factor = 0.0

    def reset(self) -> None:
        """Ends an episode that was cut off: its last observation gets a row without an action."""
        if self._observation is not None:
            row = self._layout.row(self._is_first)
            row[_NUMBERS - 1] = self._returns
            self._append(row)
            self._observation = None

    def add_first(self, timestep: dm_env.TimeStep) -> None:
        """Starts an episode; see `TableAdder`."""
        super().add_first(timestep)
        self._is_first = True
        self._returns = self._factor = 0.0

    def add(
        self,
        action: types.NestedArray,
        next_timestep: dm_env.TimeStep,
        extras: types.NestedArray = (),
    ) -> None:
        """Adds an action and the step it led to.

        Args:
          action: [A] float32 or an int32 number.
          next_timestep: what the environment returned for it.
          extras: data on the action for the learner, as the layout specifies them.

        Raises:
          ValueError: if `add_first` was not called, or the step does not fit the layout.
        """
        self.check(action, next_timestep)
        reward, discount = float(next_timestep.reward), float(next_timestep.discount)
        self._returns = reward + self._factor * self._returns
        self._factor = self._discount * discount
        row = self._layout.row(self._is_first)
        self._layout.pack(row, action, (reward, self._factor, self._returns), extras)
        self._append(row)
        self._observation, self._is_first = next_timestep.observation, False
        if next_timestep.last():
            if discount == 0:
                self._observation = None
            self.reset()

    def pending(self) -> list[Any]:
        """See `agents.agent.StepAdder`."""
        return [[*step] for step in self._steps]

    def set_pending(self, steps: list[Any]) -> None:
        """See `agents.agent.StepAdder`."""
        self._steps = [tuple(step) for step in steps]

    def _append(self, row: np.ndarray) -> None:
        """Adds a row at the newest observation; writes the unroll that this completes."""
        before = self._layout.stack - 1
        if not self._steps:  # What would be in front of the first unroll; no stack has it.
            self._steps = [(self._observation, self._layout.row(False))] * before
        self._steps.append((self._observation, row))
        if len(self._steps) == self._layout.window:
            observations, rows = zip(*self._steps, strict=True)
            frames = np.stack([frame_of(each) for each in observations])
            item = {"observation": frames, "row": np.stack(rows)}
            if self._layout.has_vector:
                item["vector"] = np.stack([each["vector"] for each in observations])
            self._writer.write(item)
            self._steps = self._steps[-1 - before :]
            self.flush()
