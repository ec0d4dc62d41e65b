"""What the command line calls: train an agent, evaluate a run, film it."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from agents.d4pg.config import D4PGConfig
from agents.d4pg.pixel_config import PixelD4PGConfig
from agents.runs.evaluation import EvaluationSchedule
from environments import PixelConfig
from rl_replicator.errors import ConfigError, check_option
from rl_replicator.runs.run_directory import from_plain

if TYPE_CHECKING:
    from acme import specs

    from agents.agent import Agent
    from agents.task import Task


@dataclasses.dataclass(frozen=True)
class D4PGOptions:
    """Train D4PG on a task from its state, or from pictures of it (`--pixels`)."""

    env: str
    """Task: `domain:task` of the dm_control suite, or `package.module:function`."""
    steps: int = 120_000
    """Environment steps (frames of the simulator) of the run, over all actors. With `--pixels` an
    action lasts `--picture.action-repeat` of them."""
    seed: int = 1
    """Seed of environments, noise, weights and evaluations."""
    actors: int = 1
    """Actors, each with an environment of its own."""
    replicas: str = "1"
    """Learner replicas: a number of devices, `multi_worker:N` for N learner processes, or another
    string of `rl_replicator.make`."""
    learner_gpus: int | None = None
    """GPUs of each learner process. Default: those of this machine, shared out."""
    caches: int = 0
    """Nodes between learner and actors that hand its weights on: for tens of actors."""
    launch: Literal["threads", "processes", "ray"] = "threads"
    """Where the nodes run: threads of one process, processes of this machine, or Ray."""
    address: str | None = None
    """Ray cluster to run on, `host:port`. Default: a Ray of the run's own on this machine."""
    run_dir: Path | None = None
    """Directory of the run; one that exists is continued. Default: a new one under `runs/`."""
    resume: bool = False
    """Continue the newest run of the same task, seed and agent under `runs/`."""
    checkpoint_seconds: float = 30.0
    """Seconds between checkpoints (longer where one takes more than a twentieth of that)."""
    evaluation: EvaluationSchedule = EvaluationSchedule()
    """When to evaluate."""
    pixels: bool = False
    """See pictures in place of the state. Brings `--picture.*`, and more of `--agent.*`."""
    agent: D4PGConfig = D4PGConfig()
    """Hyper-parameters."""

    def __post_init__(self) -> None:
        for name in ("steps", "actors"):
            value = getattr(self, name)
            check_option(value >= 1, name, "at least 1", value)
        check_option(0 <= self.seed < 2**32, "seed", "a number from 0 to 2**32 - 1", self.seed)
        seconds = self.checkpoint_seconds
        check_option(seconds > 0, "checkpoint_seconds", "more than 0", seconds)
        check_option(0 <= self.caches <= self.actors, "caches", "0 to one an actor", self.caches)
        gpus, address = self.learner_gpus, self.address
        check_option(gpus is None or gpus >= 0, "learner_gpus", "at least 0", gpus)
        check_option(
            address is None or self.launch == "ray", "address", "--launch ray", self.launch
        )
        if self.pixels != isinstance(self, D4PGPixelOptions):
            raise ConfigError(
                "expected --pixels or --no-pixels, got both (from Python, pixels=True is "
                "D4PGPixelOptions)"
            )

    @property
    def task(self) -> "Task":
        """The environment of this run."""
        from agents.task import Task

        return Task(self.env)

    @property
    def identity(self) -> dict[str, Any]:
        """What makes it this run and no other, as plain data; `AgentCommand.restore` reads it."""
        return {"env": self.env, "seed": self.seed, "agent": dataclasses.asdict(self.agent)}


@dataclasses.dataclass(frozen=True)
class D4PGPixelOptions(D4PGOptions):
    """Train D4PG on a task from pictures of it."""

    pixels: bool = True
    """See pictures in place of the state."""
    agent: PixelD4PGConfig = PixelD4PGConfig()
    """Hyper-parameters."""
    picture: PixelConfig = PixelConfig()
    """How pictures are made."""

    @property
    def task(self) -> "Task":
        from agents.task import Task

        return Task(self.env, self.picture)

    @property
    def identity(self) -> dict[str, Any]:
        pixels = dataclasses.asdict(self.picture) | {"action_repeat": self.task.action_repeat}
        return super().identity | {"pixels": pixels}


@dataclasses.dataclass(frozen=True)
class AgentCommand:
    """An agent on the command line: the object behind an entry point of `rl_replicator.trainables`.

    Attributes:
      name: of the agent.
      state_options: dataclass of everything that can be set, from state.
      pixel_options: the same from pictures.
      make_agent: (config, environment spec) -> agent.
    """

    name: str
    state_options: type[D4PGOptions]
    pixel_options: type[D4PGPixelOptions]
    make_agent: Callable[[Any, "specs.EnvironmentSpec"], "Agent"]

    def options_type(self, args: Sequence[str]) -> type[D4PGOptions]:
        """The dataclass of what can be set, given the words of the command: `--pixels`, or not."""
        return self.pixel_options if "--pixels" in args else self.state_options

    def restore(self, identity: Mapping[str, Any]) -> tuple["Task", D4PGConfig]:
        """The task and the hyper-parameters of a run, from its directory's `identity`.

        Raises:
          UsageError: if another version wrote it.
        """
        from agents.task import Task

        plain = identity.get("pixels")
        if plain is None:
            return Task(identity["env"]), from_plain(
                type(self.state_options.agent), identity["agent"]
            )
        pixels = from_plain(PixelConfig, plain)
        config = from_plain(type(self.pixel_options.agent), identity["agent"])
        return Task(identity["env"], pixels), config

    def train(self, options: D4PGOptions) -> int:
        """Trains, with a live line; ends with an evaluation, a plot and a video.

        Args:
          options: of the run.

        Returns:
          Exit status: 0 when the run is complete, 130 when Ctrl-C or SIGTERM ended it.

        Raises:
          UsageError: bad input; no existing run was touched.
        """
        from agents.runs.training import train

        return train(self, options)

    def evaluate(self, run_dir: Path, episodes: int, seed: int) -> int:
        """Plays episodes with the newest checkpoint's policy and prints their returns.

        Args:
          run_dir: of the run.
          episodes: to play.
          seed: of the environment.

        Returns:
          Exit status 0.

        Raises:
          UsageError: if there is no run or no checkpoint.
        """
        from agents.runs.restored import evaluate

        returns = evaluate(self, run_dir, episodes, seed)
        mean = sum(returns) / len(returns)
        print(
            f"return {mean:.1f} (min {min(returns):.1f}, max {max(returns):.1f}, "
            f"{episodes} episodes)"
        )
        return 0

    def video(self, run_dir: Path, output: Path | None, seed: int) -> int:
        """Films an episode of the newest checkpoint's policy and prints the file's path.

        Args:
          run_dir: of the run.
          output: an .mp4 or .gif; default: in the run's directory.
          seed: of the environment.

        Returns:
          Exit status 0.

        Raises:
          UsageError: if there is no run or no checkpoint.
        """
        from agents.runs.restored import film

        path, episode_return = film(self, run_dir, output, seed)
        print(f"video {path} (return {episode_return:.1f})")
        return 0


def _make_d4pg(config: D4PGConfig, spec: "specs.EnvironmentSpec") -> "Agent":
    from agents.d4pg.agent import D4PG  # Here, so that `--help` does not wait for TensorFlow.

    return D4PG(config, spec)


d4pg = AgentCommand("d4pg", D4PGOptions, D4PGPixelOptions, _make_d4pg)
