"""Reads a Minari dataset, from this project or elsewhere, as episodes that fit an environment."""

import contextlib
import inspect
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from dm_env import specs

from agents.datasets import minari_library
from agents.datasets.recording import DatasetSummary, RecordedEpisode
from agents.task import Task
from environments.flat.timesteps import reward_limits
from rl_replicator.errors import UsageError

_METADATA_FILE = "metadata.json"
# How far rounding may take a mapped action out of its range.
_TOLERANCE = 1e-5
# A part of a dataset consists of up to this many stretches of at least this many steps: tables that
# are too small for the dataset then keep its newest steps, and few returns end early at a cut.
_ROUNDS = 16
_LEAST_STRETCH = 1000


class EpisodeDataset:
    """A Minari dataset whose episodes fit an environment.

    Attributes:
      name: the name as the user gave it.
    """

    def __init__(
        self,
        name: str,
        data: Any,
        low: np.ndarray,
        high: np.ndarray,
        reward_spec: specs.Array,
    ):
        """Stores the dataset; see `open_dataset`.

        Args:
          name: the name as the user gave it.
          data: the `minari.MinariDataset`.
          low: [A] lower bounds of its actions, which become -1.
          high: [A] upper bounds, which become 1.
          reward_spec: the spec of the environment's reward.
        """
        self.name, self._reward_spec = name, reward_spec
        self._data = data
        self._low, self._high = low, high

    @property
    def num_episodes(self) -> int:
        """Number of episodes."""
        return len(self._data)

    def check(self) -> DatasetSummary:
        """Reads and checks all episodes.

        Raises:
          UsageError: if there is no episode, or one has values that no environment could have
            produced.
        """
        summary = DatasetSummary.of(self.episodes(range(self.num_episodes)))
        if not summary.returns:
            raise UsageError(
                f"expected episodes in the dataset {self.name}, got none; record some with "
                "'rl-replicator record'"
            )
        return summary

    def episodes(self, indices: Sequence[int]) -> Iterator[RecordedEpisode]:
        """Reads episodes.

        Args:
          indices: their numbers, from 0.

        Raises:
          UsageError: see `check`.
        """
        wanted = self._data.episode_indices[np.asarray(indices, int)]
        with _readable(self.name):
            for number, data in enumerate(self._data.iterate_episodes(wanted)):
                yield self._episode(int(indices[number]), data)

    def part(self, index: int, count: int) -> Iterator[RecordedEpisode]:
        """Reads one of several parts that have equally many steps, whatever the episodes' lengths.

        The dataset is divided into stretches, which are dealt out in order. An episode that lies in
        several of them is cut.

        Args:
          index: number of the part, from 0.
          count: number of parts.

        Raises:
          UsageError: see `check`.
        """
        with _readable(self.name):
            about = self._data.storage.get_episode_metadata(self._data.episode_indices)
            ends = np.cumsum([int(episode["total_steps"]) for episode in about])
        starts = np.concatenate([[0], ends[:-1]])
        rounds = max(1, min(_ROUNDS, int(ends[-1]) // (count * _LEAST_STRETCH))) if count > 1 else 1
        edges = np.linspace(0, ends[-1], count * rounds + 1).astype(int)
        for number in range(index, count * rounds, count):
            first, last = edges[number], edges[number + 1]
            chosen = np.flatnonzero((starts < last) & (ends > first)).tolist()
            for episode_index, episode in zip(chosen, self.episodes(chosen), strict=True):
                start = starts[episode_index]
                yield episode.between(max(first - start, 0), min(last - start, episode.num_steps))

    def _episode(self, index: int, data: Any) -> RecordedEpisode:
        def wrong(expected: str, found: object) -> UsageError:
            return UsageError(
                f"expected {expected} in episode {index} of the dataset {self.name}, got {found}; "
                "repair the dataset, or leave the episode out"
            )

        with np.errstate(over="ignore"):  # Overflows become infinite, which is rejected below.
            observations = np.asarray(data.observations, np.float32)
        arrays = {
            "observations": observations,
            "actions": np.asarray(data.actions),
            "rewards": np.asarray(data.rewards),
        }
        steps = len(arrays["rewards"])
        lengths = [len(arrays["observations"]) - 1, len(arrays["actions"])]
        if steps == 0 or lengths != [steps, steps]:
            raise wrong(
                "at least one action, a reward for each, and one observation more",
                f"{lengths[1]} actions, {steps} rewards and {lengths[0] + 1} observations",
            )
        for name, array in arrays.items():
            if not np.isfinite(array).all():
                raise wrong(f"finite float32 {name}", "NaN or infinity")
        spec, rewards = self._reward_spec, arrays["rewards"]
        lowest, highest = reward_limits(spec)
        if rewards.min() < lowest or rewards.max() > highest:
            low, high = getattr(spec, "minimum", lowest), getattr(spec, "maximum", highest)
            raise wrong(
                f"rewards from {low:g} to {high:g}, as the environment gives them",
                f"{rewards.min():g} to {rewards.max():g}",
            )
        scale, offset = (self._high - self._low) / 2, (self._high + self._low) / 2
        scale = np.where(scale > 0, scale, 1.0)  # Constant actions.
        actions = ((arrays["actions"].reshape(steps, -1) - offset) / scale).astype(np.float32)
        if np.abs(actions).max() > 1 + _TOLERANCE:
            raise wrong("actions within the dataset's action space", "one outside of it")
        ends = np.asarray(data.terminations, bool) | np.asarray(data.truncations, bool)
        if ends[:-1].any():
            raise wrong("an end at the last step only", f"one at step {int(np.argmax(ends))}")
        discounts = np.ones(steps, np.float32)
        discounts[-1] = not data.terminations[-1]
        recorded = (data.infos or {}).get(minari_library.DISCOUNT)
        if recorded is not None:
            discounts = np.asarray(recorded, np.float32)[1:]
            if len(discounts) != steps or not ((discounts >= 0) & (discounts <= 1)).all():
                raise wrong("a discount from 0 to 1 for each action", "others")
        return RecordedEpisode(
            arrays["observations"].reshape(steps + 1, -1),
            np.clip(actions, -1.0, 1.0),
            arrays["rewards"].astype(np.float32),
            discounts,
            None,
        )


def open_dataset(name: str, task: Task) -> EpisodeDataset:
    """Opens a dataset and compares its specs with those of an environment.

    Args:
      name: ID of a dataset in Minari's folder, or the path of a dataset's folder.
      task: the environment, observed by its state.

    Raises:
      UsageError: if there is no such dataset, or it is one of another environment.
    """
    with _readable(name):
        data = _opened(name)
    _compare_tasks(name, data, task)
    environment: Any = task.make(seed=0)
    _compare_arguments(name, data, task)  # Now that the ID is registered.
    action_spec, reward_spec = environment.own_action_spec, environment.reward_spec()
    size, num_actions = environment.observation_spec().shape[0], environment.action_spec().shape[0]
    environment.close()
    for kind, expected, space in (
        ("observations", size, data.observation_space),
        ("actions", num_actions, data.action_space),
    ):
        if type(space).__name__ != "Box" or np.prod(space.shape) != expected:
            raise UsageError(
                f"expected {kind} in a Box of {expected} numbers in the dataset {name}, as "
                f"{task.name} has them, got {space}; record episodes of {task.name}"
            )
    low, high = _range(name, data.action_space, action_spec)
    return EpisodeDataset(name, data, low, high, reward_spec)


def _compare_tasks(name: str, data: Any, task: Task) -> None:
    """Raises UsageError if a dataset names another environment."""
    about = data.storage.metadata.get(minari_library.METADATA, {})
    identity = about.get("config", {}).get("identity", {})
    kind, _, gymnasium_id = task.name.partition(":")
    if identity:
        env, wrappers, own_env = identity["env"], identity.get("wrap", ()), task.name
    elif data.env_spec is not None and kind == "gym":
        # A task may also name the module that registers the ID.
        env = f"gym:{data.env_spec.id}"
        wrappers = tuple(wrapper.name for wrapper in data.env_spec.additional_wrappers)
        own_env = f"gym:{gymnasium_id.rpartition(':')[2]}"
    else:
        return
    own, recorded = " in ".join([own_env, *task.wrap]), " in ".join([env, *wrappers])
    if recorded != own:
        raise UsageError(
            f"expected episodes of {own} in the dataset {name}, got those of {recorded}, "
            "which has different rewards"
        )


def _compare_arguments(name: str, data: Any, task: Task) -> None:
    """Raises UsageError if a dataset's Gymnasium environment was made with unusual arguments."""
    import gymnasium

    if data.env_spec is None or not task.name.startswith("gym:"):
        return
    spec = gymnasium.spec(data.env_spec.id)
    usual = {**_defaults(spec.entry_point), **spec.kwargs}
    for argument, value in data.env_spec.kwargs.items():
        # The dataset stores it as JSON, where tuples are lists.
        is_usual = json.dumps(value, default=str) == json.dumps(usual.get(argument), default=str)
        if argument != "render_mode" and not is_usual:
            raise UsageError(
                f"expected episodes of {task.name} in the dataset {name}, got those of "
                f"gym:{data.env_spec.id} with {argument}={value!r}, another environment; give a "
                "factory that makes it as --env"
            )


def _defaults(entry_point: Any) -> dict[str, Any]:
    """Returns the default arguments of a Gymnasium entry point, a callable or its import path."""
    from gymnasium.envs.registration import load_env_creator

    make = load_env_creator(entry_point) if isinstance(entry_point, str) else entry_point
    parameters = inspect.signature(make).parameters.values() if callable(make) else ()
    return {one.name: one.default for one in parameters if one.default is not one.empty}


def _range(name: str, space: Any, own: Any) -> tuple[np.ndarray, np.ndarray]:
    """Returns the bounds of the actions: [-1, 1], or the environment's own."""
    bounds = space.low.reshape(-1).astype(np.float64), space.high.reshape(-1).astype(np.float64)
    for low, high in ((-1.0, 1.0), (own.minimum.reshape(-1), own.maximum.reshape(-1))):
        if np.allclose(bounds[0], low) and np.allclose(bounds[1], high):
            return bounds
    raise UsageError(
        f"expected actions from -1 to 1 in the dataset {name}, or the range of the environment, "
        f"{own.minimum.min():g} to {own.maximum.max():g}, got {space}"
    )


def _opened(name: str) -> Any:
    minari = minari_library.imported()
    for folder in (Path(name) / "data", Path(name)):
        if (folder / _METADATA_FILE).is_file():
            return minari.MinariDataset(folder)
    return minari.load_dataset(name)


@contextlib.contextmanager
def _readable(name: str) -> Iterator[None]:
    """Turns errors in reading a dataset into a UsageError of one line."""
    try:
        yield
    except UsageError:
        raise
    except FileNotFoundError:
        raise UsageError(
            f"expected --prefill to be a Minari dataset or its folder, found none of the name "
            f"{name}; 'minari list local' lists those in Minari's folder"
        ) from None
    except (
        ImportError,  # Of a package that the dataset's format needs.
        NotImplementedError,  # A space that Minari does not support.
        OSError,
        ValueError,
        KeyError,
        TypeError,
        AssertionError,
    ) as error:
        raise UsageError(f"expected a Minari dataset in {name}, got {error!r}") from error
