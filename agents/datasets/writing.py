"""Writes recorded episodes as a Minari dataset."""

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from agents.datasets import minari_library
from agents.datasets.recording import DatasetSummary, RecordedEpisode
from rl_replicator.errors import UsageError, cannot_write
from rl_replicator.runs import atomic_file


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
      UsageError: if it is not a valid Minari ID, the dataset exists, or Minari's folder cannot be
        made.
    """
    minari_library.imported()
    from minari.dataset.minari_dataset import parse_dataset_id
    from minari.storage.datasets_root_dir import get_dataset_path

    try:
        parse_dataset_id(dataset_id)
    except (ValueError, TypeError):  # A TypeError if the version is missing.
        raise UsageError(
            f"--dataset: expected an ID such as cartpole/expert-v0, got {dataset_id!r}"
        ) from None
    try:
        path = get_dataset_path(dataset_id)  # Makes the folder of all datasets.
        is_there = path.exists()
    except OSError as error:
        raise cannot_write(f"cannot write the dataset {dataset_id}: {error}", error) from error
    if is_there:
        raise UsageError(
            f"--dataset: expected a new dataset, got {dataset_id}, which is in {path}; choose "
            "another ID"
        )


def write(
    dataset_id: str, episodes: Iterable[RecordedEpisode], about: Mapping[str, Any]
) -> DatasetSummary:
    """Writes episodes as a dataset into Minari's folder. If that fails, nothing is left.

    Args:
      dataset_id: the id of the new dataset.
      episodes: one or more episodes.
      about: metadata of Minari and, under `minari_library.METADATA`, of this project, as plain
        data.

    Raises:
      UsageError: see `check_new`; also if another process writes this dataset, or the folder cannot
        be written.
    """
    check_new(dataset_id)  # Before the first episode is played.
    from minari.storage.datasets_root_dir import get_dataset_path

    path = get_dataset_path(dataset_id)
    # It gets its name only once it is complete: an incomplete dataset could not be recognised.
    try:
        with atomic_file.making_folder(path) as new:
            return DatasetSummary.of(_written(new / "data", dataset_id, episodes, about))
    except OSError as error:
        raise cannot_write(f"cannot write the dataset to {path}: {error}", error) from error


def _written(
    folder: Path, dataset_id: str, episodes: Iterable[RecordedEpisode], about: Mapping[str, Any]
) -> Iterator[RecordedEpisode]:
    """Yields each episode once it is written."""
    storage: Any = None
    for index, episode in enumerate(episodes):
        if storage is None:
            storage = _created(folder, dataset_id, episode)
            storage.update_metadata(dict(about))
        storage.update_episodes([_buffer(episode)])
        storage.update_episode_metadata([{"return": episode.episode_return}], [index])
        yield episode


def _created(folder: Path, dataset_id: str, episode: RecordedEpisode) -> Any:
    """Creates the storage of a dataset without episodes, with the specs of the given one."""
    from gymnasium import spaces
    from minari import namespace
    from minari.dataset.minari_dataset import parse_dataset_id
    from minari.dataset.minari_storage import MinariStorage

    group = parse_dataset_id(dataset_id)[0]
    if group is not None and group not in namespace.list_local_namespaces():
        namespace.create_namespace(group)
    folder.mkdir(parents=True)
    observation, action = episode.observations[0].shape, episode.actions[0].shape
    storage = MinariStorage.new(
        folder,
        observation_space=spaces.Box(-np.inf, np.inf, observation, np.float32),
        action_space=spaces.Box(-1.0, 1.0, action, np.float32),
    )
    storage.update_metadata(
        {"dataset_id": dataset_id, "minari_version": minari_library.imported().__version__}
    )
    return storage


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
        infos={
            minari_library.DISCOUNT: np.concatenate([np.ones(1, np.float32), episode.discounts])
        },
    )
