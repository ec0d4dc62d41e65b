"""The page on runs, as HTML that needs no other file."""

from __future__ import annotations

import time
from importlib import metadata

import jinja2

from agents.reports import contents, films
from agents.reports.reading import Reading


def render(reading: Reading, film_bytes: float, seconds_to_refresh: float | None = None) -> str:
    """Returns the page.

    Args:
      reading: what was read of the runs; without any, the page shows what was left out.
      film_bytes: size of all films together.
      seconds_to_refresh: seconds after which a browser asks for the page again; None for a file.
    """
    loader = jinja2.PackageLoader("agents.reports", "")
    environment = jinja2.Environment(
        loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    text = environment.get_template("page.html").render(
        reading=reading,
        contents=contents,
        pictures=films.select(reading.runs, film_bytes),
        size=films.size_of,
        film_bytes=film_bytes,
        read_at=time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(reading.read_at)),
        version=metadata.version("rl-replicator"),
        seconds_to_refresh=seconds_to_refresh,
    )
    # Names of directories may have bytes that are not UTF-8, which would raise an error later.
    return text.lstrip().encode(errors="replace").decode()
