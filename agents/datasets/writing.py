"""Writes recorded episodes as a Minari dataset."""

import re
import shutil
import warnings
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from agents.datasets import minari_library
from agents.datasets.recording import DatasetSummary, RecordedEpisode
from rl_replicator.errors import UsageError


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
    minari_library.imported()
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
      dataset_id: the id of the new dataset.
      episodes: one or more episodes.
      about: metadata of Minari and, under `minari_library.METADATA`, our own, as plain data.

    Raises:
      UsageError: see `check_new`; also if the folder cannot be written.
    """
    check_new(dataset_id)  # What is there must not be deleted below.
    from minari.storage.datasets_root_dir import get_dataset_path

    path = get_dataset_path(dataset_id)
    try:
        return DatasetSummary.of(_written(dataset_id, episodes, about))
    except BaseException as error:
        shutil.rmtree(path, ignore_errors=True)
        if isinstance(error, OSError):
            raise UsageError(f"cannot write the dataset to {path}: {error}") from error
        raise


def _written(
    dataset_id: str, episodes: Iterable[RecordedEpisode], about: Mapping[str, Any]
) -> Iterator[RecordedEpisode]:
    """Yields each episode once it is written."""
    dataset: Any = None
    for index, episode in enumerate(episodes):
        if dataset is None:
            dataset = _created(dataset_id, episode)
            dataset.storage.update_metadata(dict(about))
        dataset.update_dataset_from_buffer([_buffer(episode)])
        metadata = {"return": episode.episode_return}
        dataset.storage.update_episode_metadata([metadata], [index])
        yield episode


def _created(dataset_id: str, episode: RecordedEpisode) -> Any:
    """Creates a dataset without episodes that has the specs of one."""
    from gymnasium import spaces

    observation, action = episode.observations[0].shape, episode.actions[0].shape
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # It asks for an author and a link.
        return minari_library.imported().create_dataset_from_buffers(
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
        infos={
            minari_library.DISCOUNT: np.concatenate([np.ones(1, np.float32), episode.discounts])
        },
    )
