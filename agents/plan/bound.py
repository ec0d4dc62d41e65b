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
import re
from collections.abc import Iterator

from agents.config import OffPolicyConfig, check_no_memory
from agents.nodes.run_plan import group_replicas, learner_processes
from agents.plan.parts import Parts
from agents.runs.options import AgentOptions
from rl_replicator.errors import ConfigError, check_option

# Remote calls of an actor for each lease of environment steps.
_CALLS_PER_LEASE = 2
_SAMPLES = "fewer --agent.replay.samples-per-insert"


@dataclasses.dataclass(frozen=True)
class Hardware:
    """The machines, and the quantities that cannot be measured on this one."""

    machines: int = 1
    """Number of machines. The first ones hold the learner's processes and the replay servers; the
    actors are spread over all of them."""
    cores: float = 1.0
    """Processors of each machine, as fast as those of the measurement."""
    device_speedup: float | None = None
    """Speed of a learner step on one accelerator, relative to this machine. None: learners use the
    processors."""
    network_gbps: float = 10.0
    """Gigabits per second of each machine's network, in each direction."""
    link_gbps: float = 200.0
    """Gigabits per second between the accelerators of one machine."""
    latency_us: float = 50.0
    """Latency of one message in an all-reduce between machines, in microseconds."""
    server_cores: float = 4.0
    """Processors that one replay server can keep busy."""

    def __post_init__(self) -> None:
        check_option(self.machines >= 1, "machines", "at least 1", self.machines)
        for name in ("cores", "device_speedup", "network_gbps", "link_gbps", "server_cores"):
            value = getattr(self, name)
            is_good = value is None or (value > 0 and math.isfinite(value))
            check_option(is_good, name, "a number greater than 0", value)
        is_good = 0 <= self.latency_us < math.inf
        check_option(is_good, "latency_us", "a number of at least 0", self.latency_us)


@dataclasses.dataclass(frozen=True)
class Deployment:
    """How a run is deployed.

    Attributes:
      actors: number of actors.
      envs_per_actor: environments of each.
      in_threads: whether all nodes are threads of one process.
      replicas: replicas of the learner.
      learner_processes: processes that these are divided among.
      replay_shards: replay servers.
      caches: nodes that serve the weights.
      batch: transitions of a learner step, over all replicas.
      samples_per_insert: transitions sampled for each one inserted.
      action_repeat: environment steps of an action.
      evaluation: episodes of evaluation for each environment step.
      episode_actions: actions after which such an episode is cut off.
    """

    actors: int
    envs_per_actor: int
    in_threads: bool
    replicas: int
    learner_processes: int
    replay_shards: int
    caches: int
    batch: int
    samples_per_insert: float
    action_repeat: int
    evaluation: float = 0.0
    episode_actions: float = math.inf

    @property
    def steps_per_action(self) -> float:
        """Learner steps for each action."""
        return self.samples_per_insert / self.batch


def deploy(options: AgentOptions, hardware: Hardware) -> Deployment:
    """Returns the deployment that the options of a run describe.

    Args:
      options: the options of the run.
      hardware: its machines.

    Raises:
      ConfigError: if they do not fit each other, or the agent has no replay.
    """
    agent = options.agent
    if not isinstance(agent, OffPolicyConfig):
        raise ConfigError(
            f"expected an agent whose config is an agents.config.OffPolicyConfig, got "
            f"{type(agent).__name__}: a plan needs its batch and its replay"
        )
    check_no_memory(agent, "for a plan")
    check_option(not options.deterministic, "deterministic", "False for a plan", True)
    check_option(options.offline is None, "offline", "none for a plan", options.offline)
    engine = options.env_engine
    check_option(engine == "dm_control", "env_engine", "dm_control for a plan", engine)
    if hardware.machines > 1:
        check_option(options.launch == "ray", "launch", "ray on several machines", options.launch)
    processes = learner_processes(options.replicas, options.launch)
    # The GPUs of this machine are irrelevant to the machines of the prediction.
    replicas = group_replicas(processes, options.learner_gpus or 0)
    if processes == 1:
        text = "1" if options.replicas == "single_device" else options.replicas
        found = re.fullmatch(r"(?:multi_device:)?([1-9][0-9]{0,5})", text, re.ASCII)
        expected = "a number, multi_device:N or multi_worker:N"
        check_option(found is not None, "replicas", expected, repr(text))
        replicas = int(found[1]) if found else 1
    return Deployment(
        actors=options.actors,
        envs_per_actor=options.envs_per_actor,
        in_threads=options.launch == "threads",
        replicas=replicas,
        learner_processes=processes,
        replay_shards=options.replay_shards,
        caches=options.caches,
        batch=agent.global_batch_size,
        samples_per_insert=agent.replay.samples_per_insert,
        action_repeat=options.task.action_repeat,
        evaluation=options.evaluation.episodes / options.evaluation.every,
        episode_actions=options.task.agent_steps(options.evaluation.max_episode_steps),
    )


