"""The wiring: a run of an agent as a Launchpad program. There is no other.

environment -> actor -> adder -> replay -> input -> [ step ] x replicas -> variables -> actor
"""

import dataclasses
import functools
from collections.abc import Sequence
from pathlib import Path

import launchpad as lp
import rl_replicator as rr
from agents.agent import Agent
from agents.nodes.actor import ActorNode
from agents.nodes.counter import restored_counter
from agents.nodes.evaluator import EvaluatorNode
from agents.nodes.learner import LearnerNode
from agents.replay.checkpoint import make_server_checkpointer
from agents.runs.evaluation import EvaluationSchedule
from agents.runs.replicas import Replicas
from agents.task import Task

# Weights from a cache are at most this much older than the learner's, in milliseconds. Actors ask
# for new ones every 250 steps.
_CACHE_MS = 200


# Calls wait this long for a server that is being started again: on a busy machine a learner takes a
# minute to import, build and restore what it needs.
_PATIENT = {"courier_client_kwargs": {"retry_secs": 600.0}}


@dataclasses.dataclass(frozen=True)
class RunPlan:
    """What a program needs to know beside the agent.

    Attributes:
      task: the environment.
      seed: of everything random in the run.
      total_steps: environment steps of the run.
      num_actors: actors that share them.
      num_caches: between the learner and the actors, for its weights.
      replicas: of the learner.
      evaluation: when to evaluate.
      checkpoint_seconds: time between two checkpoints.
      run_dir: where metrics and checkpoints go; nodes that start find their state there.
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
            lp.CourierNode(restored_counter, plan.run_dir, plan.total_steps, **_PATIENT)
        )
    with program.group("replay"):
        replay = program.add_node(
            lp.ReverbNode(
                functools.partial(agent.make_tables, plan.replicas.num_replicas),
                checkpoint_ctor=make_server_checkpointer(plan.run_dir),
            )
        )
    learner = _add_learner(program, agent, plan, replay, counter)
    sources = [learner]
    if plan.num_caches:
        with program.group("cache"):
            sources = [
                program.add_node(lp.CacherNode(learner, _CACHE_MS, _CACHE_MS))
                for _ in range(plan.num_caches)
            ]
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
                    sources[index % len(sources)],
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


def _add_learner(
    program: lp.Program,
    agent: Agent,
    plan: RunPlan,
    replay: lp.ReverbHandle,
    counter: lp.CourierHandle,
) -> lp.CourierHandle:
    """Adds the learner, one node or several; returns the handle of the one that has the weights."""
    addresses = [lp.Address("worker") for _ in range(plan.replicas.num_processes)]
    handles = []
    with program.group("learner"):
        for index, address in enumerate(addresses):
            node: lp.CourierNode = lp.CourierNode(
                LearnerNode,
                agent,
                functools.partial(_join, addresses, index)
                if len(addresses) > 1
                else functools.partial(rr.make, plan.replicas.name),
                plan.seed,
                plan.task.agent_steps(plan.total_steps),
                replay,
                counter,
                plan.run_dir,
                plan.checkpoint_seconds,
                **_PATIENT,
            )
            node.allocate_address(address)
            handles.append(program.add_node(node))
    return handles[0]


def _join(addresses: Sequence[lp.Address], index: int) -> rr.Replicator:
    """Makes this node's part of a replicator over several nodes; in the node."""
    addresses[index].resolve()  # Its own first: this is what tells it to the others.
    cluster = rr.Cluster.of_workers([address.resolve() for address in addresses], index)
    return rr.MultiWorkerReplicator(cluster)
