"""The commands on environments: `envs` and `check-env`."""

import dataclasses
import sys
from collections.abc import Sequence
from typing import Annotated

import tyro

import environments
from rl_replicator.cli import options
from rl_replicator.errors import check_option


@dataclasses.dataclass(frozen=True)
class EnvsOptions:
    """List the tasks that can be trained on, one per line."""


def envs(args: Sequence[str]) -> int:
    """Lists the tasks that can be trained on"""
    options.parse(EnvsOptions, "rl-replicator envs", args)
    print("\n".join(environments.names()))
    print(
        "Also: gym:ID, dm:manipulation/TASK, dm:locomotion/TASK, and package.module:function, a "
        "factory called with seed= that returns a dm_env.Environment or a gymnasium.Env "
        "(docs/environments.md).",
        file=sys.stderr,
    )
    return 0


@dataclasses.dataclass(frozen=True)
class CheckEnvOptions:
    """Play an environment with random actions and list what is wrong with it.

    It checks specs, bounds, non-finite numbers, seeding, the ends of episodes and rendering;
    each line says what to do.
    """

    env: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="ENV")]
    """The environment, as for `train --env`."""
    wrap: tuple[str, ...] = ()
    """Wrappers, as for `train`."""
    time_limit: int | None = None
    """Steps after which an episode is truncated."""
    pixels: bool = False
    """Examine rendered frames, as observed by `train --pixels`, in place of the state. A step
    is then an action, which is repeated as in training."""
    max_steps: int = 10_000
    """Steps within which an episode must end."""

    def __post_init__(self) -> None:
        for name in ("max_steps", "time_limit"):
            value = getattr(self, name)
            check_option(value is None or value >= 1, name, "at least 1", value)


def check_env(args: Sequence[str]) -> int:
    """Plays an environment and lists what is wrong with it: check-env module:function"""
    chosen = options.parse(CheckEnvOptions, "rl-replicator check-env", args)
    from environments import examination

    frame = environments.PixelConfig() if chosen.pixels else None

    def make(seed: int) -> environments.Environment | environments.PixelEnvironment:
        return environments.make(chosen.env, seed, frame, chosen.wrap, chosen.time_limit)

    wrong = 0
    for finding in examination.examine(make, chosen.max_steps):
        wrong += finding.verdict == examination.WRONG
        remedy = f"; {finding.remedy}" if finding.remedy else ""
        text = " ".join(finding.text.split())
        print(f"{finding.verdict:<5} {finding.subject}: {text}{remedy}", flush=True)
    print(f"\nWrong: {wrong}." if wrong else "\nAgents can train in it.")
    return 1 if wrong else 0
