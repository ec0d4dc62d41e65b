"""`rl-replicator video RUN_DIR`."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

SUMMARY = "record a video of an evaluation episode: video RUN_DIR"


def run(args: Sequence[str]) -> int:
    """Films an episode with the newest checkpoint of a run; the same as `play` with `--out`.

    Args:
      args: the words after `video`.

    Returns:
      Exit status 0.

    Raises:
      UsageError: if an option is wrong, or there is no run of an agent in the directory.
    """
    # Imported here because `rl-replicator --help` imports this module for its summary.
    import tyro

    from agents.cli import play
    from rl_replicator.cli import options
    from rl_replicator.runs.run_directory import RunDirectory

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
    RunDirectory(chosen.run_dir).config()  # Raises if there is no run, before a folder is made.
    out = chosen.out or chosen.run_dir / "evaluation.mp4"
    return play.run([str(chosen.run_dir), "--out", str(out), "--seed", str(chosen.seed)])