@dataclasses.dataclass(frozen=True)
class Resource:
    """Something that a run can use up.

    Attributes:
      name: the name to show to users.
      demand: the amount of it that each action uses.
      capacity: the amount available per second.
      moved_by: options that would give more of it, or use less.
      base: the amount that the run uses per second, whatever its speed.
      evaluation: the amount that the scheduled evaluations use per action.
      evaluator: the most that the evaluator uses per second.
    """

    name: str
    demand: float
    capacity: float
    moved_by: str = ""
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
    # Imported here so that a wrong option is noticed before TensorFlow is imported.
    from agents.acting.actors import ACTIONS_PER_UPDATE
    from agents.nodes.counter import LEASE
    from agents.program import CACHE_MS

    samples = run.samples_per_insert
    # In threads, the weights are fetched by reference.
    fetches = 0.0 if run.in_threads else 1.0 / ACTIONS_PER_UPDATE
    act = parts.environment + parts.policy_call / run.envs_per_actor + parts.policy_row
    thread = act + parts.insert_thread + fetches * parts.fetch_actor
    played = min(parts.episode_actions, run.episode_actions)
    evaluate = run.evaluation * run.action_repeat * played
    evaluate *= parts.environment + parts.policy_call + parts.policy_row
    yield Resource("the actors", thread, run.actors, "--actors, --envs-per-actor")
    calls = 0.0
    if run.in_threads:
        # NumPy and MuJoCo release it at times, so that this is the worst case.
        share = 1.0 / (run.actors + 1)
        name = "the GIL in threads"
        yield Resource(name, thread, 1.0, "--launch processes", 0.0, evaluate, share)
    else:
        calls = _CALLS_PER_LEASE * run.action_repeat / LEASE * parts.call
        yield Resource("the counter", calls, 1.0)
    replica = parts.step_call + parts.step_row * run.batch / run.replicas
    clock = _step_clock(parts, run, hardware, replica)
    moved = f"--replicas, --device-speedup, {_SAMPLES}"
    yield Resource("the learner's steps", run.steps_per_action * clock, 1.0, moved)
    sampled = samples / run.replicas * parts.sample_thread
    yield Resource("the samples of a replica", sampled, 1.0, f"--replicas, {_SAMPLES}")
    server = parts.insert_server + samples * parts.sample_server
    cores = min(hardware.cores, hardware.server_cores)
    yield Resource("the replay servers", server / run.replay_shards, cores, "--replay-shards")
    steps = 0.0 if hardware.device_speedup else run.steps_per_action * run.replicas * replica
    learner = steps + samples * parts.sample_learner
    actor = act + parts.insert_actor + fetches * parts.fetch_actor
    # Caches serve the weights in place of the learner, which serves only them.
    always = run.caches * 1000.0 / CACHE_MS
    fetched = 0.0 if run.caches else fetches
    yield Resource(
        "the processors",
        actor + learner + fetches * parts.fetch_learner + server + calls,
        hardware.machines * hardware.cores,
        f"--cores, --machines, {_SAMPLES}",
        always * parts.fetch_learner,
        evaluate,
        1.0,
    )
    if hardware.machines > 1:
        yield Resource(
            "the processors of the learner's machines",
            learner + fetched * parts.fetch_learner,
            _learner_machines(run, hardware) * hardware.cores,
            "--cores, --replicas multi_worker:N, --caches",
            always * parts.fetch_learner,
        )
        yield from _networks(parts, run, hardware, fetched, always)
        if run.caches:
            served = parts.weight_bytes / ACTIONS_PER_UPDATE / min(run.caches, hardware.machines)
            capacity = hardware.network_gbps * 1e9 / 8
            yield Resource(
                "the network out of the caches", served, capacity, "--network-gbps, --caches"
            )


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
    more, faster = "--network-gbps, --replay-shards", "--network-gbps, --caches"
    into, out = sampled / learners + reduced, weights * fetched + reduced
    yield Resource("the network into the learner", into, capacity, f"--network-gbps, {_SAMPLES}")
    yield Resource("the network out of the learner", out, capacity, faster, weights * always)
    yield Resource("the network into the replay", parts.insert_bytes / shards, capacity, more)
    yield Resource("the network out of the replay", sampled / shards, capacity, more)
