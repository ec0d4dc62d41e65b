"""A run's number of actors is changed while it trains, and remembered afterwards."""

import errno
import json
import os
import threading
import time

import pytest

import launchpad as lp
from agents import d4pg
from agents.d4pg import D4PGConfig
from agents.nodes.counter import Counter
from agents.nodes.run_plan import EvaluationSchedule
from agents.replay.config import ReplayConfig
from agents.runs import scaling, training
from agents.runs.options import AgentOptions
from rl_replicator.checkpoints import Checkpointer
from rl_replicator.cli import train
from rl_replicator.errors import DiskError, UsageError
from rl_replicator.runs import actor_count, events
from rl_replicator.runs.metrics import read_metrics
from rl_replicator.runs.run_directory import RunDirectory

SMALL = D4PGConfig(
    policy_layers=(8,),
    critic_layers=(8,),
    global_batch_size=8,
    steps_per_call=4,
    replay=ReplayConfig(min_size=100, samples_per_insert=8.0),
)
STEPS = 2500


def options(run_dir, **changes):
    settings = {
        "env": "environments.fakes:target",
        "steps": STEPS,
        "run_dir": run_dir,
        "agent": SMALL,
        "video": False,
        "evaluation": EvaluationSchedule(every=10**6, episodes=1, last_episodes=1),
    }
    return AgentOptions(**(settings | changes))


def acting(run_dir, since=0):
    """Indices of the actors that have finished an episode after `since` steps."""
    rows = read_metrics(run_dir, "actor")  # Without columns while the file is still empty.
    pairs = zip(rows.get("actor", ()), rows.get("environment_steps", ()), strict=True)
    return {int(a) for a, s in pairs if s > since}


def steps_done(run_dir):
    folder = Checkpointer(run_dir / "checkpoints").latest().path
    return json.loads((folder / "progress" / "state.json").read_text())["environment_steps"]


@pytest.mark.timeout(300)
def test_actors_are_added_and_taken_away_and_the_number_is_remembered(tmp_path):
    run_dir = tmp_path / "run"
    lines = []

    def scale():
        deadline = time.monotonic() + 200
        for count, enough in ((3, {0, 1, 2}), (2, set())):
            while time.monotonic() < deadline:
                if (run_dir / "metrics" / "actor.csv").exists() and acting(run_dir) >= {0}:
                    break
                time.sleep(0.05)
            lines.append(scaling.request(run_dir, count))
            while not acting(run_dir) >= enough and time.monotonic() < deadline:
                time.sleep(0.05)

    thread = threading.Thread(target=scale)
    thread.start()
    assert d4pg.command.train(options(run_dir)) == 0
    thread.join()
    assert lines == [f"{run_dir}: 1 to 3 actors", f"{run_dir}: 3 to 2 actors"]
    assert acting(run_dir) == {0, 1, 2}
    assert steps_done(run_dir) == STEPS
    assert [e.detail for e in events.read(run_dir) if e.event == events.SCALED] == [
        "1 to 3",
        "3 to 2",
    ]

    # The same command again starts two actors.
    assert d4pg.command.train(options(run_dir, steps=STEPS + 600)) == 0
    assert acting(run_dir, since=STEPS + 100) == {0, 1}
    assert steps_done(run_dir) == STEPS + 600


def test_actors_that_are_wanted_again_before_all_have_ended_are_all_there_in_the_end(tmp_path):
    may_end = [threading.Event() for _ in range(4)]
    program = lp.Program("actors")
    for event in may_end:
        program.add_node(lp.PyNode(event.wait), label="actor")
    manager = lp.launch(program, "test_mt")
    added = []

    def make_actor(index, count):
        added.append((index, count))
        return lp.PyNode(may_end[index].wait)

    scaler = scaling.Scaler(described(tmp_path, actors=4).path, 4, manager, make_actor)
    counter = Counter(tmp_path, total_steps=1000, restored=None)

    def scale(count):
        scaling.request(tmp_path, count)
        scaler.tick(counter)

    def end(index):
        may_end[index].set()
        deadline = time.monotonic() + 60
        while index in manager.live_nodes("actor"):
            assert time.monotonic() < deadline
            time.sleep(0.02)
        may_end[index].clear()

    scale(2)
    end(3)  # Actor 2 is still within its lease.
    scale(4)
    assert manager.live_nodes("actor") == {0, 1, 2, 3} and added == [(3, 4)]
    end(2)
    end(1)  # By itself.
    scaler.tick(counter)
    assert manager.live_nodes("actor") == {0, 2, 3} and added[1:] == [(2, 4)]
    for event in may_end:
        event.set()
    manager.stop_and_wait()


def described(run_dir, **changes):
    """The directory of a run that has begun and is not live."""
    settings = {
        "actors": 2,
        "envs_per_actor": 3,
        "replay_shards": 2,
        "caches": 2,
        "address": None,
        "launch": "threads",
        "deterministic": False,
    }
    run = RunDirectory(run_dir)
    run.describe("d4pg", {}, settings | changes)
    return run


