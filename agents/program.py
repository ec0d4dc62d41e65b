"""The wiring: a run of an agent as a Launchpad program. There is no other.

environment -> actor -> adder -> replay -> input -> [ step ] x replicas -> variables -> actor
"""

import dataclasses
import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import launchpad as lp
from agents.agent import Agent
from agents.evaluation import EvaluationSchedule
from agents.nodes.actor import ActorNode
from agents.nodes.counter import Counter
from agents.nodes.evaluator import EvaluatorNode
from agents.nodes.learner import LearnerNode
from agents.replay.checkpoint import make_server_checkpointer
from agents.task import Task
from rl_replicator.runs.run_directory import RunDirectory


@dataclasses.dataclass(frozen=True)
class RunPlan:
    """What a program needs to know beside the agent.

    Attributes:
      task: the environment.
      seed: of everything random in the run.
      total_steps: environment steps of the run.
      num_actors: actors that share them.
      replicas: of the learner, see `rl_replicator.make`.
      num_replicas: how many that is.
      evaluation: when to evaluate.
      checkpoint_seconds: time between two checkpoints.
      run_dir: where metrics and checkpoints go.
      restored_replay: folder of the replay in the checkpoint to go on from, or None.
      restored_progress: what the counter knew in that checkpoint, or None.
    """

    task: Task
    seed: int
    total_steps: int
    num_actors: int
    replicas: str
    num_replicas: int
    evaluation: EvaluationSchedule
    checkpoint_seconds: float
    run_dir: Path
    restored_replay: Path | None = None
    restored_progress: Mapping[str, Any] | None = None


def make_program(agent: Agent, plan: RunPlan) -> tuple[lp.Program, lp.CourierHandle]:
    """Describes the run: who there is, and who talks to whom.

    Args:
      agent: factories, picklable.
      plan: of the run.

    Returns:
      The program, and the handle of its counter for whoever watches the run.
    """
    program = lp.Program("rl-replicator")

    with program.group("counter"):
        counter = program.add_node(
            lp.CourierNode(Counter, plan.run_dir, plan.total_steps, plan.restored_progress)
        )
    with program.group("replay"):
        replay = program.add_node(
            lp.ReverbNode(
                functools.partial(agent.make_tables, plan.num_replicas),
                checkpoint_ctor=make_server_checkpointer(
                    replay_scratch(plan.run_dir), plan.restored_replay
                ),
            )
        )
    with program.group("learner"):
        learner = program.add_node(
            lp.CourierNode(
                LearnerNode,
                agent,
                plan.replicas,
                plan.seed,
                plan.task.agent_steps(plan.total_steps),
                replay,
                counter,
                RunDirectory(plan.run_dir).checkpoints,
                plan.checkpoint_seconds,
            )
        )
    with program.group("actor"):
        for index in range(plan.num_actors):
            program.add_node(
                lp.PyClassNode(
                    ActorNode,
                    index,
                    agent,
                    plan.task,
                    plan.seed,
                    replay,
                    learner,
                    counter,
                )
            )
    with program.group("evaluator"):
        program.add_node(
            lp.PyClassNode(
                EvaluatorNode,
                agent,
                plan.task,
                plan.seed,
                plan.evaluation,
                learner,
                counter,
            )
        )
    return program, counter


def replay_scratch(run_dir: Path) -> Path:
    """Where the replay server writes before its tables move into a checkpoint."""
    return RunDirectory(run_dir).checkpoints / ".replay"
