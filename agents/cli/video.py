"""`rl-replicator video RUN_DIR`."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

SUMMARY = "record a video of an evaluation episode: video RUN_DIR"


def run(args: Sequence[str]) -> int:
    """Films an episode with the newest checkpoint of a run.

    Args:
      args: the words after `video`.

    Returns:
      The exit status.

    Raises:
      UsageError: if an option is wrong, or there is no run of an agent in the directory.
    """
    # Imported here because `rl-replicator --help` imports this module for its summary.
    import tyro

    from rl_replicator.cli import options, trainables
    from rl_replicator.errors import UsageError

    @dataclasses.dataclass(frozen=True)
    class VideoOptions:
        """Film an evaluation episode with the newest checkpoint of a run."""

        run_dir: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN_DIR")]
        """Directory of the run."""
        out: Path | None = None
        """The video, .mp4 or .gif. Default: evaluation.mp4 in the run's directory."""
        seed: int = 1000
        """Seed of the environment."""

    chosen = options.parse(VideoOptions, "rl-replicator video", args)
    trainable: Any = trainables.of_run(chosen.run_dir)
    if not hasattr(trainable, "video"):
        raise UsageError(
            f"expected a run of an agent, got {chosen.run_dir}, which trains a learner without "
            "episodes; see its plots and images instead"
        )
    return trainable.video(chosen.run_dir, chosen.out, chosen.seed) or 0
