"""Minari datasets of recorded episodes: written, read, and compared with an environment.

Observations and actions are those of agents: flat float32 vectors, and actions in [-1, 1]. `infos`
holds the discounts, `[T + 1]`, of which the first is 1.
"""

import contextlib
import dataclasses
import re
import shutil
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from agents.datasets.recording import RecordedEpisode
from agents.task import Task
from rl_replicator.errors import UsageError

# Key of what this project adds to the metadata of a dataset.
METADATA = "rl_replicator"
_DISCOUNT = "discount"
_METADATA_FILE = "metadata.json"
# How far rounding may take a mapped action out of its range.
_TOLERANCE = 1e-5


@dataclasses.dataclass(frozen=True)
class DatasetSummary:
    """What a dataset holds.

    Attributes:
      num_steps: actions of all episodes.
      returns: the undiscounted return of each episode.
      num_terminated: episodes that ended with a discount of 0.
    """

    num_steps: int
    returns: tuple[float, ...]
    num_terminated: int

    def __str__(self) -> str:
        mean = sum(self.returns) / len(self.returns)
        return (
            f"{len(self.returns):,} episodes ({self.num_terminated:,} terminated), "
            f"{self.num_steps:,} actions, return {mean:.1f} (min {min(self.returns):.1f}, max "
            f"{max(self.returns):.1f})"
        )


def default_id(trainable: str, task: str) -> str:
    """Returns a dataset ID for a run.

    Args:
      trainable: name of its agent.
      task: name of its environment.
    """
    words = re.sub(r"[^A-Za-z0-9]+", "-", f"{task}-{trainable}").strip("-")
    return f"{words}-v0"


def check_new(dataset_id: str) -> None:
    """Checks that a dataset can be made under an ID.

    Raises:
      UsageError: if it is no ID of Minari, or there is such a dataset.
    """
    _minari()
    from minari.dataset.minari_dataset import parse_dataset_id
    from minari.storage.datasets_root_dir import get_dataset_path

    try:
        parse_dataset_id(dataset_id)
    except ValueError:
        raise UsageError(
            f"--dataset: expected an ID such as cartpole/expert-v0, got {dataset_id!r}"
        ) from None
    path = get_dataset_path(dataset_id)
    if path.exists():
        raise UsageError(
            f"--dataset: expected a new dataset, got {dataset_id}, which is in {path}; choose "
            "another ID"
        )


def write(
    dataset_id: str, episodes: Iterable[RecordedEpisode], about: Mapping[str, Any]
) -> DatasetSummary:
    """Writes episodes as a dataset into Minari's folder. If that fails, nothing is left.

    Args:
      dataset_id: of the new dataset.
      episodes: at least one.
      about: metadata of Minari and, under `METADATA`, our own, as plain data.

    Raises:
      UsageError: if the folder cannot be written.
    """
    minari = _minari()
    from minari.storage.datasets_root_dir import get_dataset_path

    path, dataset = get_dataset_path(dataset_id), None
    returns: list[float] = []
    steps = terminated = 0
    try:
        for index, episode in enumerate(episodes):
            if dataset is None:
                dataset = _created(minari, dataset_id, episode)
            dataset.update_dataset_from_buffer([_buffer(episode)])
            dataset.storage.update_episode_metadata([{"return": episode.episode_return}], [index])
            returns.append(episode.episode_return)
            steps += episode.num_steps
            terminated += episode.is_terminated
        assert dataset is not None
        dataset.storage.update_metadata(dict(about))
    except BaseException as error:
        shutil.rmtree(path, ignore_errors=True)
        if isinstance(error, OSError):
            raise UsageError(f"cannot write the dataset to {path}: {error}") from error
        raise
    return DatasetSummary(steps, tuple(returns), terminated)


def _created(minari: Any, dataset_id: str, episode: RecordedEpisode) -> Any:
    """Creates a dataset without episodes that has the specs of one."""
    from gymnasium import spaces

    observation, action = episode.observations[0].shape, episode.actions[0].shape
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # It asks for an author and a link.
        return minari.create_dataset_from_buffers(
            dataset_id,
            [],
            observation_space=spaces.Box(-np.inf, np.inf, observation, np.float32),
            action_space=spaces.Box(-1.0, 1.0, action, np.float32),
        )


def _buffer(episode: RecordedEpisode) -> Any:
    from minari.data_collector import EpisodeBuffer

    ends = np.zeros(episode.num_steps, bool)
    ends[-1] = True
    return EpisodeBuffer(
        seed=episode.seed,
        observations=episode.observations,
        actions=episode.actions,
        rewards=episode.rewards,
        terminations=ends & episode.is_terminated,
        truncations=ends & (not episode.is_terminated),
        infos={_DISCOUNT: np.concatenate([np.ones(1, np.float32), episode.discounts])},
    )


