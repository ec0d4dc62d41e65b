"""A bound on the speed of a run, from what each action and learner step takes of each resource.

The rate limiter of the replay ties both sides together: a transition, which is an action, makes
`samples_per_insert / batch` learner steps due. So every load is proportional to actions, and the
resource that is used up first determines the speed of the run. Nothing else slows it down in this
model: actors and learner overlap perfectly, and nothing waits in a queue.

The evaluator is not part of this chain: it skips the evaluations that become due while it
evaluates, so it takes no more than one thread.
"""

import dataclasses
import math
from collections.abc import Callable, Iterator
from typing import Any

from agents.acting.actors import ACTIONS_PER_UPDATE
from agents.nodes.counter import LEASE
from agents.plan.deployment import Deployment, Hardware
from agents.plan.parts import Parts
from agents.program import CACHE_MS

# Remote calls of an actor for each lease of environment steps.
_CALLS_PER_LEASE = 2
# A smaller gain is not worth an option.
_LEAST_GAIN = 1.02
# Speedup that is suggested for a learner on processors.
_SPEEDUP = 10.0
# An option, and the run and its machines with it.
_Candidate = tuple[str, Deployment, Hardware]


@dataclasses.dataclass(frozen=True)
class Resource:
    """Something that a run can use up.

    Attributes:
      name: the name to show to users.
      demand: the amount of it that each action uses.
      capacity: the amount available per second.
      base: the amount that the run uses per second, whatever its speed.
      evaluation: the amount that the scheduled evaluations use per action.
      evaluator: the most that the evaluator uses per second.
    """

    name: str
    demand: float
    capacity: float
    base: float = 0.0
    evaluation: float = 0.0
    evaluator: float = 0.0

    @property
    def limit(self) -> float:
        """Actions per second that it allows."""
        if self.demand <= 0:
            return math.inf
        free = max(0.0, self.capacity - self.base)
        return max(free / (self.demand + self.evaluation), (free - self.evaluator) / self.demand)

    def load(self, actions: float) -> float:
        """Returns the used share of it at a rate of actions."""
        evaluator = min(self.evaluation * actions, self.evaluator)
        return (self.base + self.demand * actions + evaluator) / self.capacity


@dataclasses.dataclass(frozen=True)
class Prediction:
    """The speed of a run.

    Attributes:
      resources: all resources; the one that is used up first comes first.
      run: how the run is deployed.
    """

    resources: tuple[Resource, ...]
    run: Deployment

    @property
    def actions(self) -> float:
        """Actions per second."""
        return self.resources[0].limit

    @property
    def environment_steps(self) -> float:
        """Environment steps per second."""
        return self.actions * self.run.action_repeat

    @property
    def learner_steps(self) -> float:
        """Learner steps per second."""
        return self.actions * self.run.steps_per_action


def predict(parts: Parts, run: Deployment, hardware: Hardware) -> Prediction:
    """Predicts the speed of a run.

    Args:
      parts: what its parts cost.
      run: how it is deployed.
      hardware: on which machines.
    """
    resources = _resources(parts, run, hardware)
    return Prediction(tuple(sorted(resources, key=lambda resource: resource.limit)), run)


def _resources(parts: Parts, run: Deployment, hardware: Hardware) -> Iterator[Resource]:
    """Yields everything that can be used up, in seconds and bytes per action."""
    samples = run.samples_per_insert
    # In threads, the weights are fetched by reference.
    fetches = 0.0 if run.in_threads else 1.0 / ACTIONS_PER_UPDATE
    act = parts.environment + parts.policy_call / run.envs_per_actor + parts.policy_row
    thread = act + parts.insert_thread + fetches * parts.fetch_actor
    played = min(parts.episode_actions, run.episode_actions)
    evaluate = run.evaluation * run.action_repeat * played
    evaluate *= parts.environment + parts.policy_call + parts.policy_row
    yield Resource("the actors", thread, run.actors)
    if run.in_threads:
        # NumPy and MuJoCo release it at times, so that this is the worst case.
        yield Resource("the GIL in threads", thread, 1.0, 0.0, evaluate, 1.0 / (run.actors + 1))
    replica = parts.step_call + parts.step_row * run.batch / run.replicas
    clock = _step_clock(parts, run, hardware, replica)
    yield Resource("the learner's steps", run.steps_per_action * clock, 1.0)
    yield Resource("the samples of a replica", samples / run.replicas * parts.sample_thread, 1.0)
    server = parts.insert_server + samples * parts.sample_server
    cores = min(hardware.cores, hardware.server_cores)
    yield Resource("the replay servers", server / run.replay_shards, cores)
    steps = 0.0 if hardware.device_speedup else run.steps_per_action * run.replicas * replica
    learner = steps + samples * parts.sample_learner
    actor = act + parts.insert_actor + fetches * parts.fetch_actor
    calls = 0.0
    if not run.in_threads:
        calls = _CALLS_PER_LEASE * run.action_repeat / LEASE * parts.call
        yield Resource("the counter", calls, 1.0)
    # Caches serve the weights in place of the learner, which serves only them.
    always = run.caches * 1000.0 / CACHE_MS
    fetched = 0.0 if run.caches else fetches
    yield Resource(
        "the processors",
        actor + learner + fetches * parts.fetch_learner + server + calls,
        hardware.machines * hardware.cores,
        always * parts.fetch_learner,
        evaluate,
        1.0,
    )
    if hardware.machines > 1:
        yield Resource(
            "the processors of the learner's machines",
            learner + fetched * parts.fetch_learner,
            _learner_machines(run, hardware) * hardware.cores,
            always * parts.fetch_learner,
        )
        yield from _networks(parts, run, hardware, fetched, always)


