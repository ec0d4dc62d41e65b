"""What the parts of a run cost on the machine that measured them."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import pydantic

from rl_replicator.errors import UsageError, cannot_write, check_option
from rl_replicator.runs import atomic_file


@dataclasses.dataclass(frozen=True)
class Parts:
    """The cost of each part of a run.

    Seconds are processor seconds of all threads of the process, unless stated otherwise: other work
    on the machine affects them far less than wall-clock time.

    Attributes:
      settings: the agent, the environment and further options that were measured, by name.
      machine: description of the machine.
      environment: one action in an environment, in the actor's thread.
      policy_call: one call of the policy, without its observations, in the actor's thread.
      policy_row: each observation of that call, exploration included.
      insert_thread: one transition into the replay, in the actor's thread, and what else the actor
        does for an action.
      insert_actor: the same, all threads of the actor counted.
      insert_server: the same, in the replay server.
      insert_bytes: bytes that it sends to the server.
      sample_learner: one sampled transition, in the learner's process.
      sample_thread: the same in the busiest thread of a stream of samples.
      sample_server: the same in the replay server, the new priority included.
      sample_bytes: bytes that the server sends for it.
      step_call: one learner step, without its transitions; priorities and the weights' copy
        included.
      step_row: each transition of that step.
      step_threads: processors that a learner step keeps busy: all its threads divided by the
        busiest one.
      weight_bytes: bytes of the weights that an actor fetches.
      fetch_actor: one such fetch, in the actor.
      fetch_learner: the same, in the process that serves the weights.
      gradient_bytes: bytes of the gradients that replicas average in a learner step.
      call: a small remote call, in the process that answers it.
      episode_actions: actions of an episode; if it was not played to its end, those played.
    """

    __pydantic_config__ = pydantic.ConfigDict(extra="forbid")

    settings: Mapping[str, Any]
    machine: str
    environment: float
    policy_call: float
    policy_row: float
    insert_thread: float
    insert_actor: float
    insert_server: float
    insert_bytes: float
    sample_learner: float
    sample_thread: float
    sample_server: float
    sample_bytes: float
    step_call: float
    step_row: float
    step_threads: float
    weight_bytes: float
    fetch_actor: float
    fetch_learner: float
    gradient_bytes: float
    call: float
    episode_actions: float

    def save(self, path: Path) -> None:
        """Writes the parts as JSON, atomically.

        Raises:
          UsageError: if the file cannot be written.
        """
        try:
            with atomic_file.replacing(path) as new:
                new.write_bytes(_FORMAT.dump_json(self, indent=2))
        except OSError as error:
            raise cannot_write(f"--parts: cannot write {path}: {error}", error) from error

    @classmethod
    def load(cls, path: Path, settings: Mapping[str, Any]) -> Self:
        """Reads what `save` wrote.

        Args:
          path: the file.
          settings: what must have been measured.

        Raises:
          UsageError: if the file holds anything else.
        """
        try:
            parts = _FORMAT.validate_json(path.read_bytes())
        except (OSError, pydantic.ValidationError) as error:
            raise UsageError(
                f"--parts: expected what this version of 'rl-replicator plan' has measured, got "
                f"{path} ({str(error).splitlines()[0]}); remove it to measure again"
            ) from error
        for name, ours in settings.items():
            theirs = parts.settings.get(name)
            expected = f"parts that were measured with {name.replace('_', '-')} {ours}"
            received = f"{path}, measured with {theirs}; choose another file"
            check_option(ours == theirs, "parts", expected, received)
        return parts


_FORMAT: pydantic.TypeAdapter[Any] = pydantic.TypeAdapter(Parts)
