"""What the nodes of a run need to know beside the agent."""

import dataclasses
from pathlib import Path

from agents.runs.evaluation import EvaluationSchedule
from agents.runs.replicas import Replicas
from agents.task import Task


@dataclasses.dataclass(frozen=True)
class RunPlan:
    """Everything about a run that does not depend on its agent.

    Attributes:
      task: the environment.
      seed: of everything random.
      total_steps: environment steps in all.
      num_actors: actors that share them.
      num_caches: nodes between the learner and the actors that serve its weights.
      replicas: of the learner.
      evaluation: when to evaluate.
      checkpoint_seconds: time between two checkpoints.
      run_dir: directory of metrics and checkpoints; a node that starts restores its state from it.
    """

    task: Task
    seed: int
    total_steps: int
    num_actors: int
    num_caches: int
    replicas: Replicas
    evaluation: EvaluationSchedule
    checkpoint_seconds: float
    run_dir: Path
