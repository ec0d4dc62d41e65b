"""The learner's node before it gets rows, and when it gets no more."""

import dataclasses
import os
import threading

import dm_env
import numpy as np
import pytest
import reverb
from reverb.platform.checkpointers_lib import DefaultCheckpointer

import launchpad as lp
import rl_replicator as rr
from agents.d4pg.agent import D4PG
from agents.d4pg.config import D4PGConfig
from agents.nodes.counter import Counter
from agents.nodes.learner import LearnerNode
from agents.nodes.saver import holds_last_step
from agents.replay.config import ReplayConfig
from rl_replicator.checkpoints import Checkpointer
from rl_replicator.checkpoints.parts import JsonPart
from rl_replicator.errors import WORKER_LOST_STATUS
from rl_replicator.runs.run_directory import RunDirectory
from tests.agents.nodes.plans import TARGET, make_plan
from tests.waiting import wait_until

MIN_SIZE, TOTAL = 40, 100
CONFIG = D4PGConfig(
    policy_layers=(8,),
    critic_layers=(8,),
    n_step=1,
    global_batch_size=4,
    steps_per_call=1,
    policy_average=1,
    replay=ReplayConfig(min_size=MIN_SIZE, samples_per_insert=8.0, transitions_per_item=1),
)

AGENT = D4PG(CONFIG, TARGET.spec())


@pytest.fixture
def stop(monkeypatch):
    """The event that stops the program."""
    event = threading.Event()
    monkeypatch.setattr(lp, "stop_event", lambda: event)
    monkeypatch.setattr(lp, "wait_for_stop", event.wait)
    return event


class Replay:
    """One of `num_shards` replay servers, with `num_rows` rows."""

    def __init__(self, folder, num_rows, num_shards=1):
        folder.mkdir()
        self._server = reverb.Server(
            AGENT.make_tables(1, num_shards), checkpointer=DefaultCheckpointer(str(folder))
        )
        self.client = reverb.Client(f"localhost:{self._server.port}")
        self._adder = AGENT.make_adder(self.client, lambda seconds: None)
        self._adder.add_first(dm_env.restart(np.zeros(2, np.float32)))
        self.insert(num_rows)

    def insert(self, num_rows):
        for _ in range(num_rows):
            self._adder.add(
                np.zeros(1, np.float32), dm_env.transition(0.5, np.zeros(2, np.float32))
            )
        assert self._adder.finish(60.0)

    def close(self):
        self._adder.close()
        self._server.stop()


class Forgetful:
    """A counter that restarts at `older` when a save asks for its state after the last step."""

    def __init__(self, run_dir, older):
        self.now = Counter(run_dir, TOTAL, restored=None)
        self._later = Counter(run_dir, TOTAL, restored=older)

    def __getattr__(self, name):
        if name == "snapshot" and self.now.progress().steps_done:
            self.now = self._later
        return getattr(self.now, name)


@pytest.fixture
def run_dir(tmp_path):
    (tmp_path / "run").mkdir()
    RunDirectory(tmp_path / "run").describe("d4pg", {}, {})
    return tmp_path / "run"


def make_node(run_dir, clients, counter, make_replicator=rr.SingleDeviceReplicator, seconds=1000.0):
    plan = make_plan(
        run_dir, TOTAL, checkpoint_seconds=seconds, num_replay_shards=max(1, len(clients))
    )
    return LearnerNode(AGENT, make_replicator, plan, clients, counter)


@pytest.fixture
def learning(stop):
    """Starts a learner in a thread: (run_dir, replays, counter, **changes) -> thread."""
    started, used = [], []

    def start(run_dir, replays, counter, **changes):
        used.extend(replays)
        node = make_node(run_dir, [replay.client for replay in replays], counter, **changes)
        started.append(threading.Thread(target=node.run))
        started[-1].start()
        return started[-1]

    yield start
    stop.set()
    for thread in started:
        thread.join()
    for replay in used:
        replay.close()


class Asked(Exception):
    """The learner steps that schedules are for."""


@pytest.mark.parametrize(("actors", "expected"), [(1, AGENT.learner_steps(50)), (0, 99)])
def test_schedules_count_actions(run_dir, tmp_path, actors, expected):
    """Of two steps of the simulator here; without actors, all steps are the learner's."""

    def ask(self, replicator, replays, total_steps, online_fraction=1.0):
        raise Asked(total_steps)

    class Schedules(D4PG):
        make_learner = ask

    agent = Schedules(CONFIG, TARGET.spec())
    task = dataclasses.replace(TARGET, repeats=2)
    plan = make_plan(run_dir, 99, task=task, num_actors=actors)
    counter = Counter(tmp_path, 99, restored=None)
    with pytest.raises(Asked, match=f"^{expected}$"):
        LearnerNode(agent, rr.SingleDeviceReplicator, plan, [], counter)


def saved_steps(run_dir):
    """The environment steps of the newest checkpoint."""
    progress = {}
    checkpoints = Checkpointer(RunDirectory(run_dir).checkpoints)
    checkpoints.restore({"progress": JsonPart(dict, progress.update)})
    return progress["environment_steps"]


def take(counter, steps):
    """Lets the only actor take the last steps."""
    counter.lease(0, steps, 0.0, [])
    counter.actor_done(0)


