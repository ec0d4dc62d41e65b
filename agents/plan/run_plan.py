"""Everything that the nodes of a run need besides the agent."""

import dataclasses
from pathlib import Path

from agents.plan.evaluation import EvaluationSchedule
from agents.plan.replicas import Replicas
from agents.task import Task


@dataclasses.dataclass(frozen=True)
class RunPlan:
    """Everything about a run that does not depend on its agent.

    Attributes:
      task: the environment.
      seed: seed of the run, from which every node derives its own.
      total_steps: environment steps of the whole run, over all actors.
      num_actors: number of actors.
      envs_per_actor: environments of each actor.
      env_engine: what steps them, see `environments.engines`.
      num_caches: nodes between the learner and the actors that serve its weights.
      num_replay_shards: number of replay servers, each with an equal share of the items.
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
    replicas: Replicas
    env_timeout: float
    evaluation: EvaluationSchedule
    checkpoint_seconds: float
    keep_checkpoints: int
    profile_steps: str | None
    run_dir: Path
