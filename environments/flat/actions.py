"""Actions as agents choose them, and the environment's own that they stand for."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import dm_env
import numpy as np
from dm_env import specs

from environments.errors import EnvironmentActionError, EnvironmentSpecError

# MuJoCo's largest number, which dm_control uses as the bound of unlimited actuators.
NO_LIMIT = 1e10
# Key of the mask among the observations.
MASK = "action_mask"
# A critic has an output for each action.
_MOST_ACTIONS = 4096


class ContinuousActions:
    """Actions [m] float32 in [-1, 1], which are mapped linearly to the environment's range.

    Attributes:
      own_spec: the environment's spec, whose bounds are finite.
      spec: the agents' spec.
    """

    def __init__(self, own_spec: specs.BoundedArray, name: str):
        """Prepares the mapping.

        Args:
          own_spec: see the attribute.
          name: name of the environment, for error messages.
        """
        shape = own_spec.shape
        self._name = name
        self._own_shape, self._own_dtype = shape, own_spec.dtype
        size = math.prod(shape)
        low = np.broadcast_to(own_spec.minimum, shape).astype(np.float64).reshape(size)
        high = np.broadcast_to(own_spec.maximum, shape).astype(np.float64).reshape(size)
        self._low, self._high = low, high
        self._scale, self._offset = (high - low) / 2, (high + low) / 2
        # Faster paths: most suite tasks use [-1, 1], so their actions need only clipping.
        self._is_unit = bool(np.all(low == -1) and np.all(high == 1))
        self._is_plain = shape == (size,) and own_spec.dtype == np.float64
        self._shape = (size,)
        self.own_spec = specs.BoundedArray(
            shape, own_spec.dtype, low.reshape(shape), high.reshape(shape), name="action"
        )
        self.spec = specs.BoundedArray((size,), np.float32, -1.0, 1.0, name="action")

    def own(self, action: np.ndarray) -> np.ndarray:
        """Maps one action: [m] float32 -> an array of `own_spec`.

        Raises:
          ValueError: if it has another shape.
          EnvironmentActionError: if it holds NaN.
        """
        if getattr(action, "shape", None) != self._shape:
            raise ValueError(
                f"expected an action array of shape {self._shape}, got "
                f"{type(action).__name__} of shape {np.shape(action)}"
            )
        real = self.to_own(action)
        return real if self._is_plain else real.astype(self._own_dtype).reshape(self._own_shape)

    def to_own(self, actions: np.ndarray) -> np.ndarray:
        """Maps actions to the environment's range.

        Args:
          actions: [..., m] float32; clipped to [-1, 1].

        Returns:
          [..., m] float64.

        Raises:
          EnvironmentActionError: if an action holds NaN.
        """
        # The bounds are float64 arrays, so the result is float64 and no scalar is converted.
        real = actions if self._is_unit else actions * self._scale + self._offset
        real = np.minimum(np.maximum(real, self._low), self._high)
        numbers = real.ravel()
        # The cheapest test for NaN. Done here, because a simulator would return NaN as well, and
        # the error would then blame the environment.
        if math.isnan(numbers.dot(numbers)):
            raise EnvironmentActionError(
                f"{self._name}: expected finite actions, got {actions.tolist()}; the policy that "
                "computes them has diverged: lower its learning rate, or scale the rewards"
            )
        return real

    def from_own(self, own: np.ndarray) -> np.ndarray:
        """Maps the environment's own actions [T, ...] to those of agents, [T, m] float32."""
        scale = np.where(self._scale > 0, self._scale, 1.0)  # Constant actions.
        actions = np.reshape(own, (len(own), -1)).astype(np.float64)
        return ((actions - self._offset) / scale).astype(np.float32)


