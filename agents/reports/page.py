"""The page on runs, as HTML that needs no other file: films and images are parts of it."""

from __future__ import annotations

import base64
import dataclasses
import time
from collections.abc import Iterator, Sequence
from importlib import metadata
from pathlib import Path

import jinja2

from agents.reports import contents
from agents.reports.reading import Reading, ReportedRun

_KINDS = {".mp4": "video/mp4", ".gif": "image/gif", ".png": "image/png"}
_FILMS = "films"
# Folders of a run that hold no images of what it learned.
_OTHER_FOLDERS = ("best", "checkpoints", "metrics", "tensorboard", _FILMS)


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
        pictures=_select(reading.runs, film_bytes),
        film_size=_size_of(film_bytes),
        read_at=time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(reading.read_at)),
        version=metadata.version("rl-replicator"),
        seconds_to_refresh=seconds_to_refresh,
    )
    # Names of directories may have bytes that are not UTF-8, which would raise an error later.
    return text.lstrip().encode(errors="replace").decode()


@dataclasses.dataclass(frozen=True)
class _Pictures:
    """The films and images of a page.

    Attributes:
      shown: caption, size and `data:` URL of each.
      left_out: what does not fit, or cannot be read.
    """

    shown: Sequence[tuple[str, str, str]]
    left_out: Sequence[str]


def _select(runs: Sequence[ReportedRun], most_bytes: float) -> _Pictures:
    """Chooses films: the newest of each run in turn, as long as they fit.

    Args:
      runs: the runs of the report.
      most_bytes: size of all chosen files together.
    """
    ranked = [
        (rank, place, path, f"{run.name}: {about}")
        for place, run in enumerate(runs)
        for rank, (path, about) in enumerate(_pictures(run.path))
    ]
    shown, left_out, free = [], [], most_bytes
    for rank, place, path, caption in sorted(ranked, key=lambda one: one[:2]):
        try:
            content = path.read_bytes()
        except OSError as error:  # It is another user's, or has been removed.
            left_out.append(f"{path}: {error.strerror}")
            continue
        size = _size_of(len(content))
        if len(content) > free:
            left_out.append(f"{path} ({size})")
        elif content:  # It is not still being made.
            free -= len(content)
            encoded = base64.b64encode(content).decode()
            url = f"data:{_KINDS[path.suffix]};base64,{encoded}"
            shown.append(((place, rank), (caption, size, url)))
    return _Pictures([one for _, one in sorted(shown)], left_out)


def _size_of(count: float) -> str:
    return f"{count / 1e6:.1f} MB" if count >= 1e5 else f"{count / 1e3:.0f} kB"


def _pictures(run: Path) -> Iterator[tuple[Path, str]]:
    """Yields the films and images of a run with their captions, the most telling one first."""
    for suffix in (".mp4", ".gif"):
        path = run / f"evaluation{suffix}"
        if path.is_file():
            yield path, "newest policy"
    films = (run / _FILMS).glob("[!.]*.mp4")  # Those that begin with "." are being made.
    for path in sorted(films, key=_age, reverse=True):
        yield path, _steps(path)
    newest: dict[str, Path] = {}
    for path in sorted(run.glob("*/*.png"), key=_age):  # Images of a learner.
        if path.parent.name not in _OTHER_FOLDERS:
            newest[path.parent.name] = path
    for kind, path in newest.items():
        yield path, f"{kind}, {_steps(path)}"


def _age(path: Path) -> tuple[int, str]:
    """Returns the sort key of a file: the steps in its name, whose numbers of digits may differ."""
    return (int(path.stem) if path.stem.isdecimal() else 0, path.name)


def _steps(path: Path) -> str:
    """Returns the steps in the name of a file; its whole name if it has none."""
    return f"{int(path.stem):,} steps" if path.stem.isdecimal() else path.stem
