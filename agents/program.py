"""Wires the nodes of a run as a Launchpad program, and launches it; no other module does.

environment -> actor -> adder -> replay -> input -> [ step ] x replicas -> variables -> actor
"""

import dataclasses
import functools
import os
from collections.abc import Sequence

import launchpad as lp
import rl_replicator as rr
from agents.agent import Agent
from agents.deterministic.node import DeterministicNode, OfflineNode
from agents.nodes.actor import ActorNode
from agents.nodes.counter import Counter, LearnerCounter, restored_counter
from agents.nodes.evaluator import EvaluatorNode
from agents.nodes.learner import LearnerNode
from agents.nodes.run_plan import RunPlan
from agents.replay.checkpoint import make_server_checkpointer
from rl_replicator.errors import UsageError
from rl_replicator.processes.ports import OPEN_PORTS

# Milliseconds between two requests of a cache to the learner for new weights; actors request them
# from the cache every 250 actions. The cache serves weights that are up to twice as old: with a
# limit of one period, they would go stale while the next ones are on their way, and an actor's
# request would cause another one to the learner.
CACHE_MS = 200


# How long calls are retried while a server restarts: on a busy machine, a learner takes a minute to
# import, build and restore what it needs. Servers must remember calls for longer (FORGET_SECS).
_PATIENT = {"courier_client_kwargs": {"retry_secs": 600.0}}
_LAUNCH_TYPES = {
    "threads": lp.LaunchType.LOCAL_MULTI_THREADING,
    "processes": lp.LaunchType.LOCAL_MULTI_PROCESSING,
    "ray": lp.LaunchType.RAY,
}
_LEARNER = "learner"
# Pause before the first restart of a node; it doubles with each further one in a row. Nodes are
# forked, so that a restart costs little.
_FIRST_PAUSE_SECS = 0.05
# Set by `share_processors` in the launcher.
_THREADS = "TF_NUM_INTRAOP_THREADS"
# Environment variables that the machines of a named cluster do not inherit from the launcher.
_SHARED = (_THREADS, OPEN_PORTS)


@dataclasses.dataclass(frozen=True)
class RunProgram:
    """A run as a program.

    Attributes:
      program: the nodes.
      counter: handle of the counter, which reports progress.
    """

    program: lp.Program
    counter: lp.CourierHandle


def make_program(agent: Agent, plan: RunPlan) -> RunProgram:
    """Describes a run: its nodes, and which node calls which.

    Args:
      agent: the agent, picklable.
      plan: everything else about the run.
    """
    program = lp.Program("rl-replicator")

    with program.group("counter"):
        counter = program.add_node(_counter(plan))
    with program.group("replay"):
        tables = functools.partial(
            agent.make_tables,
            plan.replicas.num_replicas,
            plan.num_replay_shards,
            plan.online_fraction,
        )
        replays = [
            program.add_node(
                lp.ReverbNode(tables, checkpoint_ctor=make_server_checkpointer(plan.run_dir, shard))
            )
            for shard in range(plan.num_replay_shards)
        ]
    learner = _add_learner(program, agent, plan, replays, counter)
    sources = [learner]
    if plan.num_caches:
        with program.group("cache"):
            sources = [
                program.add_node(lp.CacherNode(learner, CACHE_MS, 2 * CACHE_MS))
                for _ in range(plan.num_caches)
            ]

    if plan.num_actors:
        with program.group("actor"):
            for index in range(plan.num_actors):
                source = sources[index % len(sources)]
                program.add_node(
                    lp.PyClassNode(ActorNode, index, agent, plan, replays, source, counter)
                )
    if plan.is_evaluated:
        with program.group("evaluator"):
            program.add_node(lp.PyClassNode(EvaluatorNode, agent, plan, learner, counter))
    return RunProgram(program, counter)


def make_deterministic_program(agent: Agent, plan: RunPlan) -> RunProgram:
    """Describes a run whose actor, learner and evaluator take turns in one node.

    Args:
      agent: the agent.
      plan: the run; it has one actor of one environment, or none.
    """
    program = lp.Program("rl-replicator")
    node = DeterministicNode if plan.num_actors else OfflineNode
    with program.group("counter"):
        counter = program.add_node(_counter(plan))
    with program.group("training"):
        program.add_node(lp.PyClassNode(node, agent, plan, counter))
    return RunProgram(program, counter)


def _counter(plan: RunPlan) -> lp.CourierNode:
    make = Counter if plan.num_actors else LearnerCounter
    return lp.CourierNode(restored_counter, plan.run_dir, plan.total_steps, make, **_PATIENT)


def _add_learner(
    program: lp.Program,
    agent: Agent,
    plan: RunPlan,
    replays: Sequence[lp.ReverbHandle],
    counter: lp.CourierHandle,
) -> lp.CourierHandle:
    """Adds the learner's nodes; returns the handle of the one that serves the weights."""
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
                plan,
                replays,
                counter,
                **_PATIENT,
            )
            node.allocate_address(address)
            handles.append(program.add_node(node))
    return handles[0]


def _join(addresses: Sequence[lp.Address], index: int) -> rr.Replicator:
    """Makes a node's part of a replicator over several nodes; called in that node."""
    addresses[index].resolve()  # Its own first, which publishes it to the others.
    cluster = rr.Cluster.of_workers([address.resolve() for address in addresses], index)
    return rr.MultiWorkerReplicator(cluster)


def share_processors() -> None:
    """Limits a TensorFlow operation to half of the processors, unless the user has set a number.

    Networks for control are small: splitting an operation over all processors costs more than it
    gains, and the actors need some of them too.
    """
    os.environ.setdefault(_THREADS, str(max(1, len(os.sched_getaffinity(0)) // 2)))


def launch(program: lp.Program, engine: str, address: str | None, gpus: int) -> lp.ProgramManager:
    """Starts the program.

    Args:
      program: describes the nodes.
      engine: "threads", "processes" or "ray".
      address: address of the Ray cluster; None for a new Ray on this machine.
      gpus: GPUs of each learner process.

    Returns:
      The manager of the running program.

    Raises:
      UsageError: if there is no such cluster, or it lacks the resources.
    """
    # Threads share one process, which ends with all of them.
    is_apart = engine != "threads"
    try:
        return lp.launch(
            program,
            _LAUNCH_TYPES[engine],
            local_resources=_resources(program, address, gpus) if is_apart else None,
            restart_policies=_restart_policies(program) if is_apart else None,
            address=address,
        )
    except (ValueError, ConnectionError) as error:
        raise UsageError(f"--launch {engine}: {error}") from error


def _resources(program: lp.Program, address: str | None, gpus: int) -> dict[str, lp.PythonProcess]:
    """Returns the resources of each node.

    Only learners see GPUs, because TensorFlow takes all memory of a GPU that it sees. No node
    requests CPUs from Ray: a run has more nodes than a small machine has CPUs, and most of them
    wait most of the time.
    """
    env = {name: os.environ[name] for name in _SHARED if address and name in os.environ}
    return {
        label: lp.PythonProcess(gpus=gpus if label == _LEARNER else 0, env=env)
        for label in program.groups
    }


def _restart_policies(program: lp.Program) -> dict[str, lp.RestartPolicy]:
    """Returns which nodes are restarted.

    A node whose process dies is restarted. After an exception it is not, because the exception
    would occur again. Several learners form one replicator, so they restart together.
    """
    return {
        label: lp.RestartPolicy(
            on_exception=False,
            together=label == _LEARNER and len(nodes) > 1,
            initial_backoff_secs=_FIRST_PAUSE_SECS,
        )
        for label, nodes in program.groups.items()
    }
