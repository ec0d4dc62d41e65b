"""A bound on the speed of a run, from what each action and learner step takes of each resource.

The rate limiter of the replay ties both sides together: a transition, which is an
action, makes `samples_per_insert / batch` learner steps due. So every load is proportional to
actions, and the resource that is used up first determines the speed of the run. Nothing else slows
it down in this model: actors and learner overlap perfectly, and nothing waits in a queue.

The evaluator is not part of this chain: it skips the evaluations that become due while it
evaluates. So it takes no more than the share of one thread, and never slows the others down
further.
"""

import dataclasses
import math
from collections.abc import Iterator

from agents.acting.actors import ACTIONS_PER_UPDATE
from agents.capacity.hardware import Deployment, Hardware
from agents.capacity.parts import Parts
from agents.nodes.counter import LEASE
from agents.program import CACHE_MS

# Remote calls of an actor for each lease of environment steps.
CALLS_PER_LEASE = 2


@dataclasses.dataclass(frozen=True)
class Resource:
    """Something that a run can use up.

    Attributes:
      name: the name to show to users.
      demand: the amount of it that each action uses.
      capacity: the amount available per second.
      base: the amount that the run uses per second, whatever its speed.
      evaluation: the amount that the scheduled evaluations use per action.
      busiest: the amount that the busiest other thread uses per action.
    """

    name: str
    demand: float
    capacity: float
    base: float = 0.0
    evaluation: float = 0.0
    busiest: float = 0.0

    @property
    def limit(self) -> float:
        """Actions per second that it allows."""
        if self.demand <= 0:
            return math.inf
        free = max(0.0, self.capacity - self.base)
        # The evaluator gets as much as any other thread, if it needs that much, and at most 1.
        shared = free / (self.demand + min(self.evaluation, self.busiest))
        return max(shared, (free - 1.0) / self.demand if self.evaluation else 0.0)

    def evaluator(self, actions: float) -> float:
        """Returns the amount of it that the evaluator uses per second, at a rate of actions."""
        rest = self.capacity - self.base - self.demand * actions
        return min(self.evaluation * actions, 1.0, max(self.busiest * actions, rest))

    def load(self, actions: float) -> float:
        """Returns the used share of it at a rate of actions."""
        used = self.base + self.demand * actions + self.evaluator(actions)
        return used / self.capacity


@dataclasses.dataclass(frozen=True)
class Prediction:
    """The speed of a run.

    Attributes:
      resources: all resources; the one that is used up first comes first.
      actions: actions per second.
      deployment: how the run is deployed.
    """

    resources: tuple[Resource, ...]
    actions: float
    deployment: Deployment

    @property
    def bottleneck(self) -> Resource:
        """The resource that is used up first."""
        return self.resources[0]

    @property
    def evaluated(self) -> float:
        """The share of the scheduled evaluations that the evaluator can play."""
        shares = [
            resource.evaluator(self.actions) / (resource.evaluation * self.actions)
            for resource in self.resources
            if resource.evaluation * self.actions > 0
        ]
        return min(shares, default=1.0)

    @property
    def environment_steps(self) -> float:
        """Environment steps per second."""
        return self.actions * self.deployment.action_repeat

    @property
    def learner_steps(self) -> float:
        """Learner steps per second."""
        return self.actions * self.deployment.steps_per_action


def predict(parts: Parts, deployment: Deployment, hardware: Hardware) -> Prediction:
    """Predicts the speed of a run.

    Args:
      parts: what its parts cost.
      deployment: how it is deployed.
      hardware: on which machines.
    """
    demands = Demands(parts, deployment, hardware)
    resources = sorted(demands.resources(), key=lambda resource: resource.limit)
    return Prediction(tuple(resources), resources[0].limit, deployment)


