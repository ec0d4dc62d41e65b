"""Checkpoints of a whole run, written while its learner trains."""

import shutil
import threading
import time

import numpy as np
import pytest
import reverb
import tensorflow as tf
from reverb.platform.checkpointers_lib import DefaultCheckpointer

import launchpad as lp
from agents.learning.weights import WeightsPart
from agents.nodes import saver
from agents.nodes.counter import Counter, program_folder, restored_counter
from agents.replay.checkpoint import ReplayError, make_server_checkpointer
from rl_replicator.checkpoints import Checkpointer
from rl_replicator.checkpoints.parts import JsonPart, TrackablePart
from rl_replicator.errors import UsageError
from rl_replicator.runs.run_directory import RunDirectory
from tests.waiting import wait_until


class CountingLearner:
    """A learner that counts its steps, and has one weight."""

    network_names = ("policy",)

    def __init__(self):
        self._count = tf.Variable(0)
        self.weight = tf.Variable(0.0)
        self.num_refreshed = 0

    @property
    def num_steps(self):
        return int(self._count.numpy())

    def step(self):
        self._count.assign_add(1)

    def refresh(self):
        self.num_refreshed += 1

    def trackables(self):
        return {"count": self._count, "weight": self.weight}

    def get_variables(self, names):
        return {f"{name}/count": np.array(self.num_steps) for name in names}


def make_saver(run_dir, client, learner, seconds=0.0, keep=2):
    counter = Counter(run_dir, 100, None)
    return saver.Saver(RunDirectory(run_dir), keep, learner, [client], counter, seconds)


@pytest.fixture
def serve(tmp_path, monkeypatch):
    """Returns a function that starts a replay server."""
    monkeypatch.setattr(lp, "stop_event", threading.Event)
    servers = []

    def start(port=None):
        scratch = tmp_path / f"server-{len(servers)}"
        scratch.mkdir()
        server = reverb.Server(
            [reverb.Table.queue("table", 10)],
            port=port,
            checkpointer=DefaultCheckpointer(str(scratch)),
        )
        servers.append(server)
        return server

    yield start
    for server in servers:
        server.stop()


def restored(run_dir):
    """The learner steps of a checkpoint according to its variables, weights, counters and name."""
    checkpointer = Checkpointer(RunDirectory(run_dir).checkpoints)
    learner, weights, progress = CountingLearner(), WeightsPart(), {}
    info = checkpointer.restore(
        {
            "learner": TrackablePart(**learner.trackables()),
            "weights": weights,
            "progress": JsonPart(dict, progress.update),
        }
    )
    count = int(weights.get_variables(["policy"])["policy/count"])
    return [learner.num_steps, count, progress["learner_steps"], info.step]


def test_all_parts_hold_the_step_at_which_the_save_began(serve, tmp_path):
    learner = CountingLearner()
    checkpointer = Checkpointer(RunDirectory(tmp_path).checkpoints)
    saves = make_saver(tmp_path, serve().localhost_client(), learner)
    with saves.completed():
        learner.step()
        saves.tick()
        learner.step()
    assert restored(tmp_path) == [1, 1, 1, 1]
    assert not saver.holds_last_step(tmp_path)
    assert saves.save_last()
    assert saver.holds_last_step(tmp_path)
    assert restored(tmp_path) == [2, 2, 2, 2]
    before = checkpointer.latest()
    assert saves.save_last()  # Nothing has changed, so nothing is written.
    assert checkpointer.latest() == before


def test_a_learner_that_diverged_is_not_saved(serve, tmp_path, monkeypatch):
    monkeypatch.setattr(saver, "_LEARNER_SECONDS", 0.0)
    monkeypatch.setattr(saver, "_PAUSE_PER_LEARNER", 0.0)
    learner = CountingLearner()
    learner.step()
    saves = make_saver(tmp_path, serve().localhost_client(), learner, 1000.0)
    assert saves.save_last()
    learner.step()
    learner.weight.assign(np.nan)
    message = (
        "^expected finite numbers, got NaN or infinity in variable 'weight' after learner step 2; "
        r"lower the learning rates, or scale the rewards \(the newest checkpoint is of step 1\)$"
    )
    for save in (saves.tick, saves.save_last):  # Saves of the learner alone, and of everything.
        with pytest.raises(UsageError, match=message):
            save()
    assert restored(tmp_path) == [1, 1, 1, 1]
    assert Checkpointer(program_folder(tmp_path)).latest() is None


