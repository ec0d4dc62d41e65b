"""`rl-replicator compare RUN_DIR...`."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from rl_replicator.cli import options
from rl_replicator.errors import UsageError, cannot_write


@dataclasses.dataclass(frozen=True)
class CompareOptions:
    """Compare the runs of several configs: curves, settings that differ, and which one is better.

    Runs that differ only in task and seed belong to one config. A folder of runs, such as that of a
    suite or a sweep, includes all its runs. A run that cannot be read is left out.
    """

    run_dirs: options.RunDirs
    """Directories of runs, or folders of runs."""
    figure: str | None = None
    """The evaluation figure to compare, such as top_1. Default: the score of the runs."""
    out: Path = Path("comparison.png")
    """The image of the curves, a PNG."""

    def __post_init__(self) -> None:
        if not self.run_dirs:
            raise UsageError("expected at least two RUN_DIRs, got none")
        if self.out.suffix.lower() != ".png":
            raise UsageError(f"--out: expected a name that ends in .png, got {self.out}")


def run(args: Sequence[str]) -> int:
    """Prints the comparison and draws the curves.

    Args:
      args: the words after `compare`.

    Returns:
      Exit status 0.

    Raises:
      UsageError: if an option is wrong, no run can be read, there is nothing to compare, or
        the image cannot be written.
    """
    chosen = options.parse(CompareOptions, "rl-replicator compare", args)
    # Imported after the options are parsed, so that mistakes are reported immediately.
    from rl_replicator.runs import comparison, selection

    compared = comparison.configs(selection.evaluated(chosen.run_dirs, chosen.figure))
    print(comparison.report(compared, comparison.pairs(compared)))
    try:
        comparison.draw(compared, chosen.out)
    except OSError as error:
        raise cannot_write(f"cannot write the plot to {chosen.out}: {error}", error) from error
    print(f"\n{chosen.out}")
    return 0
