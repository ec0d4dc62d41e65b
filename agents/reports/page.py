"""The whole page: the sections, its style and its script."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from importlib import metadata, resources

from agents.reports import details, overview
from agents.reports.markup import Html, element, joined
from agents.reports.reading import Reading

_TITLE = re.compile(r'<section id="([\w-]+)"><header><h2>(.*?)</h2>')
# Nothing may be loaded, but a live page requests itself again.
_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:; "
    "media-src data:; connect-src {connect}"
)


def render(reading: Reading, film_bytes: float, seconds_to_refresh: float | None = None) -> str:
    """Returns the page as HTML that needs no other file.

    Args:
      reading: what was read of the runs; without any, the page shows what was left out.
      film_bytes: size of all films together.
      seconds_to_refresh: seconds between two requests of the page to its server; None for a file.
    """
    sections = _sections(reading, film_bytes)
    body = element(
        "body",
        element("a", "Skip to the content", href="#content", class_="skip"),
        _header(reading, sections, seconds_to_refresh is not None),
        element("main", overview.glance(reading) if reading.runs else None, sections, id="content"),
        element("footer", element("p", _made_by()), id="made-by"),
        element("div", id="tip", role="status", hidden=True),
        element("script", _resource("page.js")),
        data_refresh=None if seconds_to_refresh is None else round(1000 * seconds_to_refresh),
    )
    text = "<!doctype html>\n" + element(
        "html", _head(reading, seconds_to_refresh), body, lang="en"
    )
    # Names of directories may have bytes that are not UTF-8, which would raise an error later.
    return text.encode(errors="replace").decode()


def _sections(reading: Reading, film_bytes: float) -> list[Html]:
    if not reading.runs:
        return [details.list_of_runs(reading)]
    sections = [
        overview.curves(reading),
        overview.table_of_results(reading),
        details.where_time_went(reading),
        details.advised(reading),
        details.faults_survived(reading),
        details.shown_films(reading, film_bytes),
        details.training(reading),
        details.settings(reading),
        details.list_of_runs(reading),
    ]
    return [one for one in sections if one is not None]


def _head(reading: Reading, seconds_to_refresh: float | None) -> Html:
    connect = "'none'" if seconds_to_refresh is None else "'self'"
    return element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", name_="viewport", content="width=device-width, initial-scale=1"),
        element(
            "meta", http_equiv="Content-Security-Policy", content=_POLICY.format(connect=connect)
        ),
        element("meta", name_="color-scheme", content="light dark"),
        element("link", rel="icon", href="data:,"),
        element("title", overview.title(reading)),
        element("style", _resource("page.css")),
    )


def _header(reading: Reading, sections: Sequence[Html], is_live: bool) -> Html:
    links = []
    for one in sections:
        found = _TITLE.match(one)
        assert found is not None
        links.append(element("a", Html(found[2]), href=f"#{found[1]}"))
    read = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(reading.read_at))
    live = element("span", "live", class_="live", id="live") if is_live else None
    return element(
        "header",
        element("h1", overview.title(reading)),
        element("p", joined(overview.subtitle(reading), " · ", element("time", read), live)),
        element("nav", links, aria_label="Sections"),
        class_="page",
        id="head",
    )


def _made_by() -> str:
    try:
        return f"Made by RL-Replicator {metadata.version('rl-replicator')}."
    except metadata.PackageNotFoundError:
        return "Made by RL-Replicator."


def _resource(name: str) -> Html:
    return Html(resources.files("agents.reports").joinpath(name).read_text("utf-8"))
