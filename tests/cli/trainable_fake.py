"""A trainable that takes no time, registered by the tests' own distribution."""

import dataclasses
import errno
import json
import sys
from pathlib import Path
from typing import Literal

import environments
import launchpad as lp
from agents.runs.options import EvaluationOptions
from launchpad.errors import ExceptionRecord
from rl_replicator.cli import options
from rl_replicator.errors import ConfigError


@dataclasses.dataclass(frozen=True)
class Net:
    """The network."""

    learning_rate: float = 1e-4
    """Step size."""
    layers: tuple[int, ...] = (64, 64)
    """Hidden layers."""
    clip: float | None = None
    """Largest gradient."""

    def __post_init__(self):
        if self.learning_rate <= 0:
            raise ConfigError(
                f"--agent.learning-rate: expected more than 0, got {self.learning_rate}"
            )


@dataclasses.dataclass(frozen=True)
class FakeOptions:
    """Trains nothing."""

    env: str
    """The task."""
    run_dir: Path = Path("run")
    """Where to."""
    steps: int = 10
    """How long."""
    resume: bool = False
    """Go on."""
    launch: Literal["threads", "processes"] = "threads"
    """Where."""
    agent: Net = Net()
    """Hyper-parameters."""


class Fake:
    """Implements `rl_replicator.cli.trainables.Trainable`."""

    def parse(self, words, stored):
        place = ["--run-dir", stored["run_dir"]] if stored.get("run_dir") else []
        return options.parse(FakeOptions, "rl-replicator train fake", [*words, *place])

    def train(self, options):
        if options.env == "crash":
            raise RuntimeError("something broke")
        if options.env == "exit":
            sys.exit("the simulator has ended")
        if options.env == "wrapped":
            try:
                environments.make("cartpole:swinup", seed=0)
            except ValueError as error:
                raise RuntimeError("the actor failed") from error
        if options.env == "interrupt":
            raise KeyboardInterrupt
        if options.env == "pipe":
            raise BrokenPipeError(errno.EPIPE, "the worker of a learner's data has gone")
        if options.env == "node":
            try:
                raise RuntimeError("the environment broke")
            except RuntimeError as error:
                raise lp.NodeFailedError("actor", 0, ExceptionRecord.of(error)) from error
        if options.env == "status":
            print("about to end", flush=True)
            print("about to end", file=sys.stderr, flush=True)
            return 3
        environments.make(options.env, seed=0)
        options.run_dir.mkdir()
        identity = {"trainable": "fake"}
        (options.run_dir / "config.json").write_text(
            json.dumps({"trainable": "fake", "identity": identity})
        )
        print(f"trained {options.env} {options.steps} {options.resume} {options.agent}")
        return None

    evaluation_options_type = EvaluationOptions

    def evaluate(self, run_dir, episodes, seed, best, out):
        assert not best and out is None
        print(f"evaluated {run_dir.name} {episodes} {seed}")


fake = Fake()
