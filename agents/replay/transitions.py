"""What one row of the replay table holds, and how it is laid out."""

from typing import NamedTuple

import numpy as np
import tensorflow as tf
from acme import specs, types


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

    def check_step(self, name: str, value: object, size: int) -> None:
        """Raises ValueError, naming the field, unless `value` is a float32 vector of `size`."""
        array = np.asarray(value)
        if array.shape != (size,) or array.dtype != np.float32:
            raise ValueError(
                f"replay expects {name} of shape ({size},) and dtype float32, the environment gave "
                f"shape {array.shape} and dtype {array.dtype}; make its spec and its steps agree"
            )


class Sample(NamedTuple):
    """A batch drawn from the table.

    Attributes:
      keys: [B] uint64 identities of the rows, for writing priorities back.
      probabilities: [B] float64 P(i) at the moment of sampling.
      table_size: [B] int64 rows in the table at that moment.
      transition: `acme.types.Transition` of [B, ...] float32 tensors.
    """

    keys: tf.Tensor
    probabilities: tf.Tensor
    table_size: tf.Tensor
    transition: types.Transition
