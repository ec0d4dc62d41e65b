"""The progress line of a run, and the log lines of its waits."""

import io
import logging
import os
import shutil
import threading
import time

import pytest

from agents.nodes.counter import Counter, Episode, Progress, program_folder, restored_counter
from agents.nodes.timing import StoppedError, WaitLog
from agents.runs.results import AgentProgressLine, describe, verdict
from rl_replicator.checkpoints import Checkpointer
from rl_replicator.checkpoints.parts import JsonPart
from rl_replicator.errors import UsageError
from rl_replicator.runs.progress_line import clock
from rl_replicator.runs.run_directory import RunDirectory


def test_a_wait_speaks_every_ten_seconds(caplog):
    stop = threading.Event()
    waiting = WaitLog("actor 3", lambda: "the replay", stop)
    with caplog.at_level(logging.WARNING):
        for second in range(31):
            waiting.tick(second)
        # Another wait begins, with ten seconds of its own; the program is suspended in its middle.
        for second in (*range(8), 90, 91):
            waiting.tick(second)
    assert [record.getMessage() for record in caplog.records] == [
        "actor 3 has waited 10 s for the replay",
        "actor 3 has waited 20 s for the replay",
        "actor 3 has waited 30 s for the replay",
        "actor 3 has waited 10 s for the replay",
    ]
    stop.set()
    with pytest.raises(StoppedError):
        waiting.tick(1.5)


def make_progress(**changes):
    settings = {
        "environment_steps": 25_000,
        "total_steps": 100_000,
        "learner_steps": 6_000,
        "episodes": 25,
        "episode_return": 512.4,
        "evaluation_return": None,
        "evaluation_step": 0,
        "actor_waiting": 0.0,
        "learner_waiting": 0.0,
        "actors_finishing": 0,
        "learner_done": False,
        "wall_time": 60.0,
    }
    return Progress(**(settings | changes))


def test_the_line_says_how_far_how_good_how_fast():
    line = describe(make_progress(), actor_rate=500.0, learner_rate=125.0)
    assert line == (
        "25,000/100,000 steps | ETA 2:30 | return 512 | learner 125/s | actors 500/s | "
        "bottleneck: none, both are busy"
    )
    share = make_progress(episode_return=0.4, evaluation_return=0.45, evaluation_step=20_000)
    assert "| return 0.4 | evaluation 0.45 @20,000 |" in describe(share, 500.0, 125.0)
    assert clock(3725) == "1:02:05" and clock(None) == "-"
    # A continued run has steps, but none of its nodes has taken or reported any yet.
    assert describe(make_progress(), 0.0, 0.0).endswith("| starting")
    # While the replay fills, steps are faster than they will be later.
    filling = describe(make_progress(learner_steps=0, episode_return=None), 3000.0, 0.0)
    assert filling == (
        "25,000/100,000 steps | ETA - | learner 0/s | actors 3000/s | filling the replay"
    )
    stalled = make_progress(learner_waiting=1.0)
    assert describe(stalled, 0.0, 0.0).endswith("actors (actors wait 0%, the learner 100%)")


def test_rates_begin_anew_with_the_first_learner_step(monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    stream = io.StringIO()
    stream.isatty = lambda: True
    line = AgentProgressLine(describe, stream)
    for second, steps, learner_steps in [(0, 0, 0), (1, 4000, 0), (2, 5000, 10), (3, 5200, 210)]:
        clock[0] = second
        line.show(make_progress(environment_steps=steps, learner_steps=learner_steps))
    shown = stream.getvalue().split("\r")
    assert "ETA - |" in shown[2] and "actors 4000/s" in shown[2]
    assert "ETA 7:54 |" in shown[4] and "learner 200/s | actors 200/s" in shown[4]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"environment_steps": 0}, "starting"),
        ({"learner_steps": 0}, "filling the replay"),
        ({"actor_waiting": 0.4}, "bottleneck: learner (actors wait 40%, the learner 0%)"),
        ({"learner_waiting": 0.2}, "bottleneck: actors (actors wait 0%, the learner 20%)"),
        (
            {"actor_waiting": 0.4, "learner_waiting": 0.3},
            "bottleneck: replay (actors wait 40%, the learner 30%)",
        ),
        ({"environment_steps": 100_000}, "last evaluation"),
    ],
)
def test_the_verdict_names_the_side_that_is_waited_for(monkeypatch, changes, expected):
    monkeypatch.setattr(os, "getloadavg", lambda: (1.0, 50.0, 50.0))
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1})
    assert verdict(make_progress(**changes)) == expected


