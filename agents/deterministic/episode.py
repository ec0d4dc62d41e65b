"""What a deterministic run saves of its environment and of its exploration."""

import itertools
import json
from pathlib import Path
from typing import Any

import dm_env
import numpy as np

from agents.agent import BatchActor
from rl_replicator.checkpoints.parts import JsonPart
from rl_replicator.errors import CheckpointError

_STATE = "state.json"
_ARRAYS = "arrays.npz"
# Types of an exploration's memory that a checkpoint preserves.
_TYPES = (dict, list, np.ndarray, str, bool, int, float, type(None))


class SavedEpisode:
    """Steps an environment with an actor; a part of a checkpoint.

    No simulator state is saved: a restored environment repeats the actions of its newest episode,
    from the random state at the episode's start. This also fills the adder's window of n steps.
    """

    def __init__(self, environment: Any, actor: BatchActor, noise: np.random.Generator):
        """Starts with the next step.

        Args:
          environment: an `environments.Environment`.
          actor: acts in this environment alone.
          noise: generator of its exploration.
        """
        self._environment = environment
        self._actor = actor
        self._noise = noise
        self._start: Any = None
        self._actions: list[np.ndarray] = []
        self._outcomes: list[tuple[float, float, bool]] = []
        self._timestep: Any = None
        self.episode_return = 0.0
        """Sum of the rewards since the start of the episode."""

    @property
    def length(self) -> int:
        """Actions since the start of the episode."""
        return len(self._actions)

    def step(self) -> dm_env.TimeStep:
        """Takes one action, in a new episode if the last one has ended."""
        if self._timestep is None or self._timestep.last():
            self._begin()
        (action,) = self._actor.select_actions([self._timestep.observation])
        return self._take(action)

    def save(self, folder: Path) -> None:
        """Writes the newest episode's actions and their outcomes, and the random states.

        A finished episode is written as well: repeating it shows whether the random state
        determines the environment.
        """
        start = self._environment.random_state if self._timestep is None else self._start
        state = {"start": start, "noise": self._noise.bit_generator.state}
        (folder / _STATE).write_text(json.dumps(state), encoding="utf-8")
        arrays = {}
        if self._timestep is not None:
            arrays["observation"] = self._timestep.observation
            arrays["actions"] = np.array(self._actions, self._environment.action_spec().dtype)
            arrays["outcomes"] = np.array(self._outcomes, np.float64).reshape(-1, 3)
        np.savez(folder / _ARRAYS, **arrays)

    def restore(self, folder: Path) -> None:
        """Repeats the saved actions.

        Raises:
          CheckpointError: if their outcomes differ from the saved ones.
        """
        state = json.loads((folder / _STATE).read_text(encoding="utf-8"))
        if state["start"] is not None:
            self._environment.random_state = state["start"]
        with np.load(folder / _ARRAYS) as file:
            arrays = dict(file)
        if "actions" in arrays:
            self._repeat(arrays["actions"], arrays["outcomes"])
            self._check(
                np.array_equal(self._timestep.observation, arrays["observation"]), "observation"
            )
        self._noise.bit_generator.state = state["noise"]

    def _repeat(self, actions: np.ndarray, outcomes: np.ndarray) -> None:
        """Takes actions [T, A] in a new episode, and checks their outcomes [T, 3]."""
        self._begin()
        # Makes extras for the adder, which then gets its own steps back.
        self._actor.select_actions([self._timestep.observation])
        for index, action in enumerate(actions):
            self._take(action)
            is_same = self._outcomes[index] == tuple(outcomes[index])
            self._check(is_same, "reward, discount or end")

    def _check(self, is_same: bool, what: str) -> None:
        if not is_same:
            raise CheckpointError(
                "--deterministic: expected the environment to repeat an episode exactly, got "
                f"another {what} after action {self.length}; keep all of its randomness in one "
                "NumPy generator, and nothing else from one episode to the next (rl-replicator "
                "check-env)"
            )

    def _begin(self) -> None:
        self._start = self._environment.random_state
        self._actions, self._outcomes, self.episode_return = [], [], 0.0
        self._timestep = self._environment.reset()
        self._actor.begin(0, self._timestep)

    def _take(self, action: np.ndarray) -> dm_env.TimeStep:
        self._timestep = timestep = self._environment.step(action)
        self._actor.observe(0, action, timestep)
        self._actions.append(action)
        self._outcomes.append((float(timestep.reward), float(timestep.discount), timestep.last()))
        self.episode_return += float(timestep.reward)
        return timestep


def memory_part(memory: dict[str, Any]) -> JsonPart:
    """Returns the part that saves `ExplorationContext.memory`, and restores it in place.

    Args:
      memory: the memory.
    """
    return JsonPart(
        lambda: {"memory": _checked(memory)},
        lambda saved: _put_back(memory, saved["memory"], set()),
    )


def _checked(memory: Any, where: str = "memory") -> Any:
    """Returns the memory of an exploration, if a checkpoint preserves the types of its values.

    Raises:
      CheckpointError: for other types, such as NumPy scalars, with which an exploration computes in
        another precision than with Python's numbers.
    """
    if type(memory) not in _TYPES:
        raise CheckpointError(
            f"expected arrays, Python's numbers and texts, None, lists and dicts in the memory of "
            f"an exploration, got {type(memory).__name__} at {where}; convert it with float, int, "
            "bool, str, list, dict or np.array"
        )
    if isinstance(memory, dict):
        for name, value in memory.items():
            _checked(value, f"{where}[{name!r}]")
    elif isinstance(memory, list):
        for i, value in enumerate(memory):
            _checked(value, f"{where}[{i}]")
    return memory


def _put_back(held: Any, saved: Any, filled: set[int]) -> Any:
    """Returns the saved value, copied into the held arrays, lists and dicts where it fits.

    An exploration may keep its own references to these.

    Args:
      held: the current value at a place in the memory.
      saved: the saved value at this place.
      filled: identities of the objects filled so far. An object that is held in several places at
        the start, as in `[zeros] * 3`, may have been replaced in some of them, so it is filled only
        once.
    """
    if id(held) in filled:
        return saved
    filled.add(id(held))
    if isinstance(held, dict) and isinstance(saved, dict):
        restored = {name: _put_back(held.get(name), one, filled) for name, one in saved.items()}
        held.clear()
        held.update(restored)
    elif isinstance(held, list) and isinstance(saved, list):
        pairs = itertools.zip_longest(held[: len(saved)], saved)
        held[:] = [_put_back(old, one, filled) for old, one in pairs]
    elif (
        isinstance(held, np.ndarray)
        and isinstance(saved, np.ndarray)
        and (held.shape, held.dtype) == (saved.shape, saved.dtype)
        and held.flags.writeable
    ):
        held[...] = saved
    else:
        return saved
    return held
