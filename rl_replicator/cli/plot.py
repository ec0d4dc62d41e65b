"""`rl-replicator plot RUN_DIR...`."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from rl_replicator.cli import options
from rl_replicator.errors import UsageError, cannot_write


@dataclasses.dataclass(frozen=True)
class PlotOptions:
    """Plot the evaluations of runs over their steps.

    Runs that differ only in their seed become one line, their mean, with a band from the lowest to
    the highest seed. A folder of runs, such as that of a suite or a sweep, includes all its runs.
    A run that cannot be read is left out.
    """

    run_dirs: options.RunDirs
    """Directories of runs, or folders of runs."""
    figure: str | None = None
    """The figure of the evaluations to plot, such as top_1. Default: the score of the runs."""
    out: Path | None = None
    """The image, a PNG. Default: evaluation.png, in the directory of a single run, otherwise in the
    working directory."""

    def __post_init__(self) -> None:
        if not self.run_dirs:
            raise UsageError("expected at least one RUN_DIR, got none")
        if self.out is not None and self.out.suffix.lower() != ".png":
            raise UsageError(f"--out: expected a name that ends in .png, got {self.out}")


def run(args: Sequence[str]) -> int:
    """Draws the plot and prints its path.

    Args:
      args: the words after `plot`.

    Returns:
      Exit status 0.

    Raises:
      UsageError: if an option is wrong, no run can be read, or the image cannot be written.
    """
    chosen = options.parse(PlotOptions, "rl-replicator plot", args)
    # Imported after the options are parsed, so that mistakes are reported immediately.
    from rl_replicator.runs import plots, selection
    from rl_replicator.runs.run_directory import RunDirectory

    runs = selection.evaluated(chosen.run_dirs, chosen.figure)
    output = chosen.out
    if output is None:
        paths = selection.expanded(chosen.run_dirs)
        output = RunDirectory(paths[0]).plot if len(paths) == 1 else Path("evaluation.png")
    try:
        print(plots.plot(runs, output))
    except OSError as error:
        raise cannot_write(f"cannot write the plot to {output}: {error}", error) from error
    return 0
