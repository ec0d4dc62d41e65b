"""Measures the parts of a run on this machine."""

import contextlib
import dataclasses
import multiprocessing
import os
import platform
import socket
import stat
import struct
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import reverb
import tensorflow as tf

import rl_replicator as rr
from agents.agent import Agent, AgentLearner, ExplorationContext
from agents.config import OffPolicyConfig
from agents.environment_loop import explore
from agents.learning.targets import without_averages
from agents.plan.parts import Parts
from agents.replay.table import PREFETCHED_BATCHES, TABLE, draw
from agents.replay.transitions import transitions_per_item
from agents.task import Task
from environments.engines import EnvironmentsInTurn
from environments.flat import random_policy
from launchpad.rpc.client import CourierClient
from launchpad.rpc.server import MethodServer
from rl_replicator.processes import ports

# The policy is called with one observation and with this many, the learner with the batch and with
# this fraction of it: a line through the two gives the cost at other sizes.
_ROWS, _DIVISOR = 16, 4
_CALLS = 20  # Between two looks at the clock.
_TOTAL_STEPS = 100_000
_SECONDS_TO_CONFIRM = 60.0
# Importing TensorFlow takes at most this long on a busy machine.
_START_SECONDS = 300.0
# Offset of `tcpi_bytes_acked` and `tcpi_bytes_received`, two uint64, in Linux' `struct tcp_info`.
_BYTES_OFFSET, _INFO_SIZE = 120, 256


class Cost(NamedTuple):
    """The cost of one unit of work, or of all work so far.

    Attributes:
      thread: processor seconds of the calling thread.
      process: processor seconds of this process.
      server: processor seconds of the replay server.
      sent: bytes that this process has sent to the server.
      received: bytes that it has received from the server.
      busiest: processor seconds of the busiest thread of this process.
    """

    thread: float
    process: float
    server: float
    sent: float
    received: float
    busiest: float = 0.0


def measure(
    make_agent: Callable[[Any, Any], Agent],
    config: OffPolicyConfig,
    task: Task,
    settings: Mapping[str, Any],
    seconds: float,
    num_shards: int,
) -> Parts:
    """Measures the parts.

    Args:
      make_agent: (config, environment spec) -> the agent.
      config: the agent's hyper-parameters.
      task: the environment.
      settings: further options, for `Parts`.
      seconds: roughly how long it may take, after everything has been imported and compiled.
      num_shards: number of replay servers of the run; one of them is measured.

    Returns:
      The parts.
    """
    batch = config.global_batch_size
    fewer = max(1, batch // _DIVISOR)
    agent = make_agent(config, task.spec())
    small = make_agent(dataclasses.replace(config, global_batch_size=fewer), task.spec())
    with contextlib.ExitStack() as stack:
        port, pid = stack.enter_context(_replay_process(agent, num_shards))
        meter = _Meter(port, pid, seconds)
        learners = []
        for each in (agent, small):
            one_device = rr.make("single_device")
            learners.append(each.make_learner(one_device, [meter.address], _TOTAL_STEPS))
            stack.callback(learners[-1].close)  # They sample once they step.
        figures = _acting(meter, agent, learners[0], task)
        figures |= _sampling(meter, batch)
        figures |= _fetching(meter, learners[0])
        whole, part = (meter.cost(learner.step, config.steps_per_call, 0.2) for learner in learners)
        figures |= _stepping(whole, part, batch, fewer, figures["sample_learner"])
        figures["gradient_bytes"] = _gradient_bytes(learners[0])
    return Parts(settings=settings, machine=_machine(), **figures)


@contextlib.contextmanager
def _replay_process(agent: Agent, num_shards: int) -> Iterator[tuple[int, int]]:
    """Runs the agent's tables in a process of their own; yields its port and process id.

    Args:
      agent: makes the tables.
      num_shards: the replay servers of the run, of which this is one. The agent may accept its
        settings only for this number.
    """
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(agent, num_shards, theirs), daemon=True)
    process.start()
    theirs.close()
    try:
        if not ours.poll(_START_SECONDS):
            raise RuntimeError("the replay server of the measurement did not start")
        assert process.pid is not None
        yield ours.recv(), process.pid
    finally:
        process.kill()
        process.join()


