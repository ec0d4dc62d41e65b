"""`rl-replicator watch RUN_DIR`."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

SUMMARY = "show the report of a run in the browser while it trains: watch RUN_DIR"


def run(args: Sequence[str]) -> int:
    """Serves the page until Ctrl-C.

    Args:
      args: the words after `watch`.

    Returns:
      Exit status 0.

    Raises:
      UsageError: if an option is wrong, there is no run, or the port is taken.
    """
    # Imported here because `rl-replicator --help` imports this module for its summary.
    import tyro

    from rl_replicator.cli import options
    from rl_replicator.errors import check_option

    @dataclasses.dataclass(frozen=True)
    class WatchOptions:
        """Show the report of a run in the browser, and update it while the run trains.

        The page is served only to this machine. Ctrl-C ends the command; the run goes on.
        """

        run_dir: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN_DIR")]
        """Directory of a run, or of a suite."""
        port: int = 8642
        """Port on 127.0.0.1; 0 picks any free port."""
        figure: str | None = None
        """The evaluation figure to plot, such as top_1. Default: the score of the runs."""
        film_megabytes: float = 4.0
        """Megabytes of films on the page; the newest film of each run comes first."""

        def __post_init__(self) -> None:
            check_option(0 <= self.port < 65536, "port", "from 0 to 65535", self.port)
            size = self.film_megabytes
            check_option(size >= 0, "film_megabytes", "at least 0", size)

    chosen = options.parse(WatchOptions, "rl-replicator watch", args)
    # Imported after the options have been read, so that mistakes are reported immediately.
    from agents.reports.live import LivePage, LiveServer
    from rl_replicator.runs import run_directory

    if not run_directory.runs(chosen.run_dir):
        run_directory.RunDirectory(chosen.run_dir).config()  # Raises if there is no run.
    page = LivePage([chosen.run_dir], chosen.figure, 1e6 * chosen.film_megabytes)
    try:
        with LiveServer(page, chosen.port) as server:
            print(f"{server.url} (Ctrl-C ends it)", flush=True)
            server.serve_forever(poll_interval=0.1)
    except KeyboardInterrupt:
        print()
    return 0