def _learner_machines(run: Deployment, hardware: Hardware) -> int:
    return min(run.learner_processes, hardware.machines)


def _step_clock(parts: Parts, run: Deployment, hardware: Hardware, replica: float) -> float:
    """Returns the wall-clock seconds of a learner step whose input is ready.

    Args:
      parts: what its parts cost.
      run: how the run is deployed.
      hardware: on which machines.
      replica: processor seconds of the step of one replica.
    """
    machines = _learner_machines(run, hardware)
    if hardware.device_speedup is not None:
        seconds = replica / parts.step_threads / hardware.device_speedup
    else:
        threads = min(machines * hardware.cores, run.replicas * parts.step_threads)
        seconds = replica * run.replicas / threads
        if machines == 1:
            return seconds  # Averaging the gradients is part of the step.
    # A ring, between machines or between the accelerators of one.
    members = run.learner_processes if machines > 1 else run.replicas
    gbps = hardware.network_gbps if machines > 1 else hardware.link_gbps
    moved = 2.0 * (members - 1) / members * parts.gradient_bytes
    latency = 2e-6 * (members - 1) * hardware.latency_us if machines > 1 else 0.0
    return seconds + 8e-9 * moved / gbps + latency


def _networks(
    parts: Parts, run: Deployment, hardware: Hardware, fetched: float, always: float
) -> Iterator[Resource]:
    """Yields the networks of the machines.

    Args:
      parts: what the parts of the run cost.
      run: how it is deployed.
      hardware: on which machines.
      fetched: fetches of the learner's weights for each action.
      always: further ones per second.
    """
    capacity = hardware.network_gbps * 1e9 / 8
    learners = _learner_machines(run, hardware)
    shards = min(run.replay_shards, hardware.machines)
    reduced = 2.0 * (learners - 1) / learners * parts.gradient_bytes * run.steps_per_action
    sampled = run.samples_per_insert * parts.sample_bytes
    weights = parts.weight_bytes
    yield Resource("the network into the learner", sampled / learners + reduced, capacity)
    out = weights * fetched + reduced
    yield Resource("the network out of the learner", out, capacity, weights * always)
    yield Resource("the network into the replay", parts.insert_bytes / shards, capacity)
    yield Resource("the network out of the replay", sampled / shards, capacity)
    if run.caches:
        served = weights / ACTIONS_PER_UPDATE / min(run.caches, hardware.machines)
        yield Resource("the network out of the caches", served, capacity)


@dataclasses.dataclass(frozen=True)
class Change:
    """A change of one option.

    Attributes:
      option: the option as users type it.
      gain: environment steps per second with it, relative to those without; infinite if there are
        none without it.
      prediction: the prediction of the run with it.
    """

    option: str
    gain: float
    prediction: Prediction


def best_changes(
    parts: Parts,
    run: Deployment,
    hardware: Hardware,
    accepts: Callable[[Deployment], bool],
    most: int = 3,
) -> list[Change]:
    """Tries options, each by itself.

    Args:
      parts: what the parts of the run cost.
      run: how it is deployed.
      hardware: on which machines.
      accepts: returns whether the replay of a run with another deployment would be accepted.
      most: number of changes to return.

    Returns:
      The changes that make the run faster, the best one first.
    """
    before = predict(parts, run, hardware).actions
    found = []
    for option, changed, machines in _candidates(run, hardware):
        after = predict(parts, changed, machines)
        gain = after.actions / before if before > 0 else math.inf
        if after.actions > 0 and gain >= _LEAST_GAIN and accepts(changed):
            found.append(Change(option, gain, after))
    return sorted(found, key=lambda change: -change.gain)[:most]


def _candidates(run: Deployment, hardware: Hardware) -> Iterator[_Candidate]:
    """Yields changes of one option each, mostly to twice its value."""

    def option(
        name: str, value: float | str, **changes: object
    ) -> tuple[str, Deployment, Hardware]:
        made: dict[str, Any] = changes or {name: value}
        return f"--{name.replace('_', '-')} {value}", dataclasses.replace(run, **made), hardware

    for name in ("actors", "envs_per_actor", "replay_shards"):
        changed = option(name, 2 * getattr(run, name))
        if run.actors * run.envs_per_actor % changed[1].replay_shards == 0:
            yield changed
    replicas, processes = 2 * run.replicas, 2 * run.learner_processes
    if run.learner_processes > 1:
        both = {"replicas": replicas, "learner_processes": processes}
        yield option("replicas", f"multi_worker:{processes}", **both)
    else:
        yield option("replicas", replicas)
    if run.in_threads:
        yield option("launch", "processes", in_threads=False)
    elif max(1, 2 * run.caches) <= run.actors:
        yield option("caches", max(1, 2 * run.caches))
    samples = run.samples_per_insert / 2
    fewer = f"{samples:g} (fewer learner steps per action)"
    yield option("agent.replay.samples-per-insert", fewer, samples_per_insert=samples)
    speedup = 2 * hardware.device_speedup if hardware.device_speedup else _SPEEDUP
    machines: dict[str, Any] = {"cores": 2 * hardware.cores, "device_speedup": speedup}
    if hardware.machines > 1:
        machines |= {"machines": 2 * hardware.machines, "network_gbps": 2 * hardware.network_gbps}
    for name, value in machines.items():
        text = f"--{name.replace('_', '-')} {value:g}"
        yield text, run, dataclasses.replace(hardware, **{name: value})