def _serve(agent: Agent, num_shards: int, pipe: Connection) -> None:
    """Runs in the server's process, whose rate limiters never block."""
    limiter = reverb.rate_limiters.MinSize(1)
    tables = [table.replace(rate_limiter=limiter) for table in agent.make_tables(1, num_shards)]
    server = reverb.Server(tables)
    pipe.send(server.port)
    with contextlib.suppress(EOFError):  # The process that measures has ended.
        pipe.recv()
    server.stop()


class _Meter:
    """Measures what work costs this process and the replay server."""

    def __init__(self, port: int, pid: int, seconds: float):
        """Stores how to reach the server, and the seconds of all measurements together."""
        self.address = f"localhost:{port}"
        ports.bypass_proxy(["localhost"])
        self._port, self._pid, self._seconds = port, pid, seconds

    def cost(self, work: Callable[[], object], units: int, share: float) -> Cost:
        """Returns the cost of one unit.

        Args:
          work: does some units, and is called repeatedly.
          units: how many.
          share: share of the time for all measurements.
        """
        for _ in range(2):  # The first call compiles or connects.
            work()
        count, end = 0, time.perf_counter() + share * self._seconds
        threads, before = _thread_seconds("self"), self._used()
        while count == 0 or time.perf_counter() < end:
            work()
            count += units
        grown = [now - then for now, then in zip(self._used(), before, strict=True)]
        later = _thread_seconds("self").items()
        busiest = max(now - threads.get(name, 0.0) for name, now in later)
        grown[-1] = max(grown[0], busiest)  # The kernel's figures may be a tick behind.
        return Cost(*(figure / count for figure in grown))

    def _used(self) -> Cost:
        server = sum(_thread_seconds(str(self._pid)).values())
        traffic = [(0, 0), *_traffic(self._port)]
        sent, received = (sum(column) for column in zip(*traffic, strict=True))
        return Cost(time.thread_time(), time.process_time(), server, sent, received)


def _acting(meter: _Meter, agent: Agent, learner: AgentLearner, task: Task) -> dict[str, float]:
    """Measures the environment, the policy, and the rest of an actor: insertion.

    Insertion is measured at the pace of an actor, in its loop: alone, it is several times as fast,
    because each message to the server then holds many transitions.
    """
    environment = task.make(seed=0)
    alone, length = _environment(meter, environment)
    adder = agent.make_adder(reverb.Client(meter.address), lambda seconds: None)
    first = environment.reset()
    actors, calls = {}, {}
    for rows in (1, _ROWS):
        # Late in a run, when the policy acts.
        contexts = [
            ExplorationContext(np.random.default_rng(i), lambda: sys.maxsize) for i in range(rows)
        ]
        actor = actors[rows] = agent.make_actor(learner, [adder] * rows, contexts)
        for index in range(rows):
            actor.begin(index, first)
        observations = [first.observation] * rows
        select = _repeated(actor.select_actions, observations)
        calls[rows] = meter.cost(select, _CALLS, 0.06).thread
    row = max(0.0, (calls[_ROWS] - calls[1]) / (_ROWS - 1))
    steps = explore(EnvironmentsInTurn([environment]), actors[1])

    def act() -> None:
        actions = 0
        while actions < _CALLS:
            _, step = next(steps)
            actions += not step.first()

    cost = meter.cost(act, _CALLS, 0.2)
    adder.finish(_SECONDS_TO_CONFIRM)
    adder.close()
    environment.close()
    return {
        "environment": alone,
        "episode_actions": float(length),
        "policy_call": max(0.0, calls[1] - row),
        "policy_row": row,
        "insert_thread": max(0.0, cost.thread - alone - calls[1]),
        "insert_actor": max(0.0, cost.process - alone - calls[1]),
        "insert_server": cost.server,
        "insert_bytes": cost.sent,
    }


def _environment(meter: _Meter, environment: Any) -> tuple[float, int]:
    """Returns the seconds of one action in an environment, and the length of an episode."""
    policy = random_policy(environment, np.random.default_rng(0))
    length, longest = 0, 0
    timestep = environment.reset()

    def act() -> None:
        nonlocal length, longest, timestep
        for _ in range(_CALLS):
            length += 1
            longest = max(longest, length)
            timestep = environment.step(policy(timestep.observation))
            if timestep.last():
                timestep = environment.reset()
                length = 0

    return meter.cost(act, _CALLS, 0.08).thread, longest


