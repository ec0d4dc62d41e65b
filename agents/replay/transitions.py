"""The contents of an item of the replay table, and their layout."""

import abc
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import reverb
import tensorflow as tf
import tree
from acme import specs, types

TABLE = "replay"
# The table of recorded transitions, in a run that mixes them with its own.
RECORDED = "recorded"
# The name of the rows in the signature of a table of sequences.
SEQUENCE = "sequence"
# Names of the extras of an agent with a memory: its state in front of an action, and the discounted
# rewards of `agents.replay.adder.ReturnAdder`.
STATE, RETURNS = "state", "discounted_rewards"

# Rows that are sent together, compressed as one chunk, if each is an item. A message to the server
# costs several times as much as its row, and a separate chunk takes 840 bytes; but a sampled row is
# decompressed with its whole chunk.
ROWS_PER_CHUNK = 8
_REMEDIES = {
    "environment": "make its spec and its steps agree",
    "agent": "correct what its exploration returns",
}


class EpisodeWriter(abc.ABC):
    """Writes the steps of one episode after another to the replay table."""

    def __init__(self, columns: reverb.TrajectoryWriter, transitions_per_item: int):
        """Stores Reverb's writer.

        Args:
          columns: Reverb's writer, configured for the layout.
          transitions_per_item: the number of transitions in an item of the layout.
        """
        self._columns = columns
        self._length = transitions_per_item

    @abc.abstractmethod
    def begin(self, observation: np.ndarray) -> None:
        """Starts an episode with this observation."""

    @abc.abstractmethod
    def append_observation(self, observation: np.ndarray) -> None:
        """Takes the next observation, which completes no transition."""

    @abc.abstractmethod
    def write(self, transition: types.Transition, steps: int, priority: float) -> None:
        """Writes a transition that ends with the newest observation.

        At the end of an episode several transitions end with its last observation; each of them
        takes one call.

        Args:
          transition: arrays; `next_observation` is the newest observation, and the extras are
            packed by the layout.
          steps: number of steps between its two observations, 1 to n.
          priority: the priority of the new item.
        """

    @abc.abstractmethod
    def complete(self) -> None:
        """Completes an item that lacks transitions, so that a flush sends all that was written."""

    def pending(self) -> list[Any]:
        """See `agents.agent.StepAdder`; [] if repeating the episode provides them."""
        return []

    def set_pending(self, steps: list[Any]) -> None:
        """See `agents.agent.StepAdder`."""
        del steps

    def flush(self, max_in_flight: int, timeout_ms: int) -> None:
        """Sends complete items; waits until few enough transitions are unconfirmed.

        Args:
          max_in_flight: transitions that may remain unconfirmed.
          timeout_ms: how long to wait.

        Raises:
          reverb.errors.DeadlineExceededError: if that takes longer than `timeout_ms`.
        """
        self._columns.flush(
            block_until_num_items=max_in_flight // self._length, timeout_ms=timeout_ms
        )

    def close(self) -> None:
        """Closes the writer; unconfirmed transitions may be lost."""
        self._columns.close()


class RowWriter(EpisodeWriter):
    """A writer whose items are one row or several consecutive ones.

    An item may span episodes, because each row holds a complete transition.
    """

    def __init__(self, layout: "TransitionLayout", client: reverb.Client, table: str):
        """Opens the writer.

        Args:
          layout: the layout of the rows.
          client: the client of the replay server.
          table: name of the table.
        """
        self._layout = layout
        self._table = table
        # An item of several rows is one chunk, so that nothing is decompressed unnecessarily.
        length = layout.transitions_per_item
        rows = length if length > 1 else ROWS_PER_CHUNK
        super().__init__(client.trajectory_writer(num_keep_alive_refs=rows), length)
        self._columns.configure((), num_keep_alive_refs=rows, max_chunk_length=rows)
        self._pending: list[np.ndarray] = []  # The rows of an item that is not complete.
        self._priority = 0.0

    def begin(self, observation: np.ndarray) -> None:
        """Does nothing: a row holds both of its observations."""

    def append_observation(self, observation: np.ndarray) -> None:
        """Does nothing."""

    def write(self, transition: types.Transition, steps: int, priority: float) -> None:
        """See `EpisodeWriter`."""
        del steps
        self._priority = priority
        self._append(self._layout.pack(transition))

    def complete(self) -> None:
        """Repeats rows in an incomplete item: none is lost, and a few are sampled more often."""
        rows = self._pending.copy()
        while self._pending:
            self._append(rows[len(self._pending) % len(rows)])

    def _append(self, row: np.ndarray) -> None:
        self._columns.append(row)
        self._pending.append(row)
        if len(self._pending) == self._length:
            history = self._columns.history
            item = history[-1] if self._length == 1 else history[-self._length :]
            self._columns.create_item(self._table, self._priority, item)
            self._pending.clear()


