"""A discrete-event simulation of a run: what the bound of `model.py` leaves out.

Actors, streams of samples, replicas, caches and evaluator are processes that queue for processors,
the GIL, replay servers and networks, and wait for the rate limiter and for each other. The
costs are those of the bound; actions, and learner steps on processors, vary around them at random.
So the rates are at most those of the bound, and the difference is what waiting costs. The
simulation also shows how old the actors' weights are.
"""

import dataclasses
import math
import random
from collections import defaultdict, deque
from collections.abc import Generator, Iterator
from typing import Any

import simpy

from agents.acting.actors import ACTIONS_PER_UPDATE
from agents.capacity.hardware import Deployment, Hardware
from agents.capacity.model import CALLS_PER_LEASE, Demands, predict
from agents.capacity.parts import Parts
from agents.nodes.counter import LEASE
from agents.program import CACHE_MS
from agents.replay.table import PREFETCHED_BATCHES, draws_ahead

# A process yields the processor, or the GIL, after this many seconds, about as a scheduler does.
_SLICE = 1e-3
# This many inserted items and replica steps take some ten seconds to simulate.
_MOST_EVENTS = 30_000
_EVALUATOR_LOOKS = 0.1
# If actors have received a smaller share of the weights that they requested, a queue still grows.
_SETTLED = 0.5

_Events = Generator[Any, Any, Any]


@dataclasses.dataclass(frozen=True)
class Simulated:
    """The result of a simulated run.

    Attributes:
      seconds: simulated time.
      actions: actions per second.
      learner_steps: learner steps per second.
      actor: what the actors did, as shares of their time.
      learner: the same for the learner.
      weight_age: learner steps since the weights of an actor were the newest ones, mean; NaN if
        actors still queued up for weights, so that the simulated time was too short.
      weight_age_95: the same, 95th percentile.
    """

    seconds: float
    actions: float
    learner_steps: float
    actor: dict[str, float]
    learner: dict[str, float]
    weight_age: float
    weight_age_95: float


def simulate(
    parts: Parts,
    deployment: Deployment,
    hardware: Hardware,
    samples_ahead: float,
    seconds: float,
    seed: int = 0,
) -> Simulated:
    """Simulates a run in the middle of its training.

    Args:
      parts: what its parts cost.
      deployment: how it is deployed.
      hardware: on which machines.
      samples_ahead: the tolerance of the rate limiter, in sampled transitions.
      seconds: how long to simulate; less if more happens in that time than can be simulated in
        some ten seconds.
      seed: seed of the variation.
    """
    bound = predict(parts, deployment, hardware)
    items = bound.actions / deployment.item_length
    most = _MOST_EVENTS / (items + bound.learner_steps * deployment.replicas)
    seconds = min(seconds, most)
    run = _Run(parts, deployment, hardware, samples_ahead, seed)
    clock = run.clock
    # Before that, actors or learner are faster than the limiter lets them be in the long run.
    clock.run(run.held_back | clock.timeout(most))
    clock.run(clock.now + seconds / 3)  # Let the queues fill.
    run.forget()
    clock.run(clock.now + seconds * 2 / 3)
    return run.summary(seconds * 2 / 3)


class _Machine:
    """Processors and a network."""

    def __init__(self, clock: simpy.Environment, cores: float):
        whole = math.ceil(cores)
        self.processors = simpy.Resource(clock, whole)
        self.speed = cores / whole
        self.inward, self.outward = simpy.Resource(clock, 1), simpy.Resource(clock, 1)


class _Limiter:
    """Reverb's SampleToInsertRatio, with the table filled to its minimum size.

    Attributes:
      held_back: the event at which an insert or a sample has to wait for the first time.
    """

    def __init__(self, clock: simpy.Environment, samples_per_insert: float, ahead: float):
        self._clock = clock
        self._samples_per_insert, self._ahead = samples_per_insert, ahead
        self._owed = 0.0  # Samples that inserts allow beyond those taken.
        self._inserts: deque[tuple[float, simpy.Event]] = deque()
        self._samples: deque[tuple[float, simpy.Event]] = deque()
        self.held_back = simpy.Event(clock)

    def insert(self, count: float) -> simpy.Event:
        """Returns the event at which `count` transitions are inserted."""
        return self._queued(self._inserts, count * self._samples_per_insert)

    def sample(self, count: float) -> simpy.Event:
        """Returns the event at which `count` transitions are sampled."""
        return self._queued(self._samples, count)

    def _queued(self, queue: deque[tuple[float, simpy.Event]], samples: float) -> simpy.Event:
        event = simpy.Event(self._clock)
        queue.append((samples, event))
        while self._serves(self._inserts, 1.0) or self._serves(self._samples, -1.0):
            pass
        if not (event.triggered or self.held_back.triggered):
            self.held_back.succeed()
        return event

    def _serves(self, queue: deque[tuple[float, simpy.Event]], sign: float) -> bool:
        if not queue or sign * self._owed + queue[0][0] > self._ahead:
            return False
        samples, event = queue.popleft()
        self._owed += sign * samples
        event.succeed()
        return True


