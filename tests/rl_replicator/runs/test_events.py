"""Events of a run, written by several processes and read while they write."""

import os

import pytest

from rl_replicator.runs import events
from rl_replicator.runs import run as run_lib
from rl_replicator.runs.run_directory import RunDirectory


def test_events_are_read_as_they_were_recorded(tmp_path):
    assert events.read(tmp_path) == []
    events.record(tmp_path, events.RUN, events.STARTED)
    events.record(tmp_path, "actor/0", events.RESTARTED, 'OSError: a "long",\nbroken  text')
    first, second = events.read(tmp_path)
    assert (first.node, first.event, first.detail) == ("run", "started", "")
    assert (second.node, second.detail) == ("actor/0", 'OSError: a "long", broken text')
    assert len(second.time) == 20 and second.time.endswith("Z")
    with (tmp_path / "events.csv").open("a") as file:
        file.write("2025-01-01T00:00:00Z,run,fin")  # Cut off.
    assert events.read(tmp_path) == [first, second]


def test_a_start_tells_the_length_that_was_asked_for(tmp_path):
    directory = RunDirectory(tmp_path / "run")
    with run_lib.opened(directory, "learner", {}, run_lib.SILENT) as run:
        run.begin({"steps": None, "epochs": 3, "run_dir": "run"}, None)
    assert [event.detail for event in events.read(directory.path)] == ["--epochs 3"]


def test_a_long_detail_is_cut(tmp_path):
    events.record(tmp_path, events.RUN, events.FAILED, "ValueError: " + "0.125, " * 20_000)
    (failed,) = events.read(tmp_path)
    assert failed.detail.startswith("ValueError: 0.125, 0.125") and len(failed.detail) == 2000


@pytest.mark.parametrize("cut", range(1, 50, 3))
def test_an_event_that_was_cut_off_does_not_harm_the_next_ones(tmp_path, cut):
    """A full disk takes only the first bytes of an event; later, there is space again."""
    events.record(tmp_path, events.RUN, events.STARTED)
    path = tmp_path / "events.csv"
    size = path.stat().st_size
    events.record(tmp_path, events.RUN, events.FAILED, 'no space, "left"')
    os.truncate(path, size + cut)
    events.record(tmp_path, events.RUN, events.CONTINUED)
    events.record(tmp_path, events.RUN, events.FINISHED)
    found = [event.event for event in events.read(tmp_path) if event.event != events.FAILED]
    assert found == [events.STARTED, events.CONTINUED, events.FINISHED]


def test_a_disk_that_is_gone_is_no_error(tmp_path):
    events.record(tmp_path / "none", events.RUN, events.STARTED)
    assert events.read(tmp_path / "none") == []


def test_the_end_is_lacking_until_the_last_start_has_one(tmp_path):
    told = [
        ("run", events.STARTED, True),
        ("run", events.FINISHED, False),
        ("actor/0", events.RESTARTED, False),
        ("run", events.CONTINUED, True),
        ("run", events.STOPPED, True),
        ("run", events.CONTINUED, True),
        ("run", events.FINISHED, False),
    ]
    for node, event, is_lacking in told:
        events.record(tmp_path, node, event)
        found = events.read(tmp_path)
        assert events.is_finished(found) != is_lacking


def test_faults_are_restarts_and_unannounced_ends(tmp_path):
    told = [
        ("run", "started"),
        ("run", "stopped"),
        ("run", "continued"),  # As the user wished.
        ("actor/1", "restarted"),  # A fault.
        ("run", "continued"),  # A fault: the run was killed.
        ("run", "failed"),
        ("run", "continued"),  # A fault.
        ("run", "finished"),
        ("run", "continued"),
        ("run", "scaled"),
        ("run", "continued"),  # A fault: the run was killed after its actors were scaled.
        ("run", "stopped"),
        ("run", "scaled"),
        ("run", "continued"),
    ]
    for node, event in told:
        events.record(tmp_path, node, event)
    found = events.read(tmp_path)
    assert events.faults(found) == [found[3], found[4], found[6], found[10]]