class Extras:
    """Packs a nest of float32 arrays, which actors record with each action, into a vector."""

    def __init__(self, spec: Any):
        """Stores the spec.

        Args:
          spec: nest of float32 `specs.Array`; () for no extras.

        Raises:
          ValueError: if an array is not float32.
        """
        self._spec = spec
        self._leaves = tree.flatten(spec)
        for leaf in self._leaves:
            if leaf.dtype != np.float32:
                raise ValueError(
                    f"expected float32 extras, got {leaf.name!r} of {leaf.dtype}; cast it in the "
                    "agent's exploration"
                )
        self._sizes = [math.prod(leaf.shape) for leaf in self._leaves]
        self.size = sum(self._sizes)

    def pack(self, extras: Any) -> np.ndarray:
        """Copies the extras of one action into a vector: nest -> [size] float32.

        Raises:
          ValueError: if they do not fit the spec; names the field.
        """
        if self.size or not (isinstance(extras, tuple) and extras == ()):
            try:
                tree.assert_same_structure(self._spec, extras)
            except (TypeError, ValueError) as error:
                raise ValueError(
                    f"replay expects extras like {self._spec}, the agent gave {extras}; make its "
                    f"`extras_spec` and its exploration agree ({error})"
                ) from None
            for leaf, array in zip(self._leaves, tree.flatten(extras), strict=True):
                check_array("extras", array, tuple(leaf.shape), np.float32, "agent")
        if not self.size:
            return np.empty(0, np.float32)
        return np.concatenate([np.ravel(array) for array in tree.flatten(extras)])

    def unpack(self, packed: tf.Tensor) -> Any:
        """Unpacks a batch: [B, size] float32 -> nest of [B, ...] tensors."""
        parts = tf.split(packed, self._sizes, axis=-1) if self.size else []
        shaped = [
            tf.reshape(part, [-1, *leaf.shape])
            for part, leaf in zip(parts, self._leaves, strict=True)
        ]
        return tree.unflatten_as(self._spec, shaped)


class ActionColumns:
    """Stores an action among float32 numbers: [A] float32 as it is, an int32 number as one float.

    Attributes:
      size: numbers that an action takes.
    """

    def __init__(self, spec: specs.Array):
        """Stores the spec.

        Raises:
          ValueError: if an action is neither a float32 vector nor an int32 number.
        """
        self._is_discrete = spec.shape == () and spec.dtype == np.int32
        if not self._is_discrete and not (len(spec.shape) == 1 and spec.dtype == np.float32):
            raise ValueError(
                f"expected a float32 vector as action, or an int32 number, got shape {spec.shape} "
                f"of {spec.dtype}; wrap the environment with `environments.make`"
            )
        self._shape, self._dtype = tuple(spec.shape), spec.dtype.type
        self.size = 1 if self._is_discrete else spec.shape[0]

    def check(self, action: object) -> None:
        """Raises a ValueError unless it is an action."""
        check_array("action", action, self._shape, self._dtype, "agent")

    def unpack(self, columns: tf.Tensor) -> tf.Tensor:
        """Unpacks a batch: [..., size] float32 -> [..., A] float32 or [...] int32."""
        return tf.cast(columns[..., 0], tf.int32) if self._is_discrete else columns


class ItemLayout:
    """What all layouts of items have in common: the columns of actions and extras, and checks.

    Attributes:
      signature: nest of `tf.TensorSpec` of an item; [n, ...] if it has n transitions.
      transitions_per_item: transitions in an item of the table.
      period: transitions by which an item of an episode follows the one before.
    """

    signature: Any

    def __init__(self, spec: specs.EnvironmentSpec, extras_spec: Any, transitions_per_item: int):
        """Stores the specs.

        Args:
          spec: the spec of the environment.
          extras_spec: nest of float32 `specs.Array` that actors record with each action.
          transitions_per_item: see the attribute.

        Raises:
          ValueError: see `ActionColumns` and `Extras`.
        """
        self._spec = spec.observations
        self._action, self._extras = ActionColumns(spec.actions), Extras(extras_spec)
        self.transitions_per_item = self.period = transitions_per_item

    def check_observation(self, observation: Any) -> None:
        """Raises a ValueError that names the field, unless it fits the layout."""
        _check_observation(observation, self._spec)

    def check_action(self, action: object) -> None:
        """Raises a ValueError that names the field, unless it fits the layout."""
        self._action.check(action)

    def pack_extras(self, extras: Any) -> np.ndarray:
        """Copies the extras of one action into a vector [size] float32.

        Raises:
          ValueError: if they do not fit the layout.
        """
        return self._extras.pack(extras)


def _check_observation(observation: Any, spec: Any) -> None:
    if isinstance(spec, Mapping):
        given = observation if isinstance(observation, Mapping) else {}
        for name, each in spec.items():
            _check_observation(given.get(name), each)
        return
    shape, dtype = tuple(spec.shape), spec.dtype.type
    check_array("observation", observation, shape, dtype, "environment")