class DiscreteActions:
    """Actions 0 to n - 1, int32, each of which is a combination of the environment's numbers.

    The environment takes an array of whole numbers with bounds. Its combinations are numbered in C
    order: the last number of the array changes fastest.

    Attributes:
      own_spec: the environment's spec.
      spec: the agents' spec.
      table: [n, ...], the environment's own action for each action of an agent.
    """

    def __init__(self, own_spec: specs.BoundedArray, name: str):
        """Lists the combinations.

        Args:
          own_spec: see the attribute.
          name: name of the environment, for error messages.

        Raises:
          EnvironmentSpecError: if there are too many.
        """
        self.own_spec, self._name = own_spec, name
        low = np.broadcast_to(own_spec.minimum, own_spec.shape).astype(np.int64).ravel()
        high = np.broadcast_to(own_spec.maximum, own_spec.shape).astype(np.int64).ravel()
        self._low, self._sizes = low, tuple((high - low + 1).tolist())
        size = math.prod(self._sizes)
        if not 0 < size <= _MOST_ACTIONS:
            raise EnvironmentSpecError(
                f"expected at most {_MOST_ACTIONS:,} discrete actions, got {size:,} combinations "
                f"of {len(self._sizes)} numbers; merge or fix some of them in a factory"
            )
        parts = np.stack(np.unravel_index(np.arange(size), self._sizes), axis=-1) + low
        self.table = parts.astype(own_spec.dtype).reshape(size, *own_spec.shape)
        self.spec = specs.DiscreteArray(size, np.int32, name="action")

    def own(self, action: Any) -> np.ndarray:
        """Returns the environment's own action for an action of an agent.

        Raises:
          ValueError: if there is no such action.
        """
        if not (isinstance(action, int | np.integer | np.ndarray) and np.ndim(action) == 0):
            raise ValueError(f"expected the number of an action, got {action!r}")
        if not 0 <= action < len(self.table):
            raise ValueError(f"expected an action from 0 to {len(self.table) - 1}, got {action}")
        return self.table[action].copy()

    def to_own(self, actions: np.ndarray) -> np.ndarray:
        """Maps actions [...] to the environment's own."""
        return self.table[actions]

    def from_own(self, own: np.ndarray) -> np.ndarray:
        """Maps the environment's own actions [T, ...] to those of agents, [T] int32.

        Raises:
          ValueError: if one is out of bounds.
        """
        parts = np.reshape(own, (len(own), -1)).astype(np.int64) - self._low
        return np.ravel_multi_index(tuple(parts.T), self._sizes).astype(np.int32)


def make_actions(spec: Any, name: str) -> ContinuousActions | DiscreteActions:
    """Makes the mapping between the actions of agents and those of an environment.

    Args:
      spec: the environment's own spec.
      name: name of the environment, for error messages.

    Raises:
      EnvironmentSpecError: if it is neither an array of bounded floats nor one of a few whole
        numbers.
    """
    expected = "expected actions in one array with finite bounds, of floats or of whole numbers"
    if not isinstance(spec, specs.Array):
        raise EnvironmentSpecError(f"{expected}, got {type(spec).__name__} of arrays")
    if spec.dtype.kind not in "fiub":
        raise EnvironmentSpecError(f"{expected}, got actions of dtype {spec.dtype}")
    if math.prod(spec.shape) == 0:
        raise EnvironmentSpecError(f"{expected}, got an action of shape {spec.shape}")
    if not isinstance(spec, specs.BoundedArray):
        raise EnvironmentSpecError(
            f"{expected}, got no bounds; declare them (specs.BoundedArray, or Gymnasium's Box)"
        )
    bounds = np.concatenate([spec.minimum.ravel(), spec.maximum.ravel()]).astype(np.float64)
    if not np.all(np.isfinite(bounds)) or np.any(np.abs(bounds) >= NO_LIMIT):
        raise EnvironmentSpecError(
            f"{expected}, got the range {spec.minimum.tolist()} to {spec.maximum.tolist()}; "
            "set bounds in a factory"
        )
    return (ContinuousActions if spec.dtype.kind == "f" else DiscreteActions)(spec, name)


class MaskedArray(specs.Array):
    """The spec of flat observations, the last numbers of which say which actions are legal.

    Attributes:
      num_actions: n; the observation's last n numbers are the mask, and 0 where an action is
        illegal.
    """

    __slots__ = ("num_actions",)

    def __init__(self, size: int, num_actions: int):
        """Makes the spec of [size] float32, the mask included."""
        super().__init__((size,), np.float32, name="observation")
        self.num_actions = num_actions

    def __reduce__(self) -> Any:
        return MaskedArray, (self.shape[0], self.num_actions)


def frame_of(observation: Any) -> Any:
    """Returns the frame of an observation, or its spec: `{"pixels", "vector"}` or a frame alone."""
    return observation["pixels"] if isinstance(observation, Mapping) else observation


def numbers_of(observation: Any) -> Any:
    """Returns the numbers of an observation, or their spec: as `frame_of`, or numbers alone."""
    return observation["vector"] if isinstance(observation, Mapping) else observation


def mask_size(spec: Any) -> int:
    """Returns how many numbers at the end of an observation are a mask of actions; often 0."""
    numbers = numbers_of(spec)
    return numbers.num_actions if isinstance(numbers, MaskedArray) else 0


def random_policy(
    environment: dm_env.Environment, random: np.random.RandomState | np.random.Generator
) -> Callable[[np.ndarray], Any]:
    """Makes a policy of uniformly random legal actions.

    Args:
      environment: an environment in the form of agents.
      random: generator to draw from.

    Returns:
      A function from an observation to an action.
    """
    spec = environment.action_spec()
    if not isinstance(spec, specs.DiscreteArray):
        return lambda observation: random.uniform(-1, 1, spec.shape).astype(np.float32)
    masked = mask_size(environment.observation_spec())
    everything = np.arange(spec.num_values)

    def draw(observation: Any) -> np.int32:
        legal = np.flatnonzero(numbers_of(observation)[-masked:]) if masked else everything
        return np.int32(random.choice(legal))

    return draw
