"""A policy that `rl-replicator export --format numpy` has written, and its environment."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import dm_env
import numpy as np
import tree
from acme import core

from agents.task import Task
from environments.flat import make_actions
from rl_replicator.errors import UsageError
from rl_replicator.exports.standalone import Model
from rl_replicator.runs.plain_data import stored_part

MODEL = "model.npz"
# The entry of a model card that names the wrappers, if there are any.
WRAPPERS = "wrappers"
# The inputs of a model that are parts of an observation: the frame, or all of it, and the vector.
_OBSERVED = ("observation", "vector")


def action_range(flat: Any, is_wrapped: bool) -> Any:
    """Returns the spec of the actions of a model.

    Args:
      flat: the environment in the agents' form.
      is_wrapped: whether the model is for the environment with its wrappers.
    """
    return flat.action_spec() if is_wrapped else flat.own_action_spec


class ExportedActor(core.Actor):
    """Acts according to an exported model."""

    def __init__(self, model: Model, action_spec: Any):
        """Stores both.

        Args:
          model: the model.
          action_spec: the spec in whose range the model acts, see `action_range`.
        """
        self._model = model
        self._actions = make_actions(action_spec, "the policy's environment")

    def select_action(self, observation: np.ndarray) -> np.ndarray:
        """Returns the action as this project's environments take it."""
        return self._actions.from_own(np.asarray(self._model.act(observation))[None])[0]

    def observe_first(self, timestep: dm_env.TimeStep) -> None:
        """Starts an episode."""
        self._model.reset()

    def observe(self, action: np.ndarray, next_timestep: dm_env.TimeStep) -> None:
        """Learns nothing."""

    def update(self, wait: bool = False) -> None:
        """Does nothing: the weights do not change."""


@dataclasses.dataclass(frozen=True)
class ExportedPolicy:
    """A policy with its environment, ready to be played.

    Attributes:
      model: the policy.
      task: the environment that it was trained for.
    """

    model: Model
    task: Task

    def actor(self, task: Task, environment: Any) -> ExportedActor:
        """Returns the actor for an environment.

        Args:
          task: the task to play, that of the policy or another one.
          environment: the environment that the task has made.

        Raises:
          UsageError: if it has other observations or actions than the policy.
        """
        flat = environment if task.pixels is None else environment.wrapped
        is_wrapped = WRAPPERS in self.model.card
        own_spec = action_range(flat, is_wrapped)
        shapes = [self.model.inputs[name][0] for name in _OBSERVED if name in self.model.inputs]
        found_shapes = [list(spec.shape) for spec in tree.flatten(environment.observation_spec())]
        expected = [*shapes, self.model.outputs["action"][1]]
        found = [*found_shapes, list(own_spec.shape)]
        if expected != found:
            raise UsageError(
                f"expected an environment with observations {_listed(expected[:-1])} and actions "
                f"{expected[-1]}, as the policy has them, got {_listed(found[:-1])} and "
                f"{found[-1]}; choose another --env"
            )
        if task == self.task:
            return ExportedActor(self.model, own_spec)
        # The range of the policy's task: in that of another environment, the policy's numbers may
        # stand for other actions.
        with self.task.make(seed=0) as made:
            trained: Any = made if self.task.pixels is None else made.wrapped
            kinds = [
                [*spec.shape] or spec.num_values
                for spec in (trained.action_spec(), flat.action_spec())
            ]
            if kinds[0] != kinds[1]:  # Numbers and vectors of the environment may look the same.
                raise UsageError(
                    f"expected an environment with actions {kinds[0]}, as the policy has them, got "
                    f"{kinds[1]}; choose another --env"
                )
            return ExportedActor(self.model, action_range(trained, is_wrapped))


def _listed(shapes: list[list[int]]) -> str:
    return " and ".join(map(str, shapes))


def load(folder: Path) -> ExportedPolicy:
    """Loads an exported policy.

    Args:
      folder: the folder that `rl-replicator export --format numpy` has made.

    Raises:
      UsageError: if there is no such policy.
    """
    path = folder / MODEL
    try:
        model = Model(path)
        if "agent" in model.card:
            observation: Any = np.zeros(*model.inputs["observation"])
            if "vector" in model.inputs:
                observation = {"pixels": observation, "vector": np.zeros(*model.inputs["vector"])}
            model.act(observation)  # Its program may be damaged, too.
            model.reset()
    except Exception as error:  # Of whatever kind: anybody may have written the file.
        raise UsageError(
            f"expected a run directory or a policy exported by --format numpy, got {folder} "
            f"({MODEL}: {type(error).__name__}: {error})"
        ) from None
    if "agent" not in model.card:
        raise UsageError(f"expected the policy of an agent in {folder}, got a learner's model")
    return ExportedPolicy(model, Task.stored(stored_part(model.card, "config", Mapping)))
