"""Datasets of recorded episodes as Minari has them, from this project or elsewhere.

Observations and actions are those of agents: flat float32 vectors, and actions in [-1, 1] or
numbered. `infos` holds the discounts, `[T + 1]`, of which the first is 1.
"""

import contextlib
import itertools
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from dm_env import specs

from agents.datasets.recording import DatasetSummary, RecordedEpisode
from agents.task import Task
from environments.flat import ContinuousActions, DiscreteActions, make_actions
from rl_replicator.errors import UsageError, cannot_write, check_option
from rl_replicator.runs import atomic_file
from rl_replicator.runs.plain_data import stored_part

# Key of what this project adds to the metadata of a dataset.
METADATA = "rl_replicator"
# Key of the discounts among the infos of an episode. It names this project, because others may call
# anything a discount, such as gamma, and Minari keeps only the episodes of datasets that it
# combines.
DISCOUNT = "rl_replicator_discount"
# How far rounding may take a mapped action out of its range.
_TOLERANCE = 1e-5


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


class EpisodeDataset:
    """A Minari dataset whose episodes fit an environment.

    Attributes:
      name: the name as the user gave it.
    """

    def __init__(
        self,
        name: str,
        data: Any,
        actions: ContinuousActions | DiscreteActions,
    ):
        """Stores the dataset; see `open_dataset`.

        Args:
          name: the name as the user gave it.
          data: the `minari.MinariDataset`.
          actions: maps its actions to those of agents.
        """
        self.name, self._data, self._actions = name, data, actions

    def check(self) -> DatasetSummary:
        """Reads and checks all episodes.

        Raises:
          UsageError: if there is no episode, or one has values that no environment could have
            produced.
        """
        summary = DatasetSummary.of(self.episodes())
        if not summary.returns:
            raise UsageError(
                f"expected episodes in the dataset {self.name}, got none; record some with "
                "'rl-replicator record'"
            )
        return summary

    def episodes(self, part: int = 0, num_parts: int = 1) -> Iterator[RecordedEpisode]:
        """Reads the episodes of one of several parts, which have about equally many steps.

        Each episode goes to the part that has the fewest steps so far.

        Args:
          part: number of the part, from 0.
          num_parts: number of parts.

        Raises:
          UsageError: see `check`.
        """
        held = [0] * num_parts
        with _readable(self.name):
            for index, data in enumerate(self._data.iterate_episodes()):
                chosen = held.index(min(held))
                held[chosen] += len(data.rewards)
                if chosen == part:
                    yield self._episode(index, data)

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
        own_spec, spec = self._actions.own_spec, self._actions.spec
        own = arrays["actions"].reshape(steps, *own_spec.shape)
        margin = _TOLERANCE * (own_spec.maximum - own_spec.minimum) / 2
        if not ((own >= own_spec.minimum - margin) & (own <= own_spec.maximum + margin)).all():
            raise wrong("actions within the dataset's action space", "one outside of it")
        actions = self._actions.from_own(own)
        ends = np.asarray(data.terminations, bool) | np.asarray(data.truncations, bool)
        if ends[:-1].any():
            raise wrong("an end at the last step only", f"one at step {int(np.argmax(ends))}")
        discounts = np.ones(steps, np.float32)
        discounts[-1] = not data.terminations[-1]
        recorded = (data.infos or {}).get(DISCOUNT)
        if recorded is not None:
            discounts = np.asarray(recorded, np.float32)[1:]
            if len(discounts) != steps or not ((discounts >= 0) & (discounts <= 1)).all():
                raise wrong("a discount from 0 to 1 for each action", "others")
        return RecordedEpisode(
            arrays["observations"].reshape(steps + 1, -1),
            np.clip(actions, spec.minimum, spec.maximum).astype(spec.dtype),
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
    data = _opened(name)
    _compare_tasks(name, data, task)
    with task.make(seed=0) as environment:
        made: Any = environment
        own, size = made.own_action_spec, made.observation_spec().shape[0]
    space = data.observation_space
    if type(space).__name__ != "Box" or np.prod(space.shape) != size:
        raise UsageError(
            f"expected observations in a Box of {size} numbers in the dataset {name}, as "
            f"{task.name} has them, got {space}; record episodes of {task.name}"
        )
    return EpisodeDataset(name, data, _actions_of(name, data.action_space, own))


def recorded_task(name: str) -> Task:
    """Returns the task whose steps a dataset holds, without its environment.

    Args:
      name: see `open_dataset`.

    Raises:
      UsageError: if there is no such dataset, its observations are no Box, or its actions are
        several arrays.
    """
    from environments.libraries.gymnasium_adapter import action_spec

    data = _opened(name)
    space, actions = data.observation_space, action_spec(data.action_space)
    if type(space).__name__ != "Box" or not isinstance(actions, specs.BoundedArray):
        raise UsageError(
            f"expected a Box of observations and one array of actions in the dataset {name}, got "
            f"{space} and {data.action_space}"
        )
    limits = [np.broadcast_to(x, actions.shape).ravel() for x in (actions.minimum, actions.maximum)]
    identity = _identity(data)
    known = identity.get("environment") or {}
    form = {
        "observations": [int(np.prod(space.shape))],
        "action_limits": [limit.tolist() for limit in limits],
        **({"mask": known["mask"]} if "mask" in known else {}),
    }
    return Task("", repeats=identity.get("action_repeat"), recorded=form)


def _identity(data: Any) -> Mapping[str, Any]:
    """Returns the identity of the run that recorded a dataset; {} if none did."""
    return data.storage.metadata.get(METADATA, {}).get("config", {}).get("identity", {})


def _opened(name: str) -> Any:
    """Opens a `minari.MinariDataset`."""
    minari = _minari()
    with _readable(name):
        folders = [path for path in (Path(name) / "data", Path(name)) if _is_dataset(path)]
        return minari.MinariDataset(folders[0]) if folders else minari.load_dataset(name)


def _is_dataset(folder: Path) -> bool:
    return (folder / "metadata.json").is_file()


def _compare_tasks(name: str, data: Any, task: Task) -> None:
    """Raises UsageError if a dataset names another environment, or another form of it."""
    if task.recorded is not None:
        return
    identity = _identity(data)
    if identity:
        own = " in ".join([task.name, *task.wrap])
        recorded = " in ".join([stored_part(identity, "env", str), *identity.get("wrap", ())])
    elif data.env_spec is not None and task.name.startswith("gym:"):
        # A task may also name the module that registers the ID, and options.
        own = f"gym:{task.name.partition('{')[0].rpartition(':')[2]}"
        recorded = f"gym:{data.env_spec.id}"
    else:
        return
    if recorded != own:
        raise UsageError(
            f"expected episodes of {own} in the dataset {name}, got those of {recorded}, "
            "which has different rewards"
        )
    if identity:
        repeats = stored_part(identity, "action_repeat", int)
        expected = f"{repeats}, with which the dataset {name} was recorded"
        is_good = task.action_repeat == repeats
        check_option(is_good, "action_repeat", expected, task.action_repeat)
    if identity.get("environment"):  # The recorded actions are relative to its limits.
        task.spec(identity["environment"], f"the dataset {name} was recorded")


def _actions_of(name: str, space: Any, own: Any) -> ContinuousActions | DiscreteActions:
    """Returns the mapping of a dataset's actions: the environment's own, or those of agents."""
    from environments.libraries.gymnasium_adapter import action_spec

    given, of_agents = action_spec(space), make_actions(own, name).spec
    for spec in (of_agents, own):
        if (
            isinstance(given, specs.BoundedArray)
            and (given.dtype.kind == "f") == (spec.dtype.kind == "f")
            and np.prod(given.shape) == np.prod(spec.shape)
            and np.allclose(given.minimum.ravel(), spec.minimum.ravel())
            and np.allclose(given.maximum.ravel(), spec.maximum.ravel())
        ):
            return make_actions(given, name)
    raise UsageError(
        f"expected actions from {of_agents.minimum.min():g} to {of_agents.maximum.max():g} in the "
        f"dataset {name}, or the range of the environment, {own.minimum.min():g} to "
        f"{own.maximum.max():g}, {np.prod(own.shape, dtype=int)} of them, got {space}"
    )


@contextlib.contextmanager
def _readable(name: str) -> Iterator[None]:
    """Turns errors in reading a dataset into a UsageError of one line."""
    try:
        yield
    except UsageError:
        raise
    except FileNotFoundError:
        raise UsageError(
            f"expected --prefill or --offline to be a Minari dataset or its folder, found none of "
            f"the name {name}; 'minari list local' lists those in Minari's folder"
        ) from None
    except Exception as error:  # Minari documents none of its own.
        raise UsageError(f"expected a Minari dataset in {name}, got {error!r}") from error


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
    _minari()
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
    dataset_id: str,
    episodes: Iterable[RecordedEpisode],
    action_spec: specs.BoundedArray,
    about: Mapping[str, Any],
) -> DatasetSummary:
    """Writes episodes as a dataset into Minari's folder. If that fails, nothing is left.

    Args:
      dataset_id: the id of the new dataset.
      episodes: one or more episodes.
      action_spec: the agents' spec of their actions.
      about: metadata of Minari and, under `METADATA`, of this project, as plain
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
            left = iter(episodes)
            first = next(left)
            storage = _created(new / "data", dataset_id, action_spec, about, first)
            return DatasetSummary.of(_written(storage, itertools.chain([first], left)))
    except OSError as error:
        raise cannot_write(f"cannot write the dataset to {path}: {error}", error) from error


def _written(storage: Any, episodes: Iterable[RecordedEpisode]) -> Iterator[RecordedEpisode]:
    """Yields each episode once it is written."""
    for index, episode in enumerate(episodes):
        storage.update_episodes([_buffer(episode)])
        storage.update_episode_metadata([{"return": episode.episode_return}], [index])
        yield episode


def _created(
    folder: Path,
    dataset_id: str,
    action_spec: specs.BoundedArray,
    about: Mapping[str, Any],
    episode: RecordedEpisode,
) -> Any:
    """Creates the storage of a dataset without episodes, for observations like those given."""
    from gymnasium import spaces
    from minari import namespace
    from minari.dataset.minari_dataset import parse_dataset_id
    from minari.dataset.minari_storage import MinariStorage

    group = parse_dataset_id(dataset_id)[0]
    if group is not None and group not in namespace.list_local_namespaces():
        namespace.create_namespace(group)
    folder.mkdir(parents=True)
    storage = MinariStorage.new(
        folder,
        observation_space=spaces.Box(-np.inf, np.inf, episode.observations[0].shape, np.float32),
        action_space=(
            spaces.Discrete(action_spec.num_values, dtype=np.int32)
            if isinstance(action_spec, specs.DiscreteArray)
            else spaces.Box(-1.0, 1.0, action_spec.shape, np.float32)
        ),
    )
    own = {"dataset_id": dataset_id, "minari_version": _minari().__version__}
    storage.update_metadata({**own, **about})
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
        infos={DISCOUNT: np.concatenate([np.ones(1, np.float32), episode.discounts])},
    )