class EpisodeDataset:
    """A Minari dataset whose episodes fit an environment.

    Attributes:
      name: as the user gave it.
    """

    def __init__(self, name: str, data: Any, low: np.ndarray, high: np.ndarray):
        """Stores the dataset; see `open_dataset`.

        Args:
          name: as the user gave it.
          data: the `minari.MinariDataset`.
          low: [A] lower bounds of its actions, which become -1.
          high: [A] upper bounds, which become 1.
        """
        self.name = name
        self._data = data
        self._low, self._high = low, high

    @property
    def num_episodes(self) -> int:
        """Number of episodes."""
        return len(self._data)

    def check(self) -> DatasetSummary:
        """Reads everything.

        Raises:
          UsageError: if there is no episode, or one holds what no environment could have given.
        """
        returns: list[float] = []
        steps = terminated = 0
        for episode in self.episodes(range(self.num_episodes)):
            returns.append(episode.episode_return)
            steps += episode.num_steps
            terminated += episode.is_terminated
        if not returns:
            raise UsageError(
                f"expected episodes in the dataset {self.name}, got none; record some with "
                "'rl-replicator record'"
            )
        return DatasetSummary(steps, tuple(returns), terminated)

    def episodes(self, indices: Sequence[int]) -> Iterator[RecordedEpisode]:
        """Reads episodes.

        Args:
          indices: their numbers, from 0.

        Raises:
          UsageError: as `check`.
        """
        wanted = self._data.episode_indices[np.asarray(indices, int)]
        with _readable(self.name):
            for number, data in enumerate(self._data.iterate_episodes(wanted)):
                yield self._episode(int(indices[number]), data)

    def _episode(self, index: int, data: Any) -> RecordedEpisode:
        def wrong(expected: str, found: object) -> UsageError:
            return UsageError(
                f"expected {expected} in episode {index} of the dataset {self.name}, got {found}; "
                "repair the dataset, or leave the episode out"
            )

        arrays = {
            "observations": np.asarray(data.observations),
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
                raise wrong(f"finite {name}", "NaN or infinity")
        scale, offset = (self._high - self._low) / 2, (self._high + self._low) / 2
        actions = ((arrays["actions"].reshape(steps, -1) - offset) / scale).astype(np.float32)
        if np.abs(actions).max() > 1 + _TOLERANCE:
            raise wrong("actions within the dataset's action space", "one outside of it")
        ends = np.asarray(data.terminations, bool) | np.asarray(data.truncations, bool)
        if ends[:-1].any():
            raise wrong("an end at the last step only", f"one at step {int(np.argmax(ends))}")
        discounts = np.ones(steps, np.float32)
        discounts[-1] = not data.terminations[-1]
        recorded = (data.infos or {}).get(_DISCOUNT)
        if recorded is not None:
            discounts = np.asarray(recorded, np.float32)[1:]
            if len(discounts) != steps or not ((discounts >= 0) & (discounts <= 1)).all():
                raise wrong("a discount from 0 to 1 for each action", "others")
        return RecordedEpisode(
            arrays["observations"].reshape(steps + 1, -1).astype(np.float32),
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
    about = data.storage.metadata.get(METADATA, {})
    recorded = about.get("config", {}).get("identity", {}).get("env", task.name)
    if recorded != task.name:
        raise UsageError(
            f"expected episodes of {task.name} in the dataset {name}, got those of {recorded}, "
            "whose rewards are others"
        )
    environment: Any = task.make(seed=0)
    own = environment.own_action_spec
    size, num_actions = environment.observation_spec().shape[0], environment.action_spec().shape[0]
    environment.close()
    for kind, expected, space in (
        ("observations", size, data.observation_space),
        ("actions", num_actions, data.action_space),
    ):
        shape = getattr(space, "shape", None)
        if type(space).__name__ != "Box" or np.prod(shape or 0) != expected:
            raise UsageError(
                f"expected {kind} in a Box of {expected} numbers in the dataset {name}, as "
                f"{task.name} has them, got {space}; record episodes of {task.name}"
            )
    low, high = _range(name, data.action_space, own)
    return EpisodeDataset(name, data, low, high)


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
    minari = _minari()
    for folder in (Path(name) / "data", Path(name)):
        if (folder / _METADATA_FILE).is_file():
            return minari.MinariDataset(folder)
    return minari.load_dataset(name)


@contextlib.contextmanager
def _readable(name: str) -> Iterator[None]:
    """Turns the errors of reading a dataset into one line."""
    try:
        yield
    except UsageError:
        raise
    except FileNotFoundError:
        raise UsageError(
            f"expected a Minari dataset or its folder, found none of the name {name}; 'minari list "
            "local' lists those in Minari's folder"
        ) from None
    except (OSError, ValueError, KeyError, TypeError, AssertionError) as error:
        raise UsageError(f"expected a Minari dataset in {name}, got {error!r}") from error


def _minari() -> Any:
    """Imports Minari.

    Raises:
      UsageError: if it is not installed.
    """
    try:
        import h5py  # noqa: F401 - Minari reads and writes its files with it.
        import minari
    except ModuleNotFoundError:
        raise UsageError(
            "expected Minari for datasets, found none; install it: pip install "
            "'rl-replicator[data]'"
        ) from None
    return minari