def test_a_run_that_is_not_live_changes_when_it_is_continued(tmp_path):
    run = described(tmp_path)
    line = scaling.request(tmp_path, 4)
    assert line == f"{tmp_path}: 2 to 4 actors, when the run is continued with its command"
    assert scaling.request(tmp_path, 4) == f"{tmp_path} has 4 actors already"
    assert actor_count.read(tmp_path) == 4
    for count, message in (
        (0, "--actors: expected at least 1, got 0"),
        (3, "expected a number whose environments the 2 replay servers share evenly, got 3"),
        (10**9, "--actors: expected at most"),
    ):
        with pytest.raises(UsageError, match=message):
            scaling.request(tmp_path, count)
    with pytest.raises(UsageError, match="expected the directory of a run"):
        scaling.request(tmp_path / "none", 2)

    same, other = options(tmp_path, actors=2), options(tmp_path, actors=3)
    assert scaling.settle(run, same).actors == 4
    assert scaling.settle(run, other).actors == 3  # A newer request.
    scaling.forget_older(run, 2)
    assert actor_count.read(tmp_path) is not None
    scaling.forget_older(run, 3)
    assert actor_count.read(tmp_path) is None


def test_a_wish_that_is_taken_back_while_the_run_starts_is_noticed(tmp_path):
    run = described(tmp_path, actors=1, replay_shards=1, caches=0)
    lines, counter = {}, Counter(tmp_path, total_steps=1000, restored=None)

    def scale(count):
        lines[count] = scaling.request(tmp_path, count)

    def wait_for(condition):
        deadline = time.monotonic() + 60
        while not condition():
            assert time.monotonic() < deadline
            time.sleep(0.02)

    with run.locked():
        mistaken = threading.Thread(target=scale, args=(3,))
        mistaken.start()
        wait_for(lambda: actor_count.read(tmp_path) == 3)
        corrected = threading.Thread(target=scale, args=(1,))
        corrected.start()
        wait_for(lambda: actor_count.read(tmp_path) == 1)
        mistaken.join(60)
        assert lines == {3: f"{tmp_path}: another command has asked for 1 actors since"}
        # Now the run's nodes are up.
        scaler = scaling.Scaler(tmp_path, 1, FakeManager(), lambda index, count: None)
        for _ in range(2):
            scaler.tick(counter)
        corrected.join(60)
    assert lines[1] == f"{tmp_path}: 3 to 1 actors"
    assert [event.detail for event in events.read(tmp_path)] == ["1 to 1"]


class FakeManager:
    """A program with one actor."""

    def live_nodes(self, group):
        return {0}


def test_a_number_of_an_earlier_process_is_no_news(tmp_path):
    run = described(tmp_path, actors=1, replay_shards=1, caches=0)
    scaling.request(tmp_path, 3)
    time.sleep(0.02)  # File timestamps are coarse.
    run.describe("d4pg", {}, run.config()["options"])
    scaler = scaling.Scaler(tmp_path, 3, FakeManager(), lambda index, count: None)
    scaler.tick(Counter(tmp_path, total_steps=1000, restored=None))
    assert events.read(tmp_path) == []


def test_a_run_is_scaled_as_often_as_it_is_continued(tmp_path, monkeypatch):
    run_dir = tmp_path / "run"
    counts = []

    def run(agent, plan, *others):
        counts.append(plan.num_actors)
        return 0

    monkeypatch.setattr(training, "_run", run)
    assert d4pg.command.train(options(run_dir)) == 0
    scaling.request(run_dir, 3)
    train.run(["--run-dir", str(run_dir)])
    line = scaling.request(run_dir, 2)
    assert line == f"{run_dir}: 3 to 2 actors, when the run is continued with its command"
    train.run(["--run-dir", str(run_dir)])
    train.run(["--run-dir", str(run_dir), "--actors", "1"])  # As in its first command: no change.
    train.run(["--run-dir", str(run_dir), "--actors", "3"])  # Another number replaces 2,
    train.run(["--run-dir", str(run_dir), "--actors", "1"])  # and now 1 replaces 3.
    assert counts == [1, 3, 2, 2, 3, 1]


def test_a_full_disk_is_told_from_a_mistake(tmp_path, monkeypatch):
    def fail(*args):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    described(tmp_path)
    monkeypatch.setattr(scaling.os, "replace", fail)
    with pytest.raises(DiskError, match="cannot write to the run directory .*No space left"):
        scaling.request(tmp_path, 4)


def test_a_sweep_is_not_scaled(tmp_path):
    RunDirectory(tmp_path).describe("sweep", {}, {})
    with pytest.raises(UsageError, match="which holds a sweep; name one of its runs$"):
        scaling.request(tmp_path, 2)