def test_a_worker_lost_before_the_first_step_restarts_the_group(run_dir, monkeypatch, caplog):
    statuses = []
    monkeypatch.setattr(os, "_exit", statuses.append)

    def make_replicator():
        raise rr.WorkerLost("worker 1 (b:2) is gone", (1,))

    make_node(run_dir, [], Counter(run_dir, TOTAL, None), make_replicator)
    assert statuses == [WORKER_LOST_STATUS] and "worker 1 (b:2) is gone" in caplog.text


@pytest.mark.timeout(180)
def test_a_counter_that_forgets_steps_before_the_last_save_does_not_end_the_run(
    learning, tmp_path, run_dir, monkeypatch
):
    """The time after training, which may be long, is not that of the learner."""
    times = []
    monkeypatch.setattr(Counter, "add_time", lambda self, kind, grown: times.append(grown))
    replay = Replay(tmp_path / "replay", MIN_SIZE)
    counter = Forgetful(run_dir, {"environment_steps": TOTAL - 5})
    counter.lease(0, TOTAL - 5, 0.0, [])
    learning(run_dir, [replay], counter)
    first = counter.now
    wait_until(lambda: first.progress().learner_steps > 0)
    take(counter, 5)
    wait_until(lambda: counter.now is not first)
    trained = first.progress().learner_steps
    replay.insert(20)
    wait_until(lambda: counter.progress().learner_steps > trained)
    assert not counter.progress().learner_done
    take(counter, 5)
    wait_until(lambda: counter.progress().learner_done)
    assert saved_steps(run_dir) == TOTAL
    # The evaluator, which waits for this, may query a counter that has just been restarted.
    counter.now = Counter(run_dir, TOTAL, restored={"environment_steps": TOTAL})
    before = len(times)
    assert before
    wait_until(lambda: counter.progress().learner_done)
    assert len(times) == before


class OneOfTwo(rr.SingleDeviceReplicator):
    num_processes = 2


@pytest.mark.timeout(180)
def test_learners_of_several_processes_restart_if_the_counter_forgets_steps(
    learning, tmp_path, run_dir, monkeypatch
):
    """All of them would have to continue training from the same step."""
    statuses = []

    def end(status):
        statuses.append(status)
        raise SystemExit

    monkeypatch.setattr(os, "_exit", end)
    counter = Forgetful(run_dir, {"environment_steps": TOTAL - 5})
    take(counter, TOTAL)
    replay = Replay(tmp_path / "replay", MIN_SIZE)
    learner = learning(run_dir, [replay], counter, make_replicator=OneOfTwo)
    learner.join(120)
    assert not learner.is_alive() and statuses == [WORKER_LOST_STATUS]
    assert not counter.progress().learner_done
    # They restore this state, and the actors repeat the other steps.
    assert saved_steps(run_dir) == TOTAL - 5


@pytest.mark.timeout(180)
def test_a_run_that_was_stopped_after_its_last_step_trains_no_more(learning, tmp_path, run_dir):
    """Its last evaluation must be of the policy that was saved."""
    counter = Counter(run_dir, TOTAL, restored={"environment_steps": TOTAL})
    learning(run_dir, [Replay(tmp_path / "replay", MIN_SIZE)], counter)
    wait_until(lambda: counter.progress().learner_done)
    assert counter.progress().learner_steps == 0


@pytest.mark.timeout(180)
def test_a_save_that_fails_at_a_stop_is_tried_again(stop, tmp_path, run_dir, monkeypatch):
    replay = Replay(tmp_path / "replay", MIN_SIZE // 2)
    # What Reverb raises in the first calls to a restarted server.
    resets = [RuntimeError("connections to all backends failing"), RuntimeError("Socket closed")]

    def checkpoint(write=replay.client.checkpoint):
        if resets:
            raise resets.pop()
        return write()

    monkeypatch.setattr(replay.client, "checkpoint", checkpoint)
    node = make_node(run_dir, [replay.client], Counter(run_dir, TOTAL, restored=None))
    stop.set()
    node.run()
    replay.close()
    assert not resets and holds_last_step(run_dir)
    assert Checkpointer(RunDirectory(run_dir).checkpoints).latest() is not None


@pytest.mark.timeout(180)
def test_it_saves_while_the_replay_fills(learning, tmp_path, run_dir, monkeypatch):
    replay = Replay(tmp_path / "replay", 0)
    # What Reverb raises when its server has just been killed.
    resets = [RuntimeError("Connection reset by peer")]

    def server_info(timeout=None, answer=replay.client.server_info):
        if resets:
            raise resets.pop()
        return answer(timeout)

    monkeypatch.setattr(replay.client, "server_info", server_info)
    counter = Counter(run_dir, TOTAL, restored=None)
    learner = learning(run_dir, [replay], counter, seconds=0.2)
    checkpoints = Checkpointer(RunDirectory(run_dir).checkpoints)
    wait_until(lambda: counter.progress().learner_waiting > 0.5)
    assert checkpoints.latest() is None and not resets  # There is nothing to save.
    replay.insert(MIN_SIZE // 2)
    wait_until(lambda: checkpoints.latest() is not None)
    assert checkpoints.latest().step == 0
    replay.insert(MIN_SIZE // 2 + 10)
    # It takes the steps that the rows allow; then it starves, and ends once no row will come.
    wait_until(lambda: counter.progress().learner_steps > 10)
    wait_until(lambda: counter.progress().learner_waiting > 0.8)
    assert learner.is_alive()
    take(counter, TOTAL)
    wait_until(lambda: counter.progress().learner_done)
    assert checkpoints.latest().step > 10
