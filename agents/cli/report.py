"""`rl-replicator report RUN_DIR... --out FILE`."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

SUMMARY = "write a report on runs as one HTML file: report RUN_DIR... --out report.html"


def run(args: Sequence[str]) -> int:
    """Writes the report and prints its path.

    Args:
      args: the words after `report`.

    Returns:
      Exit status 0.

    Raises:
      UsageError: if an option is wrong, no run can be read, or the file cannot be written.
    """
    # Imported here because `rl-replicator --help` imports this module for its summary.
    from rl_replicator.cli import options
    from rl_replicator.errors import cannot_write, check_option

    @dataclasses.dataclass(frozen=True)
    class ReportOptions:
        """Write curves, results, films, time, settings and advice of runs into one HTML file.

        Runs that differ only in their seed are averaged. A folder of runs, such as that of a
        suite or a sweep, includes all its runs. The file can be read offline.
        """

        run_dirs: options.RunDirs
        """Directories of runs, or folders of runs."""
        out: Path = Path("report.html")
        """The file to write."""
        figure: str | None = None
        """The evaluation figure to plot, such as top_1. Default: the score of the runs."""
        film_megabytes: float = 16.0
        """Megabytes of films in the file; the newest film of each run comes first."""

        def __post_init__(self) -> None:
            check_option(bool(self.run_dirs), "RUN_DIR", "at least one", "none")
            check_option(
                self.film_megabytes >= 0, "film_megabytes", "at least 0", self.film_megabytes
            )
            suffix = self.out.suffix.lower()
            check_option(suffix in (".html", ".htm"), "out", "a name that ends in .html", self.out)

    chosen = options.parse(ReportOptions, "rl-replicator report", args)
    # Imported after the options have been read, so that mistakes are reported immediately.
    from agents.reports import page, reading
    from rl_replicator.runs import atomic_file, selection

    found = reading.read(chosen.run_dirs, chosen.figure)
    if not found.runs:
        raise selection.none_left(found.left_out)
    text = page.render(found, 1e6 * chosen.film_megabytes)
    try:
        with atomic_file.replacing(chosen.out) as new:
            new.write_text(text, "utf-8")
    except OSError as error:
        raise cannot_write(f"cannot write the report to {chosen.out}: {error}", error) from error
    for one in found.left_out:
        print(f"left out {one}")
    print(chosen.out)
    return 0
