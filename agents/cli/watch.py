"""`rl-replicator watch RUN_DIR`."""

import dataclasses
import functools
import http.server
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

SUMMARY = "show the report of a run in the browser while it trains: watch RUN_DIR"

_LOOPBACK = "127.0.0.1"
# Reading and drawing a long run takes a second: no more than a tenth of a core is spent on it.
_SHARE = 10.0


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
    from rl_replicator.errors import UsageError, check_option

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

        refresh: float = 20.0
        """Seconds between updates of the page; more if drawing it takes more than a tenth of it."""

        def __post_init__(self) -> None:
            check_option(self.refresh > 0, "refresh", "more than 0", self.refresh)
            check_option(0 <= self.port < 65536, "port", "from 0 to 65535", self.port)
            size = self.film_megabytes
            check_option(size >= 0, "film_megabytes", "at least 0", size)

    chosen = options.parse(WatchOptions, "rl-replicator watch", args)
    # Imported after the options have been read, so that mistakes are reported immediately.
    from rl_replicator.runs import run_directory

    if not run_directory.runs(chosen.run_dir):
        run_directory.RunDirectory(chosen.run_dir).config()  # Raises if there is no run.
    with tempfile.TemporaryDirectory() as folder:
        seconds = _write(chosen, folder)
        serve = functools.partial(_Handler, directory=folder)
        try:
            server = http.server.ThreadingHTTPServer((_LOOPBACK, chosen.port), serve)
        except OSError as error:
            raise UsageError(
                f"--port: expected a free port, got {chosen.port} ({error.strerror}); choose "
                "another one, or 0 for any"
            ) from None
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            print(f"http://{_LOOPBACK}:{server.server_port}/ (Ctrl-C ends it)", flush=True)
            while True:
                time.sleep(max(chosen.refresh, _SHARE * seconds))
                seconds = _write(chosen, folder)
        except KeyboardInterrupt:
            print()
        finally:
            server.shutdown()
            server.server_close()
    return 0


def _write(chosen: Any, folder: str) -> float:
    """Writes the page; returns how many seconds that took."""
    from agents.reports import page, reading
    from rl_replicator.runs import atomic_file

    started = time.monotonic()
    found = reading.read([chosen.run_dir], chosen.figure)
    with atomic_file.replacing(Path(folder) / "index.html") as new:
        new.write_text(page.render(found, 1e6 * chosen.film_megabytes, chosen.refresh), "utf-8")
    return time.monotonic() - started


class _Handler(http.server.SimpleHTTPRequestHandler):
    """Serves the page to this machine only."""

    def send_head(self) -> Any:
        # A page of another site whose name resolves to this machine would send that name (DNS
        # rebinding). The port may differ: that of a tunnel.
        host = (self.headers.get("Host") or "").partition(":")[0]
        if host.lower() not in (_LOOPBACK, "localhost"):
            return self.send_error(http.HTTPStatus.FORBIDDEN)
        return super().send_head()

    def log_message(self, format: str, *args: Any) -> None:
        """Logs nothing."""
