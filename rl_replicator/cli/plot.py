"""`rl-replicator plot RUN_DIR...`."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import tyro

from rl_replicator.cli import options
from rl_replicator.errors import UsageError


@dataclasses.dataclass(frozen=True)
class PlotOptions:
    """Plot evaluation return over environment steps.

    Runs that differ in nothing but the seed become one line, their mean, with a band from the
    lowest to the highest seed.
    """

    run_dirs: Annotated[
        tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="RUN_DIR [RUN_DIR ...]")
    ]
    """Directories of runs."""
    output: Path | None = None
    """The picture, a PNG. Default: return.png in the directory of a single run, otherwise here."""

    def __post_init__(self) -> None:
        if not self.run_dirs:
            raise UsageError("expected at least one RUN_DIR, got none")
        if self.output is not None and self.output.suffix.lower() != ".png":
            raise UsageError(f"--output: expected a name that ends in .png, got {self.output}")


def run(args: Sequence[str]) -> int:
    """Draws the figure and prints its path."""
    chosen = options.parse(PlotOptions, "rl-replicator plot", args)
    # Matplotlib is loaded after the options have been read, so that a mistake is told at once.
    from rl_replicator.runs import plots
    from rl_replicator.runs.run_directory import RunDirectory

    output = chosen.output
    if output is None:
        single = len(chosen.run_dirs) == 1
        output = RunDirectory(chosen.run_dirs[0]).plot if single else Path("return.png")
    try:
        print(plots.plot_returns(chosen.run_dirs, output))
    except OSError as error:
        raise UsageError(f"cannot write the figure to {output}: {error}") from error
    return 0
