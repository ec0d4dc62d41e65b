"""The plan of a small run in threads, for tests of single nodes."""

from agents.nodes.run_plan import EvaluationSchedule, Replicas, RunPlan
from agents.task import Task

TARGET = Task("environments.fakes:target")


def make_plan(run_dir, total_steps, **changes):
    """Returns a plan; `changes` replace its other fields."""
    settings = {
        "task": TARGET,
        "seed": 5,
        "num_actors": 1,
        "envs_per_actor": 1,
        "env_engine": "dm_control",
        "num_caches": 0,
        "num_replay_shards": 1,
        "online_fraction": 1.0,
        "replicas": Replicas.parse("1", "threads", None),
        "env_timeout": 300.0,
        "evaluation": EvaluationSchedule(),
        "checkpoint_seconds": 30.0,
        "keep_checkpoints": 1,
        "profile_steps": None,
    }
    return RunPlan(run_dir=run_dir, total_steps=total_steps, **(settings | changes))
