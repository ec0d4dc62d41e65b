"""What the command line calls: train an agent, evaluate a run, film it."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from agents.d4pg.config import D4PGConfig
from agents.evaluation import EvaluationSchedule
from rl_replicator.errors import check_option

if TYPE_CHECKING:
    from acme import specs

    from agents.agent import Agent


@dataclasses.dataclass(frozen=True)
class D4PGOptions:
    """Train D4PG on a task from its state."""

    env: str
    """Task: `domain:task` of the dm_control suite, or `package.module:function`."""
    steps: int = 120_000
    """Environment steps of the run, over all actors."""
    seed: int = 1
    """Seed of environments, noise, weights and evaluations."""
    actors: int = 1
    """Actors, each with an environment of its own."""
    replicas: str = "1"
    """Learner replicas: a number of devices, or a string of `rl_replicator.make`."""
    launch: Literal["threads", "processes"] = "threads"
    """Where the nodes run: threads of one process, or processes of this machine."""
    run_dir: Path | None = None
    """Directory of the run; one that exists is continued. Default: a new one under `runs/`."""
    resume: bool = False
    """Continue the newest run of the same task, seed and agent under `runs/`."""
    checkpoint_seconds: float = 30.0
    """Seconds between checkpoints (longer where one takes more than a twentieth of that)."""
    evaluation: EvaluationSchedule = EvaluationSchedule()
    """When to evaluate."""
    agent: D4PGConfig = D4PGConfig()
    """Hyper-parameters."""

    def __post_init__(self) -> None:
        for name in ("steps", "actors"):
            value = getattr(self, name)
            check_option(value >= 1, name, "at least 1", value)
        check_option(0 <= self.seed < 2**32, "seed", "a number from 0 to 2**32 - 1", self.seed)
        seconds = self.checkpoint_seconds
        check_option(seconds > 0, "checkpoint_seconds", "more than 0", seconds)


@dataclasses.dataclass(frozen=True)
class AgentCommand:
    """An agent on the command line: the object behind an entry point of `rl_replicator.trainables`.

    Attributes:
      name: of the agent.
      Options: dataclass of everything that can be set.
      config_type: dataclass of the agent's hyper-parameters.
      make_agent: (config, environment spec) -> agent.
    """

    name: str
    Options: type[D4PGOptions]
    config_type: type[D4PGConfig]
    make_agent: Callable[[Any, "specs.EnvironmentSpec"], "Agent"]

    def train(self, options: D4PGOptions) -> int:
        """Trains, with a live line; ends with an evaluation, a plot and a video.

        Args:
          options: of the run.

        Returns:
          Exit status: 0 when the run is complete, 130 when Ctrl-C or SIGTERM ended it.

        Raises:
          UsageError: bad input; no existing run was touched.
        """
        from agents.training import train

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
        from agents.restored import evaluate

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
        from agents.restored import film

        path, episode_return = film(self, run_dir, output, seed)
        print(f"video {path} (return {episode_return:.1f})")
        return 0


def _make_d4pg(config: D4PGConfig, spec: "specs.EnvironmentSpec") -> "Agent":
    from agents.d4pg.agent import D4PG  # Here, so that `--help` does not wait for TensorFlow.

    return D4PG(config, spec)


d4pg = AgentCommand("d4pg", D4PGOptions, D4PGConfig, _make_d4pg)
