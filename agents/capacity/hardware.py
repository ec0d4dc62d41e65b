"""The machines of a run, and its deployment on them."""

import dataclasses
import math

from rl_replicator.errors import check_option


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
      max_episode_actions: actions after which such an episode is cut off.
      item_length: transitions in an item of the replay.
      max_in_flight_items: maximum number of an actor's transitions that the replay has not
        confirmed.
      steps_per_call: learner steps of one call, after which the weights are published.
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
    max_episode_actions: float = math.inf
    item_length: int = 1
    max_in_flight_items: int = 32
    steps_per_call: int = 1

    @property
    def steps_per_action(self) -> float:
        """Learner steps for each action."""
        return self.samples_per_insert / self.batch
