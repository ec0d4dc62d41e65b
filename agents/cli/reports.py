"""The commands that show runs: `report`, `watch` and `replay`."""

import dataclasses
import functools
import http.server
import json
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rl_replicator.cli import options
from rl_replicator.errors import UsageError, cannot_write, check_option
from rl_replicator.runs import atomic_file, run_directory

_LOOPBACK = "127.0.0.1"
# Reading and drawing a long run takes a second: no more than a tenth of a core is spent on it.
_SHARE = 10.0


@dataclasses.dataclass(frozen=True)
class ReportOptions:
    """Write curves, results, films, time, settings and advice of runs into one HTML file.

    Runs that differ only in their seed are averaged. A folder of runs, such as that of a suite or a
    sweep, includes all its runs. The file can be read offline.
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
        if not self.run_dirs:
            raise UsageError("expected at least one RUN_DIR, got none")
        check_option(self.film_megabytes >= 0, "film_megabytes", "at least 0", self.film_megabytes)
        suffix = self.out.suffix.lower()
        check_option(suffix in (".html", ".htm"), "out", "a name that ends in .html", self.out)


def report(args: Sequence[str]) -> int:
    """Writes a report on runs as one HTML file: report RUN_DIR... --out report.html"""
    chosen = options.parse(ReportOptions, "rl-replicator report", args)
    # Imported after the options have been read, so that mistakes are reported immediately.
    from agents.reports import page, reading
    from rl_replicator.runs import evaluations

    found = reading.read(chosen.run_dirs, chosen.figure)
    if not found.runs:
        raise evaluations.none_left(found.left_out)
    text = page.render(found, 1e6 * chosen.film_megabytes)
    try:
        with atomic_file.replacing(chosen.out) as new:
            new.write_text(text, "utf-8")
    except OSError as error:
        raise cannot_write(f"cannot write the report to {chosen.out}: {error}", error) from error
    for path, reason in found.left_out.items():
        print(f"left out {path}: {reason}")
    print(chosen.out)
    return 0


@dataclasses.dataclass(frozen=True)
class WatchOptions:
    """Show the report of a run in the browser, and update it while the run trains.

    The page is served only to this machine. Ctrl-C ends the command; the run goes on.
    """

    run_dir: options.RunDir
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
        check_option(self.film_megabytes >= 0, "film_megabytes", "at least 0", self.film_megabytes)


def watch(args: Sequence[str]) -> int:
    """Shows the report of a run in the browser while it trains: watch RUN_DIR"""
    chosen = options.parse(WatchOptions, "rl-replicator watch", args)
    if not run_directory.runs(chosen.run_dir):
        run_directory.RunDirectory(chosen.run_dir).config()  # Raises if there is no run.
    with tempfile.TemporaryDirectory() as folder:
        _write(chosen, folder)
        seconds = 0.0  # The first drawing also imports.
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


def _write(chosen: WatchOptions, folder: str) -> float:
    """Writes the page; returns how many seconds that took."""
    from agents.reports import page, reading

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


@dataclasses.dataclass(frozen=True)
class ReplayOptions:
    """Describe the replay in a run's newest checkpoint: size, ages, priorities."""

    run_dir: options.RunDir
    """Directory of the run."""
    json: bool = False
    """Print the figures as JSON."""


def replay(args: Sequence[str]) -> int:
    """Describes the contents of a run's replay: replay RUN_DIR"""
    chosen = options.parse(ReplayOptions, "rl-replicator replay", args)
    from agents.runs import replay_figures

    figures = replay_figures.read(chosen.run_dir)
    if chosen.json:
        print(json.dumps(figures, indent=2))
    else:
        print(*replay_figures.lines(figures), sep="\n")
    return 0