class Layout(ItemLayout, abc.ABC):
    """How transitions are laid out in the table; its writers and readers share one layout."""

    @abc.abstractmethod
    def open(self, client: reverb.Client, table: str = TABLE) -> EpisodeWriter:
        """Opens a writer on a table."""

    @abc.abstractmethod
    def unpack(self, data: Any, places: tf.Tensor | None = None) -> Any:
        """Unpacks a batch of transitions, one from each of B items.

        Args:
          data: nest of [B, ...] tensors with the structure of `signature`.
          places: [B] int32, index of the transition in each item; None if items have only one.

        Returns:
          A transition of [B, ...] tensors; its reward is R_n, its discount d, its extras those of
          its action. A layout of sequences returns an `agents.replay.sequences.Sequence`.
        """


class TransitionLayout(Layout):
    """Packs each transition into one float32 vector, and unpacks a batch of them.

    A row is `[observation | action | n-step return | n-step discount | next observation | extras]`.
    At these sizes Reverb's cost to insert and to sample grows with the number of columns, not of
    bytes: one column makes both two to three times cheaper than five (bench/results/README.md).
    """

    def __init__(
        self, spec: specs.EnvironmentSpec, extras_spec: Any = (), transitions_per_item: int = 1
    ):
        """Lays out transitions of an environment.

        Args:
          spec: the spec of an environment with flat float32 observations [N].
          extras_spec: nest of float32 `specs.Array` that actors record with each action.
          transitions_per_item: rows in an item of the table.

        Raises:
          ValueError: if an observation is not a float32 vector, or see `ActionColumns`.
        """
        array = spec.observations
        if len(array.shape) != 1 or array.dtype != np.float32:
            raise ValueError(
                f"expected a float32 vector as observation, got shape {array.shape} of "
                f"{array.dtype}; wrap the environment with `environments.make`"
            )
        super().__init__(spec, extras_spec, transitions_per_item)
        self.observation_size = array.shape[0]
        self._extras_start = 2 * self.observation_size + self._action.size + 2
        self.width = self._extras_start + self._extras.size
        shape = [self.width] if transitions_per_item == 1 else [transitions_per_item, self.width]
        self.signature = tf.TensorSpec(shape, tf.float32, "transition")

    def open(self, client: reverb.Client, table: str = TABLE) -> EpisodeWriter:
        """See `Layout`."""
        return RowWriter(self, client, table)

    def pack(self, transition: types.Transition) -> np.ndarray:
        """Packs one transition of arrays, with packed extras, into a row [width] float32."""
        n, a, e = self.observation_size, self._action.size, self._extras_start
        row = np.empty(self.width, np.float32)
        row[:n] = transition.observation
        row[n : n + a] = transition.action
        row[n + a] = transition.reward
        row[n + a + 1] = transition.discount
        row[n + a + 2 : e] = transition.next_observation
        row[e:] = transition.extras
        return row

    def unpack(self, rows: tf.Tensor, places: tf.Tensor | None = None) -> types.Transition:
        """See `Layout`; rows are [B, width] float32, or [B, n, width] with places."""
        if places is not None:
            rows = tf.gather(rows, places, batch_dims=1)
        n, a, e = self.observation_size, self._action.size, self._extras_start
        return types.Transition(
            observation=rows[:, :n],
            action=self._action.unpack(rows[:, n : n + a]),
            reward=rows[:, n + a],
            discount=rows[:, n + a + 1],
            next_observation=rows[:, n + a + 2 : e],
            extras=self._extras.unpack(rows[:, e:]),
        )


def check_array(name: str, value: object, shape: tuple[int, ...], dtype: type, giver: str) -> None:
    """Checks an array before it is stored.

    Args:
      name: name of the field.
      value: the array.
      shape: the expected shape.
      dtype: the expected dtype.
      giver: the source of the array: "environment" or "agent".

    Raises:
      ValueError: if it has another shape or dtype.
    """
    array = np.asarray(value)
    if array.shape != shape or array.dtype != dtype:
        raise ValueError(
            f"replay expects {name} of shape {shape} and dtype {np.dtype(dtype)}, the {giver} "
            f"gave shape {array.shape} and dtype {array.dtype}; {_REMEDIES[giver]}"
        )


def transitions_per_item(signature: Any) -> int:
    """Returns how many transitions an item of a table holds: n, if it has a matrix of n rows.

    A sequence counts as one transition.

    Args:
      signature: the signature of the table, as `Layout.signature`.
    """
    rows = signature if isinstance(signature, tf.TensorSpec) else signature["row"]
    return rows.shape[0] if rows.shape.rank == 2 and rows.name != SEQUENCE else 1


class Sample(NamedTuple):
    """A batch drawn from the table.

    Attributes:
      keys: [B] uint64 keys of the items, for writing priorities back.
      probabilities: [B] float64 P(i) of the transitions at the moment of sampling.
      table_size: [B] int64 transitions in the table at that moment.
      transition: `acme.types.Transition` of [B, ...] tensors, float32 except for frames; or an
        `agents.replay.sequences.Sequence`, if the layout has sequences.
    """

    keys: tf.Tensor
    probabilities: tf.Tensor
    table_size: tf.Tensor
    transition: Any