def _sampling(meter: _Meter, batch: int) -> dict[str, float]:
    """Measures sampling alone: the samples are not used."""
    signature = reverb.Client(meter.address).server_info()[TABLE].signature
    length = transitions_per_item(signature)
    draws = iter(draw(meter.address, signature, batch, length).prefetch(PREFETCHED_BATCHES))
    cost = meter.cost(lambda: next(draws), length * batch, 0.14)
    return {
        "sample_learner": cost.process,
        "sample_thread": cost.busiest,
        "sample_bytes": cost.received,
    }


def _fetching(meter: _Meter, learner: AgentLearner) -> dict[str, float]:
    """Measures remote calls as on one machine: one that serves the weights, and a small one."""
    names = without_averages(learner.network_names)
    with tempfile.TemporaryDirectory() as folder:
        server = MethodServer(b"", f"unix:{folder}/socket")
        server.bind("get_variables", learner.get_variables)
        server.bind("small", lambda: None)
        server.start()
        client = CourierClient(server.address)
        fetch = meter.cost(_repeated(client.get_variables, names), _CALLS, 0.06)
        small = meter.cost(_repeated(client.small), _CALLS, 0.06)
        server.stop()
    weights = learner.get_variables(names)
    return {
        "weight_bytes": float(sum(array.nbytes for array in weights.values())),
        "fetch_actor": fetch.thread,
        "fetch_learner": fetch.process - fetch.thread,
        "call": small.process - small.thread,
    }


def _stepping(whole: Cost, part: Cost, batch: int, fewer: int, sample: float) -> dict[str, float]:
    """Divides the costs of learner steps of two batches into those of a step and of its rows.

    Args:
      whole: a step of the run's batch.
      part: a step of fewer rows.
      batch: rows of the former.
      fewer: rows of the latter.
      sample: processor seconds of one sampled transition in the learner.
    """
    seconds = max(0.0, whole.process - batch * sample)
    more = seconds - (part.process - fewer * sample)
    row = min(max(0.0, more / max(1, batch - fewer)), seconds / batch)
    return {
        "step_call": seconds - batch * row,
        "step_row": row,
        "step_threads": min(max(1.0, seconds / whole.busiest), float(_cores())),
        "sample_server": whole.server / batch,
    }


def _repeated(function: Callable[..., Any], *args: Any) -> Callable[[], None]:
    """Returns a function that calls another one `_CALLS` times."""

    def call() -> None:
        for _ in range(_CALLS):
            function(*args)

    return call


def _gradient_bytes(learner: AgentLearner) -> float:
    """Returns the bytes of all trained variables; those of target networks are only copied."""
    modules = [part for part in learner.trackables().values() if isinstance(part, tf.Module)]
    return float(
        sum(
            variable.shape.num_elements() * variable.dtype.size
            for module in modules
            for variable in module.trainable_variables
            if not variable.name.startswith("target")
        )
    )


def _thread_seconds(pid: str) -> dict[str, float]:
    """Returns the processor seconds of each thread of a process."""
    seconds = {}
    for path in Path("/proc", pid, "task").iterdir():
        with contextlib.suppress(OSError):  # The thread has ended.
            seconds[path.name] = int((path / "schedstat").read_text().split()[0]) * 1e-9
    return seconds


def _traffic(port: int) -> Iterator[tuple[int, int]]:
    """Yields the bytes that each connection of this process to a port has sent and received."""
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # Closed meanwhile, or a socket of another kind.
            if not stat.S_ISSOCK(os.stat(int(name)).st_mode):
                continue
            with socket.socket(fileno=os.dup(int(name))) as found:
                if found.getpeername()[1:2] != (port,):
                    continue
                info = found.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO_SIZE)
            yield struct.unpack_from("=QQ", info, _BYTES_OFFSET)


def _cores() -> int:
    return len(os.sched_getaffinity(0))


def _machine() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{_cores()} x {names[0] if names else platform.machine()}"
