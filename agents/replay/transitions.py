"""What an item of the replay table holds, and how it is laid out."""

from typing import Any, NamedTuple, Protocol

import numpy as np
import reverb
import tensorflow as tf
from acme import specs, types


class EpisodeWriter(Protocol):
    """Writes the steps of one episode after the other into the columns of a table.

    Attributes:
      columns: Reverb's writer, for the items.
    """

    columns: reverb.TrajectoryWriter

    def begin(self, observation: np.ndarray) -> None:
        """An episode starts with this observation."""
        ...

    def follow(self, observation: np.ndarray) -> None:
        """The next observation, which completes no transition."""
        ...

    def write(self, transition: types.Transition, steps: int) -> Any:
        """The next observation, which completes one: returns the item.

        Near the end of an episode several transitions end with its last observation, and each
        calls this once.

        Args:
          transition: arrays; `next_observation` is the newest.
          steps: between its two observations, 1 to n.
        """
        ...


class Layout(Protocol):
    """How the steps of an episode lie in the table: both of its ends are made for the same one."""

    @property
    def signature(self) -> Any:
        """Nest of `tf.TensorSpec`: an item as the table sees it."""
        ...

    def open(self, client: reverb.Client) -> EpisodeWriter:
        """A writer on the table."""
        ...

    def check_observation(self, observation: object) -> None:
        """Raises ValueError, naming the field, unless it is what the layout was made for."""
        ...

    def check_action(self, action: object) -> None:
        """Raises ValueError, naming the field, unless it is what the layout was made for."""
        ...

    def unpack(self, data: Any) -> types.Transition:
        """A batch of items, [B, ...] tensors -> a transition; reward is R_n, discount d."""
        ...


class RowWriter:
    """See `EpisodeWriter`: a row is complete in itself."""

    def __init__(self, layout: "TransitionLayout", client: reverb.Client):
        """Args:
        layout: of the rows.
        client: of the replay server.
        """
        self._layout = layout
        self.columns = client.trajectory_writer(num_keep_alive_refs=1)

    def begin(self, observation: np.ndarray) -> None:
        """Nothing: a row holds its own observations."""

    def follow(self, observation: np.ndarray) -> None:
        """Nothing."""

    def write(self, transition: types.Transition, steps: int) -> Any:
        """See `EpisodeWriter`."""
        del steps
        self.columns.append(self._layout.pack(transition))
        return self.columns.history[-1]


class TransitionLayout:
    """Packs a transition into one float32 vector, and unpacks a batch of them.

    A row is `[observation | action | n-step return | n-step discount | next observation]`. Reverb's
    cost to insert and to sample grows with the number of columns, not of bytes, at these sizes: one
    column makes both two to three times cheaper than five (`bench/replay_columns.py`).
    """

    def __init__(self, spec: specs.EnvironmentSpec):
        """Lays out transitions of an environment.

        Args:
          spec: of an environment with flat float32 observations [N] and actions [A].

        Raises:
          ValueError: if an observation or action is not a float32 vector.
        """
        for name, array in (("observation", spec.observations), ("action", spec.actions)):
            if len(array.shape) != 1 or array.dtype != np.float32:
                raise ValueError(
                    f"expected a float32 vector as {name}, got shape {array.shape} of "
                    f"{array.dtype}; wrap the environment with `environments.make`"
                )
        self.observation_size = spec.observations.shape[0]
        self.action_size = spec.actions.shape[0]
        self.width = 2 * self.observation_size + self.action_size + 2
        self.signature = tf.TensorSpec([self.width], tf.float32, "transition")

    def open(self, client: reverb.Client) -> RowWriter:
        """See `Layout`."""
        return RowWriter(self, client)

    def check_observation(self, observation: object) -> None:
        """See `Layout`."""
        check_array("observation", observation, (self.observation_size,), np.float32)

    def check_action(self, action: object) -> None:
        """See `Layout`."""
        check_array("action", action, (self.action_size,), np.float32)

    def pack(self, transition: types.Transition) -> np.ndarray:
        """One transition of arrays -> [width] float32."""
        n, a = self.observation_size, self.action_size
        row = np.empty(self.width, np.float32)
        row[:n] = transition.observation
        row[n : n + a] = transition.action
        row[n + a] = transition.reward
        row[n + a + 1] = transition.discount
        row[n + a + 2 :] = transition.next_observation
        return row

    def unpack(self, rows: tf.Tensor) -> types.Transition:
        """[B, width] float32 -> a transition of [B, ...] tensors; reward is R_n, discount d."""
        n, a = self.observation_size, self.action_size
        return types.Transition(
            observation=rows[:, :n],
            action=rows[:, n : n + a],
            reward=rows[:, n + a],
            discount=rows[:, n + a + 1],
            next_observation=rows[:, n + a + 2 :],
        )


def check_array(name: str, value: object, shape: tuple[int, ...], dtype: type) -> None:
    """Raises ValueError, naming the field, unless `value` has this shape and dtype."""
    array = np.asarray(value)
    if array.shape != shape or array.dtype != dtype:
        raise ValueError(
            f"replay expects {name} of shape {shape} and dtype {np.dtype(dtype)}, the environment "
            f"gave shape {array.shape} and dtype {array.dtype}; make its spec and its steps agree"
        )


class Sample(NamedTuple):
    """A batch drawn from the table.

    Attributes:
      keys: [B] uint64 identities of the rows, for writing priorities back.
      probabilities: [B] float64 P(i) at the moment of sampling.
      table_size: [B] int64 rows in the table at that moment.
      transition: `acme.types.Transition` of [B, ...] tensors, float32 except for pictures.
    """

    keys: tf.Tensor
    probabilities: tf.Tensor
    table_size: tf.Tensor
    transition: types.Transition