def test_a_replay_that_died_is_saved_when_it_is_up_again(serve, tmp_path, caplog, monkeypatch):
    """Or the run fails, after ten minutes."""
    server = serve()
    learner = CountingLearner()
    checkpointer = Checkpointer(RunDirectory(tmp_path).checkpoints)
    saves = make_saver(tmp_path, reverb.Client(f"localhost:{server.port}"), learner)
    assert saves.save_last()  # The checkpoint of step 0.
    learner.step()
    server.stop()
    now = time.monotonic
    begun = now()
    assert not saves.save_last()
    assert not saver.holds_last_step(tmp_path)
    assert checkpointer.latest().step == 0
    assert "not saved: the replay was not written" in caplog.text
    with monkeypatch.context() as later:
        later.setattr(time, "monotonic", lambda: min(now() + 590, begun + 599))
        assert not saves.save_last()
        later.setattr(time, "monotonic", lambda: now() + 610)
        with pytest.raises(ReplayError):
            saves.save_last()
    server = serve(server.port)
    wait_until(saves.save_last, pause=0.1)  # The client reconnects after a while.
    assert saver.holds_last_step(tmp_path)
    assert restored(tmp_path)[-1] == 1
    server.stop()
    learner.step()
    monkeypatch.setattr(time, "monotonic", lambda: now() + 1300)
    assert not saves.save_last(), "ten minutes count from the last save"


def test_the_last_save_is_tried_although_the_one_before_failed(serve, tmp_path, monkeypatch):
    client, learner = serve().localhost_client(), CountingLearner()
    saves, write = make_saver(tmp_path, client, learner), client.checkpoint

    def die():
        monkeypatch.setattr(client, "checkpoint", write)  # The server is back immediately.
        raise RuntimeError("Connection reset by peer")

    monkeypatch.setattr(client, "checkpoint", die)
    learner.step()
    saves.begin()
    learner.step()
    assert saves.save_last()
    assert restored(tmp_path) == [2, 2, 2, 2]


def test_a_stop_links_a_replay_that_takes_long_to_write(serve, tmp_path, monkeypatch):
    """Otherwise a process that is killed ten seconds after Ctrl-C would lose the last steps.

    While the run goes on, such a replay is saved again, in a twentieth of the time.
    """
    stop = threading.Event()
    monkeypatch.setattr(lp, "stop_event", lambda: stop)
    run, learner = RunDirectory(tmp_path), CountingLearner()
    saves = make_saver(tmp_path, serve().localhost_client(), learner, keep=9)

    def written():
        learner.step()
        assert saves.save_last()
        folder = Checkpointer(run.checkpoints).latest().path / "replay"
        return {path.stat().st_ino for path in folder.iterdir()}

    before = written()
    stop.set()
    assert not before & written()
    monkeypatch.setattr(Checkpointer, "write_seconds", 60.0)
    slow = written()
    assert slow and written() == slow
    stop.clear()
    assert not slow & written()
    now = time.monotonic
    for seconds, more in ((1100, 0), (1300, 1)):
        learner.step()
        saved = Checkpointer(run.checkpoints).latest().step
        with monkeypatch.context() as later, saves.completed():
            later.setattr(time, "monotonic", lambda after=seconds: now() + after)
            saves.tick()
        assert (Checkpointer(run.checkpoints).latest().step > saved) == more


def continued(run):
    """The learner steps of a learner that is restarted in a run."""
    learner = CountingLearner()
    saver.Saver(run, 2, learner, [], None, 1000.0).restore()
    assert learner.num_refreshed == (learner.num_steps > 0)
    return learner.num_steps


