"""Checkpoints of a whole run, written while its learner trains."""

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
from agents.nodes.counter import Counter
from rl_replicator.checkpoints import Checkpointer
from rl_replicator.checkpoints.parts import JsonPart, TrackablePart
from rl_replicator.runs.run_directory import RunDirectory


class CountingLearner:
    """A learner whose only variable is the number of its steps."""

    network_names = ("policy",)

    def __init__(self):
        self._count = tf.Variable(0)

    @property
    def num_steps(self):
        return int(self._count.numpy())

    def step(self):
        self._count.assign_add(1)

    def trackables(self):
        return {"count": self._count}

    def get_variables(self, names):
        return {f"{name}/count": np.array(self.num_steps) for name in names}


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
    """Learner steps of a checkpoint by its variables, its weights, its counters and its name."""
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
    client = reverb.Client(f"localhost:{serve().port}")
    checkpointer = Checkpointer(RunDirectory(tmp_path).checkpoints)
    learner = CountingLearner()
    saves = saver.Saver(checkpointer, learner, [client], Counter(tmp_path, 100, None), 0.0)
    learner.step()
    saves.tick()
    learner.step()
    checkpointer.wait()
    assert restored(tmp_path) == [1, 1, 1, 1]
    assert saves.save_last()
    assert restored(tmp_path) == [2, 2, 2, 2]
    before = checkpointer.latest()
    assert saves.save_last()  # Nothing has changed, so nothing is written.
    assert checkpointer.latest() == before


def test_a_replay_that_died_is_saved_when_it_is_up_again(serve, tmp_path, caplog):
    server = serve()
    client = reverb.Client(f"localhost:{server.port}")
    checkpointer = Checkpointer(RunDirectory(tmp_path).checkpoints)
    learner = CountingLearner()
    saves = saver.Saver(checkpointer, learner, [client], Counter(tmp_path, 100, None), 0.0)
    server.stop()
    assert not saves.save_last()
    assert checkpointer.latest() is None
    assert "not saved: the replay was not written" in caplog.text
    serve(server.port)
    deadline = time.monotonic() + 120
    while not saves.save_last():  # The client tries to connect again after a while.
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert restored(tmp_path)[-1] == 0