class _Run:
    """The processes of a run, and their statistics."""

    def __init__(
        self, parts: Parts, run: Deployment, hardware: Hardware, samples_ahead: float, seed: int
    ):
        self.clock = simpy.Environment()
        self._parts, self._run, self._hardware = parts, run, hardware
        self._demands = Demands(parts, run, hardware)
        self._random = random.Random(seed)
        self._machines = [_Machine(self.clock, hardware.cores) for _ in range(hardware.machines)]
        self._lock = [simpy.Resource(self.clock, 1)] if run.in_threads else []
        self._limiter = _Limiter(self.clock, run.samples_per_insert, samples_ahead)
        self.held_back = self._limiter.held_back
        threads = max(1, math.floor(hardware.server_cores))
        self._servers = [simpy.Resource(self.clock, threads) for _ in range(run.replay_shards)]
        self._counter = simpy.Resource(self.clock, 1)
        # The learner's process that serves the weights, or the caches.
        self._serving = [simpy.Resource(self.clock, 1) for _ in range(max(1, run.caches))]
        self._cached = [0] * run.caches
        draws = draws_ahead(run.item_length)
        self._drawn = [
            [simpy.Store(self.clock, draws) for _ in range(run.replay_shards)]
            for _ in range(run.replicas)
        ]
        self._batches = [simpy.Store(self.clock, PREFETCHED_BATCHES) for _ in range(run.replicas)]
        self._steps = self._published = 0
        self.forget()
        for begin in self._processes():
            self.clock.process(begin)

    def _processes(self) -> Iterator[_Events]:
        run = self._run
        for index, machine in enumerate(self._places()):
            yield self._actor(index, machine)
        for replica in range(run.replicas):
            for shard in range(run.replay_shards):
                yield self._draws(replica, shard)
            yield self._unpacks(replica)
        for cache in range(run.caches):
            yield self._cache(cache)
        yield self._learner()
        if run.evaluation:
            yield self._evaluator()

    def forget(self) -> None:
        """Sets all counts to zero."""
        self._actions, self._steps_before = 0, self._steps
        self._actor_seconds: dict[str, float] = defaultdict(float)
        self._learner_seconds: dict[str, float] = defaultdict(float)
        self._ages: list[float] = []
        self._fetched = 0

    def summary(self, seconds: float) -> Simulated:
        """Returns what was counted.

        Args:
          seconds: time since `forget`.
        """
        ages = sorted(self._ages) or [0]
        # Ages are meaningful only if actors have fetched at about their usual rate.
        at_once = self._run.item_length * self._run.envs_per_actor
        asked = self._actions / max(ACTIONS_PER_UPDATE, at_once)
        if self._fetched < _SETTLED * asked:
            ages = [math.nan]
        return Simulated(
            seconds=seconds,
            actions=self._actions / seconds,
            learner_steps=(self._steps - self._steps_before) / seconds,
            actor=_shares(self._actor_seconds),
            learner=_shares(self._learner_seconds),
            weight_age=sum(ages) / len(ages),
            weight_age_95=ages[math.ceil(0.95 * len(ages)) - 1],
        )

    def _places(self) -> Iterator[_Machine]:
        """Yields the machine of each actor: the least busy one."""
        parts, run, demands = self._parts, self._run, self._demands
        rate = predict(parts, run, self._hardware).actions
        busy = [0.0] * len(self._machines)
        for learner in range(run.learner_processes):
            sampled = run.samples_per_insert * parts.sample_learner
            share = run.steps_per_action * demands.step_processors + sampled
            busy[learner % len(busy)] += rate * share / run.learner_processes
        for shard in range(run.replay_shards):
            sampled = run.samples_per_insert * parts.sample_server
            busy[shard % len(busy)] += rate * (parts.insert_server + sampled) / run.replay_shards
        for _ in range(run.actors):
            place = busy.index(min(busy))
            busy[place] += rate * (demands.act + parts.insert_actor) / run.actors
            yield self._machines[place]

    def _work(self, machine: _Machine, seconds: float, *locks: simpy.Resource) -> _Events:
        """Keeps one processor busy, and holds locks meanwhile."""
        seconds /= machine.speed
        queues = (*locks, machine.processors)
        while seconds > 0.0:
            held = []
            for queue in queues:
                held.append(queue.request())
                if not held[-1].triggered:
                    yield held[-1]
            while seconds > 0.0:
                piece = min(seconds, _SLICE)
                yield self.clock.timeout(piece)
                seconds -= piece
                if any(queue.queue for queue in queues):
                    break
            for queue, turn in zip(queues, held, strict=True):
                queue.release(turn)

    def _send(self, sender: _Machine, receiver: _Machine, num_bytes: float) -> _Events:
        """Moves bytes over the network, out of a machine and into the other simultaneously."""
        if sender is receiver:
            return
        with sender.outward.request() as outward, receiver.inward.request() as inward:
            yield outward & inward
            yield self.clock.timeout(8e-9 * num_bytes / self._hardware.network_gbps)

    def _varied(self, variation: float, count: float = 1.0) -> float:
        """Returns the mean of `count` factors of mean 1 with this standard deviation."""
        if variation == 0.0:
            return 1.0
        square = math.log1p(variation**2 / count)
        return self._random.lognormvariate(-square / 2, math.sqrt(square))

    def _actor(self, index: int, machine: _Machine) -> _Events:
        parts, run = self._parts, self._run
        # One item of each environment at a time.
        count = run.item_length * run.envs_per_actor
        others = count * (self._demands.act - parts.environment + parts.insert_thread)
        sent: deque[simpy.Event] = deque()
        # Actors began at different times, and have fetched their weights since.
        to_lease, to_fetch = 0, self._random.randrange(ACTIONS_PER_UPDATE)
        version = None
        yield self.clock.timeout(self._random.random() * count * self._demands.act)
        while True:
            started = self.clock.now
            variation = self._varied(parts.environment_variation, count)
            act = count * parts.environment * variation + others
            yield from self._work(machine, act, *self._lock)
            acted = self.clock.now
            # Before the first fetch, use the long-run rate of steps: actors began ahead of the
            # learner.
            before = to_fetch * run.actors * run.steps_per_action
            self._ages.append(before if version is None else self._steps - version)
            sent.append(self.clock.process(self._delivery(index, machine)))
            if len(sent) > run.max_in_flight_items // run.item_length:
                yield sent.popleft()
            delivered = self.clock.now
            to_lease += count * run.action_repeat
            if not run.in_threads:
                calls = to_lease // LEASE * CALLS_PER_LEASE * parts.call
                to_lease %= LEASE
                yield from self._work(self._machines[0], calls, self._counter)
            to_fetch += count
            if to_fetch >= ACTIONS_PER_UPDATE:
                to_fetch %= ACTIONS_PER_UPDATE
                version = yield from self._fetch(index, machine)
                self._fetched += 1
            seconds = self._actor_seconds
            seconds["act"] += act
            seconds["wait for a processor"] += acted - started - act
            seconds["wait for the replay"] += delivered - acted
            seconds["ask for weights and steps"] += self.clock.now - delivered

    def _delivery(self, index: int, machine: _Machine) -> _Events:
        """Inserts an item of each environment of an actor, each into one of the servers."""
        parts, run = self._parts, self._run
        others = max(0.0, parts.insert_actor - parts.insert_thread)
        first = index * run.envs_per_actor
        for number in range(first, first + run.envs_per_actor):
            server = number % run.replay_shards
            place = self._server_machine(server)
            yield from self._work(machine, run.item_length * others)
            yield from self._send(machine, place, run.item_length * parts.insert_bytes)
            yield self._limiter.insert(run.item_length)
            self._actions += run.item_length
            inserted = run.item_length * parts.insert_server
            yield from self._work(place, inserted, self._servers[server])

    def _fetch(self, index: int, machine: _Machine) -> _Events:
        """Fetches the weights; returns the learner step that produced them."""
        if self._run.in_threads:
            return self._published
        which = index % len(self._serving)
        place = self._machines[which % len(self._machines)]
        yield from self._work(place, self._parts.fetch_learner, self._serving[which])
        version = self._cached[which] if self._cached else self._published
        yield from self._send(place, machine, self._parts.weight_bytes)
        yield from self._work(machine, self._parts.fetch_actor)
        return version

    def _cache(self, index: int) -> _Events:
        place = self._machines[index % len(self._machines)]
        while True:
            yield from self._work(self._machines[0], self._parts.fetch_learner)
            version = self._published
            yield from self._send(self._machines[0], place, self._parts.weight_bytes)
            self._cached[index] = version
            yield self.clock.timeout(CACHE_MS / 1000)

    def _draws(self, replica: int, shard: int) -> _Events:
        """A server's part in a replica's samples."""
        parts, run = self._parts, self._run
        count = run.item_length * run.batch / run.replicas / run.replay_shards
        place, machine = self._server_machine(shard), self._learner_machine(replica)
        while True:
            yield self._limiter.sample(count)
            yield from self._work(place, count * parts.sample_server, self._servers[shard])
            yield from self._send(place, machine, count * parts.sample_bytes)
            yield self._drawn[replica][shard].put(count)

    def _unpacks(self, replica: int) -> _Events:
        """The learner's part in a replica's samples."""
        parts, machine = self._parts, self._learner_machine(replica)
        others = max(0.0, parts.sample_learner - parts.sample_thread)
        while True:
            drawn = yield self.clock.all_of([draw.get() for draw in self._drawn[replica]])
            count = sum(drawn.values())
            self.clock.process(self._work(machine, count * others))
            yield from self._work(machine, count * parts.sample_thread)
            for _ in range(self._run.item_length):
                yield self._batches[replica].put(1)

    def _learner(self) -> _Events:
        run = self._run
        while True:
            started = self.clock.now
            yield self.clock.all_of([batches.get() for batches in self._batches])
            begun = self.clock.now
            replicas = [self.clock.process(self._step(index)) for index in range(run.replicas)]
            ended = list((yield self.clock.all_of(replicas)).values())
            work = sum(work for work, _ in ended) / run.replicas
            mean = sum(end for _, end in ended) / run.replicas
            slowest = self.clock.now
            yield self.clock.timeout(self._demands.all_reduce)
            self._steps += 1
            if self._steps % run.steps_per_call == 0:
                self._published = self._steps
            seconds = self._learner_seconds
            seconds["step"] += work
            seconds["wait for a processor"] += mean - begun - work
            seconds["wait for samples"] += begun - started
            seconds["wait for the slowest replica"] += slowest - mean
            seconds["average gradients"] += self.clock.now - slowest

    def _step(self, replica: int) -> _Events:
        """A learner step of one replica; returns the seconds of its work, and when it ended."""
        parts, speedup = self._parts, self._hardware.device_speedup
        work = self._demands.one_replica / parts.step_threads
        if speedup is not None:  # An accelerator does nothing else meanwhile.
            yield self.clock.timeout(work / speedup)
            return work / speedup, self.clock.now
        work *= self._varied(parts.step_variation)
        machine = self._learner_machine(replica)
        whole = math.floor(parts.step_threads)
        threads = [work] * whole + [work * (parts.step_threads - whole)]
        yield self.clock.all_of(self.clock.process(self._work(machine, x)) for x in threads)
        return work / machine.speed, self.clock.now

    def _evaluator(self) -> _Events:
        """Plays the episodes that are due, a fixed number per environment step."""
        parts, run = self._parts, self._run
        policy = parts.policy_call + parts.policy_row
        episode = self._demands.episode_actions * (parts.environment + policy)
        played = due = 0.0
        before = 0
        while True:
            due += max(0, self._actions - before) * run.action_repeat * run.evaluation
            before = self._actions
            if played + 1.0 <= due:
                played += 1.0
                yield from self._work(self._machines[-1], episode, *self._lock)
            else:
                yield self.clock.timeout(_EVALUATOR_LOOKS)

    def _server_machine(self, shard: int) -> _Machine:
        return self._machines[shard % len(self._machines)]

    def _learner_machine(self, replica: int) -> _Machine:
        process = replica * self._run.learner_processes // self._run.replicas
        return self._machines[process % len(self._machines)]


def _shares(seconds: dict[str, float]) -> dict[str, float]:
    """Returns the shares of a sum, the largest one first."""
    whole = sum(seconds.values())
    ordered = sorted(seconds.items(), key=lambda item: -item[1])
    return {name: value / whole for name, value in ordered} if whole else {}
