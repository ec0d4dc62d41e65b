"""Measures the parts of a run on this machine."""

import contextlib
import dataclasses
import itertools
import math
import os
import platform
import statistics
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import dm_env
import numpy as np
import reverb
import tensorflow as tf

import rl_replicator as rr
from agents.agent import Agent, AgentLearner, BatchActor, ExplorationContext
from agents.capacity.parts import Parts
from agents.capacity.server import ReplayProcess, Usage
from agents.config import OffPolicyConfig
from agents.environment_loop import explore
from agents.learning.policy_average import without_averages
from agents.replay.input import draw
from agents.replay.table import PREFETCHED_BATCHES, TABLE
from agents.replay.transitions import transitions_per_item
from agents.task import Task
from environments.engines.batch import EnvironmentsInTurn
from launchpad.rpc import courier

# The policy is called with one observation and with this many, the learner with the batch and with
# this fraction of it: the model interpolates linearly between two points.
_ROWS, _DIVISOR = 16, 4
# Shares of the time of the measurement.
_SHARES = {"environment": 0.08, "policy": 0.06, "insert": 0.18, "sample": 0.14, "fetch": 0.06}
_LEARNER_SHARE = 0.2  # Of each of two batches.
# Figures are medians over this many windows.
_WINDOWS = 5
_MOST_TIMES = 1000  # The newest ones show how much a part varies.
_TOTAL_STEPS = 100_000
_SECONDS_TO_CONFIRM = 60.0


class Cost(NamedTuple):
    """The cost of one unit of work.

    Attributes:
      thread: processor seconds of the calling thread.
      process: processor seconds of this process.
      server: processor seconds of the replay server.
      busiest: processor seconds of the busiest thread of this process.
      received: bytes that the server received.
      sent: bytes that the server sent.
    """

    thread: float
    process: float
    server: float
    busiest: float
    received: float
    sent: float


