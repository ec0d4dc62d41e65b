"""The machines of a run, and how it is deployed on them."""

import dataclasses
import math
import re

from agents.config import OffPolicyConfig
from agents.nodes.run_plan import group_replicas, learner_processes
from agents.runs.options import AgentOptions
from rl_replicator.errors import ConfigError, check_option


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
    check_option(not options.deterministic, "deterministic", "False for a plan", True)
    engine = options.env_engine
    check_option(engine == "dm_control", "env_engine", "dm_control for a plan", engine)
    processes = learner_processes(options.replicas, options.launch)
    # The GPUs of this machine are irrelevant to the machines of the prediction.
    gpus = options.learner_gpus or 0
    if hardware.machines > 1:
        check_option(options.launch == "ray", "launch", "ray on several machines", options.launch)
    return Deployment(
        actors=options.actors,
        envs_per_actor=options.envs_per_actor,
        in_threads=options.launch == "threads",
        replicas=group_replicas(processes, gpus) if processes > 1 else _devices(options.replicas),
        learner_processes=processes,
        replay_shards=options.replay_shards,
        caches=options.caches,
        batch=agent.global_batch_size,
        samples_per_insert=agent.replay.samples_per_insert,
        action_repeat=options.task.action_repeat,
        evaluation=options.evaluation.episodes / options.evaluation.every,
        episode_actions=options.task.agent_steps(options.evaluation.max_episode_steps),
    )


def _devices(text: str) -> int:
    """Returns the number of replicas in one process."""
    if text == "single_device":
        return 1
    found = re.fullmatch(r"(?:multi_device:)?([1-9][0-9]{0,5})", text, re.ASCII)
    if not found:
        raise ConfigError(
            f"--replicas: expected a number, multi_device:N or multi_worker:N, got {text!r}"
        )
    return int(found[1])