class Demands:
    """What one run demands of its resources, in processor seconds and bytes per action."""

    def __init__(self, parts: Parts, deployment: Deployment, hardware: Hardware):
        """Computes nothing yet.

        Args:
          parts: what the parts of the run cost.
          deployment: how it is deployed.
          hardware: on which machines.
        """
        self._parts, self._run, self._hardware = parts, deployment, hardware
        self._ratio = deployment.steps_per_action
        self._samples = self._ratio * deployment.batch
        # In threads, the weights are fetched by reference.
        self._has_fetches = not deployment.in_threads

    def resources(self) -> Iterator[Resource]:
        """Yields everything that can be used up."""
        parts, run, hardware = self._parts, self._run, self._hardware
        act = self.act
        thread = act + parts.insert_thread + self._fetches * parts.fetch_actor
        yield Resource("the actors", thread, run.actors)
        evaluate = self._evaluate
        actor_thread = thread / run.actors
        if run.in_threads:
            # NumPy and MuJoCo release it at times, so that this is the worst case.
            yield Resource(
                "the GIL in threads", thread, 1.0, evaluation=evaluate, busiest=actor_thread
            )
        step = self._ratio * self._step_clock()
        yield Resource("the learner's steps", step, 1.0)
        stream = self._samples / run.replicas * parts.sample_thread
        yield Resource("the samples of a replica", stream, 1.0)
        server = parts.insert_server + self._samples * parts.sample_server
        cores = min(hardware.cores, hardware.server_cores)
        yield Resource("the replay servers", server / run.replay_shards, cores)
        learner = self._ratio * self.step_processors + self._samples * parts.sample_learner
        actor = act + parts.insert_actor + self._fetches * parts.fetch_actor
        calls = CALLS_PER_LEASE * run.action_repeat / LEASE * parts.call
        fetched, fetched_always = self._fetched()
        served, always = fetched * parts.fetch_learner, fetched_always * parts.fetch_learner
        # Caches serve the weights at the learner's cost, but not only on its machines.
        serving = self._fetches * parts.fetch_learner
        yield Resource(
            "the processors",
            actor + learner + serving + server + calls,
            hardware.machines * hardware.cores,
            always,
            evaluate,
            self._busiest_beside_evaluator(actor_thread, stream),
        )
        if not run.in_threads:
            yield Resource("the counter", calls, 1.0)
        if hardware.machines > 1:
            yield Resource(
                "the processors of the learner's machines",
                learner + served,
                min(run.learner_processes, hardware.machines) * hardware.cores,
                always,
            )
            yield from self._network(fetched, fetched_always)

    @property
    def act(self) -> float:
        """Processor seconds of an action, without insertion."""
        parts = self._parts
        policy = parts.policy_call / self._run.envs_per_actor + parts.policy_row
        return parts.environment + policy

    @property
    def episode_actions(self) -> float:
        """Actions of an episode of evaluation."""
        return min(self._parts.episode_actions, self._run.max_episode_actions)

    @property
    def _evaluate(self) -> float:
        """Processor seconds of the evaluations per action."""
        parts, run = self._parts, self._run
        actions = run.evaluation * run.action_repeat * self.episode_actions
        return actions * (parts.environment + parts.policy_call + parts.policy_row)

    def _busiest_beside_evaluator(self, actor: float, stream: float) -> float:
        """Returns the seconds per action of the busiest thread that the evaluator competes with.

        Args:
          actor: seconds per action of an actor.
          stream: those of a stream of samples.
        """
        # In threads, the evaluator runs only while it has the GIL, as often as an actor.
        if self._run.in_threads or self._run.learner_processes < self._hardware.machines:
            return actor
        step = self._ratio * self.one_replica / self._parts.step_threads
        return max(actor, stream, step if self._hardware.device_speedup is None else 0.0)

    @property
    def _fetches(self) -> float:
        """Fetches of weights for each action."""
        return 1.0 / ACTIONS_PER_UPDATE if self._has_fetches else 0.0

    def _fetched(self) -> tuple[float, float]:
        """Returns how often the learner serves its weights: per action, and per second."""
        if self._run.caches:
            return 0.0, self._run.caches * 1000.0 / CACHE_MS
        return self._fetches, 0.0

    @property
    def one_replica(self) -> float:
        """Processor seconds of a learner step of one replica."""
        parts, run = self._parts, self._run
        return parts.step_call + parts.step_row * run.batch / run.replicas

    @property
    def step_processors(self) -> float:
        """Processor seconds of a learner step; none if accelerators compute it."""
        if self._hardware.device_speedup is not None:
            return 0.0
        return self.one_replica * self._run.replicas

    def _step_clock(self) -> float:
        """Wall-clock seconds of a learner step whose input is ready."""
        parts, run, hardware = self._parts, self._run, self._hardware
        seconds = self.one_replica / parts.step_threads
        if hardware.device_speedup is not None:
            return seconds / hardware.device_speedup + self.all_reduce
        machines = min(run.learner_processes, hardware.machines)
        threads = min(machines * hardware.cores, run.replicas * parts.step_threads)
        return self.one_replica * run.replicas / threads + self.all_reduce

    @property
    def all_reduce(self) -> float:
        """Wall-clock seconds to average the gradients in a ring.

        Zero on the processors of one machine, where it is part of the step.
        """
        run, hardware = self._run, self._hardware
        between_machines = min(run.learner_processes, hardware.machines) > 1
        if run.replicas == 1 or not (between_machines or hardware.device_speedup):
            return 0.0
        gbps = hardware.network_gbps if between_machines else hardware.link_gbps
        members = run.learner_processes if between_machines else run.replicas
        moved = 2.0 * (members - 1) / members * self._parts.gradient_bytes
        latency = hardware.latency_us * 1e-6 if between_machines else 0.0
        return 8e-9 * moved / gbps + 2 * (members - 1) * latency

    def _network(self, fetched: float, fetched_always: float) -> Iterator[Resource]:
        """Yields the networks of the machines, in bytes."""
        parts, run = self._parts, self._run
        capacity = self._hardware.network_gbps * 1e9 / 8
        learners = min(run.learner_processes, self._hardware.machines)
        reduced = 0.0
        if learners > 1:
            reduced = 2.0 * (learners - 1) / learners * parts.gradient_bytes * self._ratio
        sampled = self._samples * parts.sample_bytes
        yield Resource("the network into the learner", sampled / learners + reduced, capacity)
        weights = parts.weight_bytes
        yield Resource(
            "the network out of the learner",
            weights * fetched + reduced,
            capacity,
            weights * fetched_always,
        )
        shards = min(run.replay_shards, self._hardware.machines)
        yield Resource("the network into the replay", parts.insert_bytes / shards, capacity)
        yield Resource("the network out of the replay", sampled / shards, capacity)
        if run.caches:
            caches = min(run.caches, self._hardware.machines)
            yield Resource(
                "the network out of the caches", weights * self._fetches / caches, capacity
            )