def test_a_learner_continues_from_what_was_saved_of_it_alone(serve, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(saver, "_LEARNER_SECONDS", 0.0)
    monkeypatch.setattr(saver, "_PAUSE_PER_LEARNER", 0.0)
    run, learner = RunDirectory(tmp_path), CountingLearner()
    assert continued(run) == 0
    saves = make_saver(tmp_path, serve().localhost_client(), learner, 1000.0)
    with saves.completed():
        learner.step()
        saves.tick()
    assert continued(run) == 1, "there is no checkpoint yet"
    learner.step()
    assert saves.save_last()
    assert continued(run) == 2, "the checkpoint is newer"
    for _ in range(3):
        learner.step()
    with saves.completed():
        saves.tick()
    assert continued(run) == 5 and restored(tmp_path) == [2, 2, 2, 2]
    newest = Checkpointer(program_folder(run.path)).latest()
    with saves.completed():
        saves.tick()
    assert Checkpointer(program_folder(run.path)).latest() == newest, "it has not moved"
    (newest.path / "learner" / "variables").write_bytes(b"damaged")
    assert continued(run) == 2
    assert "the learner continues from the newest checkpoint: " in caplog.text


def test_a_learner_is_saved_alone_every_two_seconds_and_less_often_if_that_takes_long(
    serve, tmp_path, monkeypatch
):
    """At most a hundredth of the time."""
    learner, times = CountingLearner(), [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: times[0])
    saves = make_saver(tmp_path, serve().localhost_client(), learner, 10**6)

    def saved_after(seconds):
        times[0] += seconds
        learner.step()
        with saves.completed():
            saves.tick()
        latest = Checkpointer(program_folder(tmp_path)).latest()
        return latest is not None and latest.step == learner.num_steps

    assert [saved_after(seconds) for seconds in (1.9, 0.2, 1.9, 0.2)] == [False, True, False, True]
    monkeypatch.setattr(Checkpointer, "write_seconds", 1.0)
    assert [saved_after(seconds) for seconds in (2.1, 99.0, 1.1)] == [True, False, True]


def empty(folder):
    shutil.rmtree(folder)
    folder.mkdir()


def flip_a_bit(folder):
    """Of each part: in its largest file."""
    for part in ("learner", "progress", "replay"):
        file = max((folder / part).iterdir(), key=lambda path: path.stat().st_size)
        data = bytearray(file.read_bytes())
        data[len(data) // 2] ^= 1
        file.write_bytes(data)


@pytest.mark.parametrize("damage", [flip_a_bit, empty])
def test_nodes_that_start_again_use_the_newest_intact_checkpoint(serve, tmp_path, damage, caplog):
    """Then, after all checkpoints were deleted, the counter says that it starts from 0."""
    client = reverb.Client(f"localhost:{serve().port}")
    run, learner, counter = RunDirectory(tmp_path), CountingLearner(), Counter(tmp_path, 100, None)
    (tmp_path / "config.json").write_text('{"identity": {}}')  # It has begun.
    saves = saver.Saver(run, 2, learner, [client], counter, 1000.0)
    for rows in (1, 2):
        client.insert([np.float32(rows)], {"table": 1.0})
        learner.step()
        counter.report_learner(learner.num_steps, 0.0, {"loss": 1.0})
        counter.lease(0, 10, 0.0, [])
        assert saves.save_last()
    checkpoints = Checkpointer(run.checkpoints)
    older, newest = sorted(run.checkpoints.glob("0*"))

    def start_again():
        """Returns steps of learner and counter, and the rows of the replay."""
        server = reverb.Server(
            [reverb.Table.queue("table", 10)], checkpointer=make_server_checkpointer(tmp_path, 0)()
        )
        try:
            info = reverb.Client(f"localhost:{server.port}").server_info()["table"]
        finally:
            server.stop()
        progress = restored_counter(tmp_path, 100).progress()
        return continued(run), progress.environment_steps, info.current_size

    assert start_again() == (2, 20, 2)
    damage(newest)
    assert start_again() == (1, 10, 1)
    assert f"{newest} is damaged" in caplog.text and newest.exists()
    assert checkpoints.newest_intact().path == older
    for folder in (older, newest):
        shutil.rmtree(folder)
    assert start_again() == (0, 0, 0)
    assert "the counter starts again from 0 steps: there is no checkpoint in" in caplog.text
