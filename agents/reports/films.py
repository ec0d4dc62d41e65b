"""Films and images of runs, as parts of a page, up to a number of bytes."""

from __future__ import annotations

import base64
import dataclasses
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path

from agents.reports import figures
from agents.reports.markup import Html, element
from agents.reports.reading import ReportedRun

_KINDS = {".mp4": "video/mp4", ".gif": "image/gif", ".png": "image/png"}
_FOLDER = "films"
# Folders of a run that hold no images of what it learned.
_OTHER_FOLDERS = ("best", "checkpoints", "metrics", "tensorboard", _FOLDER)


@dataclasses.dataclass(frozen=True)
class Picture:
    """A film or an image of a run.

    Attributes:
      path: its file.
      size: bytes of the file.
      caption: what it shows.
    """

    path: Path
    size: int
    caption: str


@dataclasses.dataclass(frozen=True)
class Selection:
    """The films that a page holds.

    Attributes:
      shown: those that fit.
      left_out: those that do not.
    """

    shown: Sequence[Picture]
    left_out: Sequence[Picture]


def select(runs: Sequence[ReportedRun], most_bytes: float) -> Selection:
    """Chooses films: the newest of each run in turn, as long as they fit.

    Args:
      runs: the runs of the report.
      most_bytes: size of all chosen files together.
    """
    queues = [list(_pictures(run)) for run in runs]
    shown, left_out, free = [], [], most_bytes
    for rank in range(max(map(len, queues), default=0)):
        for queue in queues:
            if rank < len(queue):
                picture = queue[rank]
                if picture.size <= free:
                    shown.append(picture)
                    free -= picture.size
                else:
                    left_out.append(picture)
    order = {picture.path: i for i, picture in enumerate(p for queue in queues for p in queue)}
    return Selection(
        sorted(shown, key=lambda p: order[p.path]), sorted(left_out, key=lambda p: order[p.path])
    )


def embedded(picture: Picture) -> Html:
    """Returns a film or an image with its file's content.

    Raises:
      OSError: if the file cannot be read.
    """
    content = base64.b64encode(picture.path.read_bytes()).decode()
    kind = _KINDS[picture.path.suffix]
    source = f"data:{kind};base64,{content}"
    if kind.startswith("video/"):
        shown = element(
            "video",
            src=f"{source}#t=0.01",  # Browsers show the frame of that time, not a black one.
            controls=True,
            muted=True,
            loop=True,
            playsinline=True,
            preload="metadata",
            aria_label=picture.caption,
        )
    else:
        shown = element("img", src=source, alt=picture.caption)
    caption = element("figcaption", picture.caption, " ", element("small", _size(picture)))
    return element("figure", shown, caption, class_="film")


def describe(picture: Picture) -> str:
    """Returns the path of a film and its size."""
    return f"{picture.path} ({_size(picture)})"


def _size(picture: Picture) -> str:
    return figures.size(picture.size)


def _pictures(run: ReportedRun) -> Iterator[Picture]:
    """Yields the films and images of a run, the most telling one first."""
    for suffix in (".mp4", ".gif"):
        yield from _picture(run, run.path / f"evaluation{suffix}", "newest policy")
    films = (run.path / _FOLDER).glob("[!.]*.mp4")  # Those that begin with "." are being made.
    for path in sorted(films, key=_age, reverse=True):
        yield from _picture(run, path, _steps(path))
    newest: dict[str, Path] = {}
    for path in sorted(run.path.glob("*/*.png"), key=_age):  # Images of a learner.
        if path.parent.name not in _OTHER_FOLDERS:
            newest[path.parent.name] = path
    for kind, path in newest.items():
        yield from _picture(run, path, f"{kind}, {_steps(path)}")


def _age(path: Path) -> tuple[int, str]:
    """Returns the sort key of a file: the steps in its name, whose numbers of digits may differ."""
    return (int(path.stem) if path.stem.isdecimal() else 0, path.name)


def _steps(path: Path) -> str:
    """Returns the steps in the name of a file; its whole name if it has none."""
    return f"{int(path.stem):,} steps" if path.stem.isdecimal() else path.stem


def _picture(run: ReportedRun, path: Path, about: str) -> Iterator[Picture]:
    """Yields a picture if its file exists, and is not still empty."""
    try:
        found = path.stat()
    except OSError:
        return
    if stat.S_ISREG(found.st_mode) and found.st_size:
        yield Picture(path, found.st_size, f"{run.name}: {about}")
