"""The report of runs while they train, served to browsers on this machine."""

from __future__ import annotations

import hashlib
import http.server
import socketserver
import sys
import threading
import time
from collections.abc import Sequence
from http import HTTPStatus
from pathlib import Path
from typing import Any

from agents.reports import page, reading
from rl_replicator.errors import UsageError
from rl_replicator.runs import selection

_LOOPBACK = "127.0.0.1"
_SECONDS_TO_REFRESH = 2.0
# "Written 2 min ago" must be updated even while nothing is written.
_SECONDS_TO_RENDER_ANEW = 20.0
# The metrics of a long run take a second to read, and they change all the time: no more than a
# tenth of a core is spent on the page.
_RENDER_SHARE = 10.0
# Timeout for a client that sends no request, or does not read the answer.
_SECONDS_TO_ANSWER = 30.0
_HEADERS = {
    "Content-Type": "text/html; charset=utf-8",
    "Cache-Control": "no-store",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
# Files of a run that change what the page shows.
_PATTERNS = ("config.json", "events.csv", "metrics/*.csv", "evaluation.*", "films/*", "*/*.png")


class LivePage:
    """The page of runs, rendered again when their files have changed. Threads may share it.

    A page that takes long to render is rendered less often.
    """

    def __init__(self, paths: Sequence[Path], figure: str | None, film_bytes: float):
        """Reads nothing yet.

        Args:
          paths: directories of runs or suites.
          figure: the figure of the evaluations to draw; None for the first one.
          film_bytes: size of all films together.
        """
        self._paths = list(paths)
        self._figure = figure
        self._film_bytes = film_bytes
        self._lock = threading.Lock()
        self._signature: Any = None
        self._next_render = 0.0
        self._content = b""
        self._tag = ""

    def get(self) -> tuple[bytes, str]:
        """Returns the newest page, and its entity tag."""
        with self._lock:
            started = time.monotonic()
            if started < self._next_render:
                return self._content, self._tag
            signature = (self._state(), int(started / _SECONDS_TO_RENDER_ANEW))
            if signature != self._signature:
                found = reading.read(self._paths, self._figure)
                text = page.render(found, self._film_bytes, _SECONDS_TO_REFRESH)
                self._content = text.encode()
                self._tag = f'"{hashlib.sha256(self._content).hexdigest()[:32]}"'
                self._signature = signature
                ended = time.monotonic()
                self._next_render = ended + _RENDER_SHARE * (ended - started)
            return self._content, self._tag

    def _state(self) -> tuple:
        files = [
            path
            for run in selection.expanded(self._paths)
            for pattern in _PATTERNS
            for path in sorted(run.glob(pattern))
        ]
        return tuple((path, *_stamp(path)) for path in files)


def _stamp(path: Path) -> tuple[int, int]:
    try:
        state = path.stat()
    except OSError:  # It is being replaced.
        return 0, 0
    return state.st_mtime_ns, state.st_size


class LiveServer(socketserver.ThreadingTCPServer):
    """Serves one page at `/`, to this machine only, and nothing else."""

    allow_reuse_address = True
    daemon_threads = True

    def __init__(self, live: LivePage, port: int):
        """Binds the port.

        Args:
          live: the page.
          port: on the loopback interface; 0 for any free one.

        Raises:
          UsageError: if the port is taken.
        """
        self.live = live
        try:
            super().__init__((_LOOPBACK, port), _Handler)
        except OSError as error:
            raise UsageError(
                f"--port: expected a free port, got {port} ({error.strerror}); choose another one, "
                "or 0 for any"
            ) from None

    @property
    def port(self) -> int:
        """The bound port."""
        return int(self.server_address[1])

    @property
    def url(self) -> str:
        """Address of the page."""
        return f"http://{_LOOPBACK}:{self.port}/"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignores clients that have disconnected; reports other errors as usual."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)


class _Handler(http.server.BaseHTTPRequestHandler):
    server: LiveServer
    timeout = _SECONDS_TO_ANSWER

    def do_GET(self) -> None:
        # A page of another site whose name resolves to this machine would send that name (DNS
        # rebinding). The port may differ: that of a tunnel.
        host = (self.headers.get("Host") or "").partition(":")[0]
        if host.lower() not in (_LOOPBACK, "localhost"):
            return self._answer(HTTPStatus.FORBIDDEN, b"expected the address of this machine\n")
        if self.path.partition("?")[0] != "/":
            return self._answer(HTTPStatus.NOT_FOUND, b"there is one page, at /\n")
        content, tag = self.server.live.get()
        if self.headers.get("If-None-Match") == tag:
            return self._answer(HTTPStatus.NOT_MODIFIED, b"", tag)
        return self._answer(HTTPStatus.OK, content, tag)

    def do_HEAD(self) -> None:
        self.do_GET()

    def _answer(self, status: HTTPStatus, content: bytes, tag: str | None = None) -> None:
        self.send_response(status)
        for name, value in _HEADERS.items():
            self.send_header(name, value)
        if tag is not None:
            self.send_header("ETag", tag)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        """Logs nothing: the page sends a request every two seconds."""
