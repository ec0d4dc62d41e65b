"""Everything that the nodes of a run need besides the agent."""

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

import rl_replicator as rr
from agents.task import Task
from rl_replicator.errors import ConfigError, check_option

if TYPE_CHECKING:
    from agents.agent import Agent

_GROUP = "multi_worker"


@dataclasses.dataclass(frozen=True)
class EvaluationSchedule:
    """When to evaluate, and for how long."""

    every: int = 10_000
    """Environment steps between evaluations, or learner steps with `--offline`."""
    episodes: int = 3
    """Episodes per evaluation during the run."""
    last_episodes: int = 10
    """Episodes of the evaluation at the end of the run."""
    max_episode_steps: int = 10_000
    """Environment steps after which an evaluation episode that has not ended is cut off."""

    def __post_init__(self) -> None:
        for name in ("every", "episodes", "last_episodes", "max_episode_steps"):
            value = getattr(self, name)
            check_option(value >= 1, f"evaluation.{name}", "at least 1", value)


def evaluation_seed(seed: int, environment_steps: int) -> int:
    """Returns the seed of the environment of an evaluation; the same one after a resume.

    Args:
      seed: seed of the run.
      environment_steps: steps of the run at the evaluation.

    Returns:
      A seed that no actor uses.
    """
    sequence = np.random.SeedSequence([seed, environment_steps, 0xE7A1])
    return int(sequence.generate_state(1)[0])


@dataclasses.dataclass(frozen=True)
class Replicas:
    """The learner's replicas.

    Attributes:
      name: argument of `rl_replicator.make` in every learner process.
      num_processes: learner processes; several of them form a `MultiWorkerReplicator`.
      num_replicas: number of replicas over all processes.
      gpus: number of GPUs that each process sees.
    """

    name: str
    num_processes: int
    num_replicas: int
    gpus: int

    @classmethod
    def parse(cls, text: str, launch: str, gpus: int | None) -> "Replicas":
        """Reads the option.

        Args:
          text: a number of devices, "multi_worker:N" for N processes, or an argument of
            `rl_replicator.make`.
          launch: the option `--launch`.
          gpus: number of GPUs that each learner process sees; None to divide those of this machine
            evenly.

        Returns:
          The replicas.

        Raises:
          ConfigError: if the text is none of these, or does not fit `launch`.
        """
        processes = learner_processes(text, launch)
        if processes == 1:
            return cls(text, 1, rr.make(text).num_replicas, _count_gpus() if gpus is None else gpus)
        if gpus is None:
            gpus = _count_gpus() // processes
        return cls(_GROUP, processes, group_replicas(processes, gpus), gpus)

    def check_gpus(self) -> None:
        """Checks that this machine has the GPUs of all learner processes.

        Raises:
          ConfigError: if it does not.
        """
        wanted, present = self.gpus * self.num_processes, _count_gpus()
        expected = f"at most {present // self.num_processes}, as this machine has {present} GPUs"
        if self.num_processes > 1:
            expected += f" for {self.num_processes} learner processes"
        check_option(wanted <= present, "learner_gpus", expected, self.gpus)


def learner_processes(text: str, launch: str) -> int:
    """Returns the number of processes in which the learner runs.

    Args:
      text: the option `--replicas`.
      launch: the option `--launch`.

    Raises:
      ConfigError: if it is not at least 2 in "multi_worker:N", or they do not fit `launch`.
    """
    kind, _, number = text.partition(":")
    if kind != _GROUP:
        return 1
    if not number.isdecimal() or int(number) < 2:
        raise ConfigError(
            f"--replicas: expected {_GROUP}:N with at least 2 learner processes, got {text!r}"
        )
    if launch == "threads":
        raise ConfigError(
            f"--replicas {text}: expected --launch processes or ray, got threads; a process "
            "can be one worker only"
        )
    return int(number)


def group_replicas(processes: int, gpus: int) -> int:
    """Returns the number of replicas of several learner processes.

    Args:
      processes: number of processes.
      gpus: number of GPUs that each sees; without any, its processors are one replica.
    """
    return processes * max(1, gpus)


def _count_gpus() -> int:
    import tensorflow as tf  # Imported here so that `--help` does not wait for it.

    return len(tf.config.list_physical_devices("GPU"))


@dataclasses.dataclass(frozen=True)
class RunPlan:
    """Everything about a run that does not depend on its agent.

    Attributes:
      task: the environment.
      seed: seed of the run, from which every node derives its own.
      total_steps: environment steps of the whole run, over all actors; learner steps if there are
        no actors.
      num_actors: number of actors; 0 to learn from recorded steps alone.
      envs_per_actor: environments of each actor.
      env_engine: what steps them, see `environments.engines`.
      num_caches: nodes between the learner and the actors that serve its weights.
      num_replay_shards: number of replay servers, each with an equal share of the items.
      online_fraction: share of the run's own transitions in a batch; the rest is recorded.
      replicas: the replicas of the learner.
      env_timeout: seconds after which a step or reset of an environment counts as stuck.
      evaluation: when to evaluate.
      checkpoint_seconds: seconds between two checkpoints.
      keep_checkpoints: number of newest checkpoints to keep.
      profile_steps: learner steps to profile, START:END; None for none.
      run_dir: directory of metrics and checkpoints; a node that starts restores its state from it.
    """

    task: Task
    seed: int
    total_steps: int
    num_actors: int
    envs_per_actor: int
    env_engine: str
    num_caches: int
    num_replay_shards: int
    online_fraction: float
    replicas: Replicas
    env_timeout: float
    evaluation: EvaluationSchedule
    checkpoint_seconds: float
    keep_checkpoints: int
    profile_steps: str | None
    run_dir: Path

    def learner_steps(self, agent: "Agent") -> int:
        """Returns the approximate number of learner steps of the whole run."""
        if not self.num_actors:
            return self.total_steps
        return agent.learner_steps(self.task.agent_steps(self.total_steps))

    @property
    def is_evaluated(self) -> bool:
        """Whether there is an environment to evaluate in."""
        return self.task.recorded is None
