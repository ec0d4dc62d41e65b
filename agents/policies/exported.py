"""A policy that `rl-replicator export --format numpy` has written, and its environment."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import dm_env
import numpy as np
from acme import core

from agents.task import Task
from environments.flat import make_actions
from rl_replicator.errors import UsageError
from rl_replicator.exports.standalone import Model
from rl_replicator.runs.plain_data import stored_part

MODEL = "model.npz"


class ExportedActor(core.Actor):
    """Acts according to an exported model."""

    def __init__(self, model: Model, action_spec: Any):
        """Stores both.

        Args:
          model: the model.
          action_spec: the spec in whose range the model acts, see `Task.model_action_spec`.
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
      form: the form of that environment then; None if the card lacks it.
    """

    model: Model
    task: Task
    form: Mapping[str, Any] | None

    def actor(self) -> ExportedActor:
        """Returns the actor, for environments of its own task or with actions like its own.

        The range is that of its own task: in that of another environment, the policy's numbers may
        stand for other actions.
        """
        with self.task.make(seed=0) as made:
            return ExportedActor(self.model, self.task.model_action_spec(made))


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
    identity = stored_part(model.card, "config", Mapping)
    return ExportedPolicy(model, Task.stored(identity), identity.get("environment"))
