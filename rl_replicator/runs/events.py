"""The events of a run: its starts and ends, and nodes that failed and were restarted.

`RUN_DIR/events.csv` has one row for each event, in chronological order.
"""

import contextlib
import csv
import dataclasses
import datetime
import io
import os
from pathlib import Path

_FILE = "events.csv"
_COLUMNS = ("time", "node", "event", "detail")
# Maximum number of characters of a detail, such as the error that ended a run.
_LONGEST = 2000

# The node of events that concern the whole run.
RUN = "run"
STARTED, CONTINUED = "started", "continued"
STOPPED, FINISHED, FAILED = "stopped", "finished", "failed"
_STARTS_AND_ENDS = (STARTED, CONTINUED, STOPPED, FINISHED, FAILED)
RESTARTED = "restarted"


@dataclasses.dataclass(frozen=True)
class Event:
    """Something that has happened to a run.

    Attributes:
      time: the time in UTC, as in 2025-01-31T12:00:00Z.
      node: name of the node, or `RUN`.
      event: such as `RESTARTED`.
      detail: more about it, one line; may be empty.
    """

    time: str
    node: str
    event: str
    detail: str


def record(run_dir: Path, node: str, event: str, detail: str = "") -> None:
    """Adds an event. If the disk is full or gone, the event is lost, but the run continues.

    Args:
      run_dir: the run's directory.
      node: name of the node, or `RUN`.
      event: what happened to it.
      detail: more about it; lines are joined, and a long text is truncated.
    """
    time = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    with contextlib.suppress(OSError):
        file = os.open(run_dir / _FILE, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            size = os.fstat(file).st_size
            if size == 0:
                writer.writerow(_COLUMNS)
            elif os.pread(file, 1, size - 1) != b"\n":  # A full disk has truncated the last row.
                text.write("\n")
            writer.writerow([time, node, event, " ".join(detail.split())[:_LONGEST]])
            # A single write, so that concurrent processes do not interleave their rows.
            os.write(file, text.getvalue().encode())
        finally:
            os.close(file)


def read(run_dir: Path) -> list[Event]:
    """Returns the events of a run, the oldest first; truncated rows are left out."""
    try:
        text = (run_dir / _FILE).read_bytes().decode("utf-8", "replace")
    except OSError:
        return []
    complete = text[: text.rfind("\n") + 1].replace("\0", "")
    # Line by line, because a truncated row may lack its closing quotation mark.
    rows = [next(csv.reader([line]), []) for line in complete.split("\n")]
    return [Event(*row) for row in rows[1:] if len(row) == len(_COLUMNS)]


def is_finished(found: list[Event]) -> bool:
    """Returns whether a run has reached its end, and has not been continued since.

    Args:
      found: the result of `read`.
    """
    told = [one.event for one in found if one.node == RUN and one.event in _STARTS_AND_ENDS]
    return told[-1:] == [FINISHED]


def faults(found: list[Event]) -> list[Event]:
    """Returns the events that indicate a fault that the run has survived.

    These are restarts of nodes, and continuations after an end that the run did not record (its
    process was killed, or the machine was lost) or that was a failure.

    Args:
      found: the result of `read`.
    """
    survived = []
    before: str | None = None
    for event in found:
        is_unannounced = event.event == CONTINUED and before in (STARTED, CONTINUED, FAILED)
        if event.event == RESTARTED or is_unannounced:
            survived.append(event)
        if event.node == RUN and event.event in _STARTS_AND_ENDS:
            before = event.event
    return survived