def measure(
    make_agent: Callable[[Any, Any], Agent],
    config: OffPolicyConfig,
    task: Task,
    what: str,
    settings: Mapping[str, Any],
    seconds: float,
    num_shards: int,
) -> Parts:
    """Measures the parts.

    Args:
      make_agent: (config, environment spec) -> the agent.
      config: the agent's hyper-parameters.
      task: the environment.
      what: name of agent and environment, for `Parts`.
      settings: further options, for `Parts`.
      seconds: roughly how long it may take, after everything has been imported and compiled.
      num_shards: number of replay servers of the run; one of them is measured.

    Returns:
      The parts.
    """
    batch = config.global_batch_size
    environment = task.make(seed=0)
    agent = make_agent(config, task.spec())
    small_batch = max(1, batch // _DIVISOR)
    small = make_agent(
        dataclasses.replace(config, global_batch_size=small_batch), agent.environment_spec
    )
    with ReplayProcess(agent, num_shards) as server:
        bench = _Bench(agent, server, environment, seconds)
        learner = bench.learner(agent)
        figures = bench.acting(learner)
        figures |= bench.sampling(batch)
        figures |= bench.fetching(learner)
        cost, figures["step_variation"] = bench.learning(learner, config.steps_per_call)
        small_cost, _ = bench.learning(bench.learner(small), config.steps_per_call)
        figures |= _step_figures({batch: cost, small_batch: small_cost}, figures["sample_learner"])
        figures["gradient_bytes"] = _gradient_bytes(learner)
        bench.close()
    environment.close()
    return Parts(
        what=what,
        settings=settings,
        machine=_machine(),
        cores=_cores(),
        batch=batch,
        **figures,
    )


class _Bench:
    """The objects that all measurements share: an agent, its replay server, and an environment."""

    def __init__(
        self, agent: Agent, server: ReplayProcess, environment: dm_env.Environment, seconds: float
    ):
        self._agent, self._server, self._environment = agent, server, environment
        self._seconds = seconds
        self._learners: list[AgentLearner] = []

    def acting(self, learner: AgentLearner) -> dict[str, float]:
        """Measures the environment, the policy, and the rest of an actor: insertion.

        Insertion is measured at the pace of an actor, in its loop: alone, it is several times as
        fast, because each message to the server then holds many transitions.
        """
        environment = self._stepping()
        client = reverb.Client(self._server.address)
        adder = self._agent.make_adder(client, lambda seconds: None)
        actors = {rows: self._actor(learner, [adder] * rows) for rows in (1, _ROWS)}
        first = self._environment.reset()
        calls = {}
        for rows, actor in actors.items():
            for index in range(rows):
                actor.begin(index, first)
            observations = [first.observation] * rows
            calls[rows] = self._timed(_repeated(actor.select_actions, observations), "policy")
        row = max(0.0, (calls[_ROWS].thread - calls[1].thread) / (_ROWS - 1))
        steps = explore(EnvironmentsInTurn([self._environment]), actors[1])

        def act(count: int) -> None:
            while count > 0:
                _, step = next(steps)
                count -= not step.first()

        # As in a run, the newest transitions of a window are confirmed in the next one: an episode
        # cannot go on after `finish`.
        cost = self._timed(act, "insert")
        adder.finish(_SECONDS_TO_CONFIRM)
        adder.close()
        others = environment["environment"] + calls[1].thread
        return environment | {
            "policy_call": max(0.0, calls[1].thread - row),
            "policy_row": row,
            "insert_thread": max(0.0, cost.thread - others),
            "insert_actor": max(0.0, cost.process - others),
            "insert_server": cost.server,
            "insert_bytes": cost.received,
        }

    def _stepping(self) -> dict[str, float]:
        """Measures the environment alone, and the length of an episode."""
        spec, random = self._agent.environment_spec, np.random.default_rng(0)
        shape = (64, *spec.actions.shape)
        actions = itertools.cycle(random.uniform(-1.0, 1.0, shape).astype(np.float32))
        self._environment.reset()
        length, longest = 0, 0
        # Of actions without the reset, which occurs once per episode.
        times: deque[float] = deque(maxlen=_MOST_TIMES)

        def act(count: int) -> None:
            nonlocal length, longest
            for action in itertools.islice(actions, count):
                length += 1
                longest = max(longest, length)
                started = time.thread_time()
                is_last = self._environment.step(action).last()
                times.append(time.thread_time() - started)
                if is_last:
                    self._environment.reset()
                    length = 0

        cost = self._timed(act, "environment")
        return {
            "environment": cost.thread,
            "environment_variation": _variation(times),
            "episode_actions": float(longest),
        }

    def learner(self, agent: Agent) -> AgentLearner:
        """Makes a learner on the server; it samples once it steps."""
        learner = agent.make_learner(rr.make("single_device"), [self._server.address], _TOTAL_STEPS)
        self._learners.append(learner)
        return learner

    def sampling(self, batch: int) -> dict[str, float]:
        """Measures sampling alone: the samples are not used."""
        signature = reverb.Client(self._server.address).server_info()[TABLE].signature
        length = transitions_per_item(signature)
        dataset = draw(self._server.address, signature, batch, length)
        draws = iter(dataset.prefetch(PREFETCHED_BATCHES))

        def sample(count: int) -> None:
            for _ in range(-(-count // (length * batch))):
                next(draws)

        cost = self._timed(sample, "sample", unit=length * batch)
        return {
            "sample_learner": cost.process,
            "sample_thread": cost.busiest,
            "sample_bytes": cost.sent,
        }

    def fetching(self, learner: AgentLearner) -> dict[str, float]:
        """Measures remote calls: one that serves the weights, and a small one."""
        server = courier.Server()
        server.Bind("get_variables", learner.get_variables)
        server.Bind("small", lambda: None)
        server.Start()
        client = courier.Client(server.address)
        names = without_averages(learner.network_names)
        fetch = self._timed(_repeated(client.get_variables, names), "fetch")
        small = self._timed(_repeated(client.small), "fetch")
        server.Stop()
        weights = learner.get_variables(names)
        return {
            "weight_bytes": float(sum(array.nbytes for array in weights.values())),
            "fetch_actor": fetch.thread,
            "fetch_learner": fetch.process - fetch.thread,
            "call": small.process - small.thread,
        }

    def learning(self, learner: AgentLearner, steps_per_call: int) -> tuple[Cost, float]:
        """Measures a learner step, its input and its priorities included.

        Returns:
          Its cost, and the relative variation of a call's mean step.
        """
        times: deque[float] = deque(maxlen=_MOST_TIMES)

        def step(count: int) -> None:
            for _ in range(-(-count // steps_per_call)):
                started = time.process_time()
                learner.step()
                times.append(time.process_time() - started)

        cost = self._timed(step, _LEARNER_SHARE, unit=steps_per_call)
        return cost, _variation(times)

    def close(self) -> None:
        """Stops the learners' threads."""
        for learner in self._learners:
            learner.close()

    def _actor(self, learner: AgentLearner, adders: Sequence[Any]) -> BatchActor:
        # Late in a run, when the policy acts.
        contexts = [
            ExplorationContext(np.random.default_rng(i), lambda: sys.maxsize)
            for i in range(len(adders))
        ]
        return self._agent.make_actor(learner, adders, contexts)

    def _timed(self, work: Callable[[int], None], share: str | float, unit: int = 1) -> Cost:
        """Measures `work(count)`, which does a multiple of `unit`, for a share of the time."""
        part = _SHARES[share] if isinstance(share, str) else share
        window = max(part * self._seconds / _WINDOWS, 1e-3)
        for _ in range(2):  # The first call compiles or connects.
            started = time.perf_counter()
            work(unit)
        once = max(time.perf_counter() - started, 1e-6)
        count = unit * max(1, round(min(window, 1.0) / once / 10))
        started = time.perf_counter()
        work(count)
        once = max((time.perf_counter() - started) / count, 1e-9)
        count = unit * max(1, round(window / once / unit))
        costs = [self._window(work, count) for _ in range(_WINDOWS)]
        columns = list(zip(*costs, strict=True))
        medians = Cost(*map(statistics.median, columns))
        # Bytes are not disturbed by other work, but some belong to the previous window.
        means = Cost(*map(statistics.mean, columns))
        return medians._replace(received=means.received, sent=means.sent)

    def _window(self, work: Callable[[int], None], count: int) -> Cost:
        before, threads = self._server.usage(), _thread_seconds()
        thread, process = time.thread_time(), time.process_time()
        work(count)
        thread, process = time.thread_time() - thread, time.process_time() - process
        grown_threads = (now - threads.get(name, 0.0) for name, now in _thread_seconds().items())
        busiest = max([thread, *grown_threads])  # The kernel's figures may be a tick behind.
        grown = Usage(*(b - a for a, b in zip(before, self._server.usage(), strict=True)))
        cost = Cost(thread, process, grown.seconds, busiest, grown.received, grown.sent)
        return Cost(*(figure / count for figure in cost))


def _repeated(function: Callable[..., Any], *args: Any) -> Callable[[int], None]:
    """Returns a function that calls another one a number of times."""

    def call(count: int) -> None:
        for _ in range(count):
            function(*args)

    return call


def _variation(times: Sequence[float]) -> float:
    """Returns the standard deviation relative to the mean, without the largest hundredth.

    Those are interruptions rather than the work itself.
    """
    kept = sorted(times)[: max(2, math.ceil(0.99 * len(times)))]
    return statistics.pstdev(kept) / statistics.mean(kept) if len(kept) > 1 else 0.0


def _thread_seconds() -> dict[str, float]:
    """Returns the processor seconds of each thread of this process."""
    seconds = {}
    for path in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):  # The thread has ended.
            seconds[path.name] = int((path / "schedstat").read_text().split()[0]) * 1e-9
    return seconds


def _step_figures(costs: dict[int, Cost], sample: float) -> dict[str, float]:
    """Divides the costs of learner steps of two batches into those of a step and of its rows.

    Args:
      costs: the costs by batch, the larger one first; equal ones make one entry.
      sample: processor seconds of one sampled transition in the learner.
    """
    (batch, cost), *others = costs.items()
    row = cost.process / batch
    for small, other in others:
        row = min(row, max(0.0, (cost.process - other.process) / (batch - small)))
    call = cost.process - row * batch
    row -= sample
    threads = (cost.process - sample * batch) / cost.busiest
    return {
        "step_call": max(0.0, call + min(row, 0.0) * batch),
        "step_row": max(0.0, row),
        "step_threads": min(max(1.0, threads), float(_cores())),
        "sample_server": cost.server / batch,
    }


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


def _cores() -> int:
    return len(os.sched_getaffinity(0))


def _machine() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{_cores()} x {names[0] if names else platform.machine()}"