def test_on_a_machine_with_too_much_work_both_wait_for_processors(monkeypatch):
    monkeypatch.setattr(os, "getloadavg", lambda: (6.6, 0.0, 0.0))
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {3, 5})
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    waits = "actors wait 40%, the learner 30%"
    both = make_progress(actor_waiting=0.4, learner_waiting=0.3)
    assert verdict(both) == f"bottleneck: processors (load 7 on 2; {waits})"
    # Other programs may keep the learner busy, too; it is still the side to relieve.
    assert verdict(make_progress(actor_waiting=0.4)).startswith("bottleneck: learner")
    # A machine's load does not tell how busy a subset of its processors is.
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    assert verdict(both) == f"bottleneck: replay ({waits})"


def test_the_counter_grants_exactly_the_steps_of_the_run(tmp_path):
    counter = Counter(tmp_path, total_steps=250, restored=None)
    assert counter.lease(0, 0, 0.0, []) == 100
    assert counter.lease(1, 0, 0.0, []) == 100
    assert counter.lease(0, 100, 0.0, [Episode(0, 7.0, 100)]) == 50
    # Actor 1 was restarted after 30 of its 100 steps: what it did not use is granted again.
    assert counter.lease(1, 30, 0.0, []) == 70
    assert counter.lease(0, 50, 0.0, []) == 0
    assert not counter.progress().steps_done
    assert counter.lease(1, 70, 0.0, []) == 0
    # The steps are done, and the learner ends, once the replay holds the actors' last rows.
    counter.actor_done(1)
    assert not counter.progress().steps_done and counter.progress().actors_finishing == 1
    counter.actor_done(0)
    assert counter.progress().steps_done and counter.progress().environment_steps == 250
    assert counter.progress().episode_return == 7.0

    again = Counter(tmp_path, total_steps=300, restored=counter.snapshot())
    assert again.progress().environment_steps == 250
    assert again.lease(1, 30, 0.0, []) == 20  # Steps of a lease that it does not know.
    assert again.lease(1, 20, 0.0, []) == 0 and again.progress().environment_steps == 300


def test_a_metric_of_an_agent_named_like_another_column_is_refused(tmp_path):
    counter = Counter(tmp_path, total_steps=300, restored=None)
    for name in ("learner_steps", "environment_steps", "wall_time"):
        with pytest.raises(UsageError, match=f"metrics/learner.csv already, got a metric '{name}'"):
            counter.report_learner(7, 0.0, {"loss": 1.0, name: 0.5})


def test_a_counter_that_is_restarted_alone_keeps_the_clock_of_its_program(tmp_path, monkeypatch):
    run = RunDirectory(tmp_path)
    run.describe("d4pg", {}, {})
    progress = {"environment_steps": 50, "wall_time": 600.0}
    Checkpointer(run.checkpoints).save(0, {"progress": JsonPart(lambda: progress, dict)})

    now = [time.time()]
    monkeypatch.setattr(time, "time", lambda: now[0])
    monkeypatch.setattr(time, "monotonic", lambda: now[0])

    def seconds():
        return restored_counter(tmp_path, total_steps=300).progress().wall_time

    assert seconds() == pytest.approx(600.0)  # The clock stops between programs.
    now[0] += 40.0
    assert seconds() == pytest.approx(640.0)
    shutil.rmtree(program_folder(tmp_path))  # As `train` does.
    assert seconds() == pytest.approx(600.0)


def test_a_machine_without_the_run_directory_is_named(tmp_path):
    with pytest.raises(UsageError, match="on every machine, but .* has none; pass a --run-dir"):
        restored_counter(tmp_path, total_steps=300)
