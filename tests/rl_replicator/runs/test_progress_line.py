"""A line that cannot be written must not end a run."""

import errno
import io

import pytest

from rl_replicator.runs.progress_line import ProgressLine, RateWindow


class Stream(io.StringIO):
    """A terminal, or a file, that can be written to until `error` is set."""

    error = None

    def __init__(self, is_terminal):
        super().__init__()
        self.isatty = lambda: is_terminal

    def flush(self):
        if self.error is not None:
            raise self.error


@pytest.mark.parametrize("is_terminal", [True, False])
def test_a_line_that_cannot_be_written_is_the_last_one(is_terminal):
    stream = Stream(is_terminal)
    line = ProgressLine(stream)
    line.show("1/9 steps")
    assert "1/9 steps" in stream.getvalue()
    line._next_line = 0.0
    stream.error = OSError(errno.EIO, "cannot be written")
    line.show("2/9 steps")
    before = stream.getvalue()
    line._next_line = 0.0
    assert not line.is_due
    line.show("3/9 steps")
    line.close()
    assert stream.getvalue() == before


@pytest.mark.parametrize(("is_terminal", "expected"), [(True, "\r1/9"), (False, "1/9 steps\n")])
def test_a_line_fits_into_one_row_of_a_terminal(is_terminal, expected, monkeypatch):
    """It also leaves the last column free, because some terminals wrap after it."""
    monkeypatch.setenv("COLUMNS", "4")
    stream = Stream(is_terminal)
    ProgressLine(stream).show("1/9 steps")
    assert stream.getvalue() == expected


def test_a_counter_that_falls_has_no_rate_until_it_exceeds_what_it_was():
    window = RateWindow()
    window.add(10.0, 100, 1000)
    window.add(11.0, 150, 1200)
    assert window.rates() == (50.0, 200.0)
    window.add(12.0, 200, 900)
    assert window.rates() == (50.0, 0.0)
    window.add(14.0, 300, 1400)
    assert window.rates() == (50.0, 100.0)
