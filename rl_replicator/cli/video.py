"""`rl-replicator video RUN_DIR`."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import tyro

from rl_replicator.cli import options, trainables


@dataclasses.dataclass(frozen=True)
class VideoOptions:
    """Film an evaluation episode with the newest checkpoint of a run."""

    run_dir: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN_DIR")]
    """The run's directory."""
    output: Path | None = None
    """The film, .mp4 or .gif. Default: in the run's directory."""
    seed: int = 1000
    """Seed of the environment."""


def run(args: Sequence[str]) -> int:
    """Films an episode of a run."""
    chosen = options.parse(VideoOptions, "rl-replicator video", args)
    trainable = trainables.of_run(chosen.run_dir)
    return trainable.video(chosen.run_dir, chosen.output, chosen.seed) or 0
