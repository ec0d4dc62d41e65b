"""Converts time steps of any environment to flat float32, and checks them against its specs."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import dm_env
import numpy as np
from dm_env import specs

from environments.errors import EnvironmentDataError, EnvironmentSpecError
from environments.flat.actions import MASK, MaskedArray, mask_size

_LOG = logging.getLogger("environments")
REWARD_BOUNDS_REMEDY = (
    "correct reward_spec() (Gymnasium: reward_range), from which D4PG derives its range of returns"
)
# Names of environments whose rewards have been beyond their bounds.
_WARNED: set[str] = set()
# Relative. Rewards are computed in floating point, so a sum may be just outside its bounds.
_REWARD_TOLERANCE = 1e-4
_LARGEST = float(np.finfo(np.float32).max)
# Looked up once, because every environment step uses them.
_FIRST, _MID, _LAST = dm_env.StepType.FIRST, dm_env.StepType.MID, dm_env.StepType.LAST
_isfinite = math.isfinite


class Field(NamedTuple):
    """An array of a nested observation, and its position in the flat observation.

    Attributes:
      path: keys and indices of the array in the nested observation.
      where: slice of the flat observation; an index for a scalar.
      shape: shape in the spec.
      has_axes: whether the array has more than one axis, so that it must be flattened.
    """

    path: tuple[Any, ...]
    where: slice | int
    shape: tuple[int, ...]
    has_axes: bool

    @property
    def name(self) -> str:
        """The path as a string; 'observation' if the observation is a single array."""
        return "/".join(map(str, self.path)) or "observation"


class TimeStepConverter:
    """Flattens observations, casts numbers to float32, and checks all values.

    Attributes:
      fields: arrays of an observation, in the order of the observation spec, a mask last.
      size: length of a flat observation.
      observation_spec: its spec.
      observation_bounds: [2, size] float64, the lowest and the highest numbers that the spec allows
        in a flat observation. Nothing here checks them, because agents do not need them.
      reward_spec: spec of the converted rewards, a float32 scalar.
      limit: number of steps after which an episode is truncated.
      is_truncated: whether the last time step was truncated here.
    """

    limit: float = math.inf
    is_truncated = False

    def __init__(
        self,
        name: str,
        observation_spec: Any,
        reward_spec: Any,
        drops_images: bool = False,
        num_actions: int = 0,
    ):
        """Prepares the conversion.

        Args:
          name: name of the environment, for error messages.
          observation_spec: nest of `dm_env.specs.Array` of numbers.
          reward_spec: a scalar `dm_env.specs.Array`, with or without bounds.
          drops_images: whether to leave out images, if rendered frames are observed instead of the
            state; the state may then be empty.
          num_actions: number of discrete actions, which an array `action_mask` may mask; 0 if they
            are continuous.

        Raises:
          EnvironmentSpecError: if the specs are not supported.
        """
        self._name = name
        self._step = 0
        self._is_under_way = False
        leaves = _leaves(observation_spec, ())
        self._mask_size = _check_mask(dict(leaves), num_actions)
        if self._mask_size:
            leaves.sort(key=lambda leaf: leaf[0] == (MASK,))
        self.fields, self.observation_bounds = _plan(leaves, drops_images)
        self._images = [leaf for leaf in leaves if drops_images and _is_image(leaf[1])]
        self._observation: Any = None
        self.size = self.observation_bounds.shape[1]
        self.observation_spec = (
            MaskedArray(self.size, self._mask_size)
            if self._mask_size
            else specs.Array((self.size,), np.float32, name="observation")
        )
        self.reward_spec = _float32_reward(reward_spec)
        low = float(getattr(self.reward_spec, "minimum", -math.inf))
        high = float(getattr(self.reward_spec, "maximum", math.inf))
        # Comparisons with these limits also fail for NaN and infinities.
        self._lowest = max(low - _REWARD_TOLERANCE * max(1.0, abs(low)), -_LARGEST)
        self._highest = min(high + _REWARD_TOLERANCE * max(1.0, abs(high)), _LARGEST)

    def begin(self, timestep: dm_env.TimeStep) -> dm_env.TimeStep:
        """Converts the first time step of an episode, whether or not the previous episode is over.

        Args:
          timestep: return value of the environment's `reset`.

        Returns:
          See `convert`.

        Raises:
          EnvironmentDataError: see `convert`; also if the time step is not a first one.
        """
        self._step, self._is_under_way, self.is_truncated = 0, False, False
        if timestep[0] is not _FIRST:
            remedy = "return dm_env.restart(...)"
            raise self._error("step type", "FIRST from reset()", _short(timestep[0]), remedy)
        return self.convert(timestep)

    def convert(self, timestep: dm_env.TimeStep) -> dm_env.TimeStep:
        """Converts the next time step of the environment.

        Args:
          timestep: return value of the environment's `step`.

        Returns:
          The time step with a new observation array, [size] float32, and float32 scalars. Reward
          and discount are None at the first step of an episode.

        Raises:
          EnvironmentDataError: if an observation, reward or discount is missing, not finite, or of
            another shape than its spec; if a discount is out of bounds; also if the step type is
            not a `dm_env.StepType`, or an episode begins before the previous one has ended.
        """
        step_type, reward, discount, observation = timestep
        if self._images:
            self._observation = observation
        if step_type is _MID or step_type is _LAST:
            self._step += 1
            if self._step >= self.limit and step_type is _MID:
                step_type, self.is_truncated = _LAST, True
        elif step_type is not _FIRST:  # Even an equal integer: other code compares by identity.
            self._step += 1
            remedy = "return dm_env.transition(...), termination(...) or truncation(...)"
            raise self._error("step type", "a dm_env.StepType", _short(step_type), remedy)
        elif self._is_under_way:
            self._step += 1
            remedy = "return a last step before a new episode begins"
            raise self._error("step type", "MID or LAST", "FIRST", remedy)
        else:
            self._step = 0
        self._is_under_way = step_type is not _LAST
        flat = np.empty(self.size, np.float32)
        try:
            for path, where, shape, has_axes in self.fields:
                value = observation
                for key in path:
                    value = value[key]
                if value.shape != shape:
                    raise ValueError
                flat[where] = value.ravel() if has_axes else value
        except (AttributeError, IndexError, KeyError, TypeError, ValueError):
            flat = np.concatenate([self._flat_value(observation, field) for field in self.fields])
        # The cheapest test for NaN and infinities. The squares of huge numbers overflow too, so a
        # failure is checked again, value by value.
        if not _isfinite(flat.dot(flat)):
            self._check_finite(flat)
        if self._mask_size and step_type is not _LAST and not flat[-self._mask_size :].any():
            remedy = "end an episode in which no action is left"
            raise self._error(f"observation {MASK!r}", "a legal action", "none", remedy)
        if step_type is _FIRST:
            return dm_env.TimeStep(step_type, None, None, flat)
        try:
            reward_t, discount_t = float(reward), float(discount)
            is_usual = self._lowest <= reward_t <= self._highest and 0.0 <= discount_t <= 1.0
        except (TypeError, ValueError):  # None, a string, an array of several numbers.
            is_usual = False
        if not is_usual:
            self._check_scalars(reward, discount)
        return dm_env.TimeStep(step_type, np.float32(reward_t), np.float32(discount_t), flat)

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """Height, width and channels of the only image that is left out; see `image`."""
        shapes = [(*spec.shape, 1)[:3] for _, spec in self._images if len(spec.shape) in (2, 3)]
        # Frames with more channels than rows are images whose channels come first.
        if len(self._images) != 1 or not shapes or shapes[0][2] > shapes[0][0]:
            raise EnvironmentSpecError(
                "expected one image, uint8 [height, width] or [height, width, channels], among the "
                f"observations of {self._name} for --frame.render observed, got "
                f"{[spec.shape for _, spec in self._images] or 'none'}; leave the option out, or "
                "correct the image in a factory"
            )
        return shapes[0]

    def image(self) -> np.ndarray:
        """Returns a copy of the image of the newest time step, [height, width, channels] uint8.

        Raises:
          EnvironmentDataError: if it is missing, or of another shape or dtype than its spec.
        """
        ((path, spec),) = self._images
        value = self._observation
        try:
            for key in path:
                value = value[key]
        except (IndexError, KeyError, TypeError):
            value = None
        array = np.array(value)
        if array.shape != spec.shape or array.dtype != np.uint8:
            got = f"{array.dtype} of shape {array.shape}"
            remedy = "return it as in observation_spec()"
            raise self._error("image", f"uint8 of shape {spec.shape}", got, remedy)
        return array.reshape(self.image_shape)

    def _flat_value(self, observation: Any, field: Field) -> np.ndarray:
        """Flattens a field, which may hold Python numbers or lists too.

        Raises:
          EnvironmentDataError: if the field is missing or of another shape; the message names it.
        """
        name = f"observation {field.name!r}"
        value = observation
        try:
            for key in field.path:
                value = value[key]
        except (IndexError, KeyError, TypeError):
            raise self._error(
                name, "an array", "none", "return it as in observation_spec()"
            ) from None
        try:
            array = None if value is None else np.asarray(value, np.float32)
        except (TypeError, ValueError):
            array = None
        if array is None or array.shape != field.shape:
            raise self._error(
                name,
                f"numbers of shape {field.shape}",
                _short(value) if array is None else f"shape {array.shape}",
                "return it as in observation_spec()",
            )
        return array.ravel()

    def _check_finite(self, flat: np.ndarray) -> None:
        for field in self.fields:
            values = np.ravel(flat[field.where])
            bad = values[~np.isfinite(values)]
            if bad.size:
                raise self._error(
                    f"observation {field.name!r}",
                    "finite float32 numbers",
                    str(bad[0]),
                    "clip it, or end the episode before it diverges",
                )

    def _check_scalars(self, reward: Any, discount: Any) -> None:
        """Raises EnvironmentDataError, or warns once of a reward beyond its bounds."""
        for field, value in (("reward", reward), ("discount", discount)):
            try:
                number = float(value)
            except (TypeError, ValueError):
                remedy = "return one number at every step; a wrapper may weight several"
                raise self._error(field, "a number", _short(value), remedy) from None
            if not abs(number) <= _LARGEST:
                raise self._error(field, "a finite float32 number", f"{number:g}", "clip it")
        if not 0.0 <= float(discount) <= 1.0:
            remedy = "return 0 at a termination, otherwise 1"
            raise self._error("discount", "a number from 0 to 1", _short(discount), remedy)
        if self._name not in _WARNED:
            _WARNED.add(self._name)
            found = f"a reward of {float(reward):.7g} is beyond the declared bounds"
            _LOG.warning("%s: %s; %s", self._name, found, REWARD_BOUNDS_REMEDY)
        self._lowest, self._highest = -_LARGEST, _LARGEST

    def _error(self, field: str, expected: str, got: str, remedy: str) -> EnvironmentDataError:
        return EnvironmentDataError(
            f"{self._name}: {field} at step {self._step} of the episode: expected {expected}, got "
            f"{got}; {remedy}"
        )


def _short(value: Any) -> str:
    text = " ".join(repr(value).split())
    return text if len(text) <= 60 else f"{text[:57]}..."


def _check_mask(leaves: Mapping[Any, Any], num_actions: int) -> int:
    """Returns the size of the mask among the arrays of an observation, 0 if there is none."""
    mask = leaves.get((MASK,))
    if not num_actions or mask is None:
        return mask_size(leaves.get(()))  # In the form of agents already.
    if not isinstance(mask, specs.Array) or mask.shape != (num_actions,):
        raise EnvironmentSpecError(
            f"expected an {MASK} of shape {(num_actions,)}, one number for each action, got "
            f"{mask!r}; correct it, or give it another name"
        )
    return num_actions


def _plan(
    leaves: list[tuple[tuple[Any, ...], Any]], drops_images: bool
) -> tuple[list[Field], np.ndarray]:
    """Returns the fields of a flat observation, and its bounds, [2, size]."""
    fields: list[Field] = []
    bounds = [np.empty((2, 0))]
    start = 0
    for path, array in leaves:
        if drops_images and _is_image(array):
            continue
        _check_leaf(path, array)
        size = math.prod(array.shape)
        where = slice(start, start + size) if array.shape else start
        fields.append(Field(path, where, array.shape, len(array.shape) > 1))
        is_bounded = isinstance(array, specs.BoundedArray)
        limits = (array.minimum, array.maximum) if is_bounded else (-math.inf, math.inf)
        bounds.append(np.array([np.broadcast_to(x, array.shape).ravel() for x in limits], float))
        start += size
    if start == 0 and not drops_images:
        raise EnvironmentSpecError(
            "expected at least one number in an observation, got an empty observation spec; "
            "declare an array in observation_spec()"
        )
    return fields, np.concatenate(bounds, axis=1)


def _check_leaf(path: tuple[Any, ...], array: Any) -> None:
    where = f" as {'/'.join(map(str, path))}" if path else ""
    if not (isinstance(array, specs.Array) and array.dtype.kind in "fiub"):
        raise EnvironmentSpecError(
            f"expected observations of numeric arrays, got {array!r}{where}; remove it in a factory"
        )
    if isinstance(array, specs.DiscreteArray):
        raise EnvironmentSpecError(
            f"expected observations of real numbers, got a discrete value in "
            f"0..{array.num_values - 1}{where}; encode it one-hot in a factory"
        )
    if _is_image(array):
        raise EnvironmentSpecError(
            f"expected observations of state, got a uint8 image of shape {array.shape}{where}; "
            "train from frames with --pixels, remove it in a factory, or cast it to float32"
        )


def _is_image(array: Any) -> bool:
    return isinstance(array, specs.Array) and array.dtype == np.uint8 and len(array.shape) > 1


def _leaves(spec: Any, path: tuple[Any, ...]) -> list[tuple[tuple[Any, ...], Any]]:
    if isinstance(spec, Mapping):
        return [leaf for key, item in spec.items() for leaf in _leaves(item, (*path, key))]
    if isinstance(spec, (list, tuple)):
        return [leaf for key, item in enumerate(spec) for leaf in _leaves(item, (*path, key))]
    return [(path, spec)]


def _float32_reward(spec: Any) -> specs.Array:
    if not isinstance(spec, specs.Array) or spec.shape != ():
        raise EnvironmentSpecError(
            f"expected one number as reward, got {spec!r}; declare a scalar in reward_spec(); a "
            "wrapper may weight several"
        )
    if isinstance(spec, specs.BoundedArray):
        return specs.BoundedArray((), np.float32, spec.minimum, spec.maximum, name="reward")
    return specs.Array((), np.float32, name="reward")
