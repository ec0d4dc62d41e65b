"""The learner's node before it gets rows, and when it gets no more."""

import math
import os
import threading
import time

import dm_env
import numpy as np
import pytest
import reverb
from reverb.platform.checkpointers_lib import DefaultCheckpointer

import launchpad as lp
import rl_replicator as rr
from agents.d4pg.agent import D4PG
from agents.d4pg.config import D4PGConfig
from agents.nodes import timing
from agents.nodes.counter import Counter
from agents.nodes.learner import LearnerNode
from agents.nodes.saver import holds_last_step
from agents.replay.config import ReplayConfig
from agents.replay.table import TABLE
from rl_replicator.checkpoints import Checkpointer
from rl_replicator.checkpoints.parts import JsonPart
from rl_replicator.errors import WORKER_LOST_STATUS
from rl_replicator.runs.run_directory import RunDirectory
from tests.agents.nodes.plans import TARGET, make_plan

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


def wait_for(condition, seconds=60.0):
    """Waits until a condition holds; returns whether it does."""
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.05)
    return condition()


@pytest.fixture
def stop(monkeypatch):
    """The event that stops the program."""
    event = threading.Event()
    monkeypatch.setattr(lp, "stop_event", lambda: event)
    monkeypatch.setattr(lp, "wait_for_stop", event.wait)
    return event


def test_a_worker_lost_before_the_first_step_restarts_the_group(tmp_path, monkeypatch, caplog):
    statuses = []
    monkeypatch.setattr(os, "_exit", statuses.append)

    def make_replicator():
        raise rr.WorkerLost("worker 1 (b:2) is gone", (1,))

    RunDirectory(tmp_path).describe("d4pg", {}, {})
    agent, counter = D4PG(CONFIG, TARGET.spec()), Counter(tmp_path, TOTAL, restored=None)
    LearnerNode(agent, make_replicator, make_plan(tmp_path, TOTAL), [], counter)
    assert statuses == [WORKER_LOST_STATUS] and "worker 1 (b:2) is gone" in caplog.text


class Replay:
    """One of `num_shards` replay servers, with `num_rows` rows."""

    def __init__(self, agent, folder, num_rows, num_shards=1):
        folder.mkdir()
        self._agent = agent
        self._server = reverb.Server(
            agent.make_tables(1, num_shards), checkpointer=DefaultCheckpointer(str(folder))
        )
        self.client = reverb.Client(f"localhost:{self._server.port}")
        self._adder = agent.make_adder(self.client, lambda seconds: None)
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


@pytest.fixture
def run_dir(tmp_path):
    (tmp_path / "run").mkdir()
    RunDirectory(tmp_path / "run").describe("d4pg", {}, {})
    return tmp_path / "run"


def saved_progress(run_dir):
    """The counter's part of the newest checkpoint."""
    progress = {}
    checkpoints = Checkpointer(RunDirectory(run_dir).checkpoints)
    checkpoints.restore({"progress": JsonPart(dict, progress.update)})
    return progress


@pytest.mark.timeout(180)
def test_a_counter_that_forgets_steps_before_the_last_save_does_not_end_the_run(
    stop, tmp_path, run_dir
):
    agent = D4PG(CONFIG, TARGET.spec())
    replay = Replay(agent, tmp_path / "replay", MIN_SIZE)
    counter = Counter(run_dir, TOTAL, restored=None)
    counter.lease(0, TOTAL - 5, 0.0, [])
    older = counter.snapshot()
    plan = make_plan(run_dir, TOTAL, checkpoint_seconds=1000.0)
    node = LearnerNode(agent, lambda: rr.make("single_device"), plan, [replay.client], counter)
    save_last = node._saver.save_last

    def restart_and_save():
        node._saver.save_last = save_last
        node._counter = node._saver._counter = Counter(run_dir, TOTAL, restored=older)
        return save_last()

    node._saver.save_last = restart_and_save
    learner = threading.Thread(target=node.run)
    learner.start()
    try:
        assert wait_for(lambda: counter.progress().learner_steps > 0)
        counter.lease(0, 5, 0.0, [])  # Now all steps are done.
        counter.actor_done(0)
        assert wait_for(lambda: node._counter is not counter)
        time.sleep(3.0)
        assert not node._counter.progress().learner_done
        replay.insert(20)
        trained = node._learner.num_steps
        assert wait_for(lambda: node._learner.num_steps > trained)
        node._counter.lease(0, 5, 0.0, [])
        node._counter.actor_done(0)
        assert wait_for(lambda: node._counter.progress().learner_done)
        assert saved_progress(run_dir)["environment_steps"] == TOTAL
    finally:
        stop.set()
        learner.join()
        replay.close()


@pytest.mark.timeout(180)
def test_learners_of_several_processes_restart_if_the_counter_forgets_steps(
    stop, tmp_path, run_dir, monkeypatch
):
    """All of them would have to continue training from the same step."""
    statuses = []

    def end(status):
        statuses.append(status)
        raise SystemExit

    monkeypatch.setattr(os, "_exit", end)
    agent = D4PG(CONFIG, TARGET.spec())
    replay = Replay(agent, tmp_path / "replay", MIN_SIZE)
    counter = Counter(run_dir, TOTAL, restored=None)
    counter.lease(0, TOTAL, 0.0, [])
    counter.actor_done(0)
    plan = make_plan(run_dir, TOTAL, checkpoint_seconds=1000.0)
    node = LearnerNode(agent, lambda: rr.make("single_device"), plan, [replay.client], counter)
    node._has_partners = True
    node._saver._counter = forgetful = Counter(run_dir, TOTAL, {"environment_steps": TOTAL - 5})
    learner = threading.Thread(target=node.run)
    learner.start()
    learner.join(120)
    replay.close()
    assert not learner.is_alive() and statuses == [WORKER_LOST_STATUS]
    assert not counter.progress().learner_done and not forgetful.progress().learner_done
    # They restore this state, and the actors repeat the other steps.
    assert saved_progress(run_dir)["environment_steps"] == TOTAL - 5


@pytest.mark.timeout(180)
def test_it_trains_beside_another_program_in_the_process(tmp_path, run_dir):
    """Only the node's own thread is bound to its program."""
    agent = D4PG(CONFIG, TARGET.spec())
    replay = Replay(agent, tmp_path / "replay", MIN_SIZE)
    counter = Counter(run_dir, TOTAL, restored=None)
    plan = make_plan(run_dir, TOTAL, checkpoint_seconds=1000.0)

    def learn():
        LearnerNode(agent, lambda: rr.make("single_device"), plan, [replay.client], counter).run()

    managers = []
    for run in (learn, lp.wait_for_stop):
        program = lp.Program("program")
        program.add_node(lp.PyNode(run), label="node")
        managers.append(lp.launch(program, "test_mt", termination_notice_secs=60))
    try:
        assert wait_for(lambda: counter.progress().learner_steps > 1)
        assert not managers[0].wait(timeout=2.0)  # It has checked for a stop at each report.
    finally:
        for manager in managers:
            manager.stop_and_wait()
        replay.close()
    assert holds_last_step(run_dir)


@pytest.mark.timeout(180)
def test_a_run_that_was_stopped_after_its_last_step_trains_no_more(stop, tmp_path, run_dir):
    """Its last evaluation must be of the policy that was saved."""
    agent = D4PG(CONFIG, TARGET.spec())
    replay = Replay(agent, tmp_path / "replay", MIN_SIZE)
    counter = Counter(run_dir, TOTAL, restored={"environment_steps": TOTAL})
    plan = make_plan(run_dir, TOTAL, checkpoint_seconds=1000.0)
    node = LearnerNode(agent, lambda: rr.make("single_device"), plan, [replay.client], counter)
    learner = threading.Thread(target=node.run)
    learner.start()
    try:
        assert wait_for(lambda: counter.progress().learner_done)
        assert node._learner.num_steps == 0
    finally:
        stop.set()
        learner.join()
        replay.close()


@pytest.mark.timeout(180)
def test_the_time_after_training_is_not_its_time(stop, tmp_path, run_dir, monkeypatch):
    """The last evaluation may take longer than all training."""
    agent = D4PG(CONFIG, TARGET.spec())
    replay = Replay(agent, tmp_path / "replay", MIN_SIZE)
    counter = Counter(run_dir, TOTAL, restored=None)
    counter.lease(0, TOTAL - 5, 0.0, [])
    reports = []
    monkeypatch.setattr(counter, "add_time", lambda kind, grown: reports.append(grown))
    rounds = []  # Each reports the time first, and then the steps.

    def report_learner(*args, report=counter.report_learner):
        rounds.append(args)
        return report(*args)

    monkeypatch.setattr(counter, "report_learner", report_learner)
    plan = make_plan(run_dir, TOTAL, checkpoint_seconds=1000.0)
    node = LearnerNode(agent, lambda: rr.make("single_device"), plan, [replay.client], counter)
    learner = threading.Thread(target=node.run)
    learner.start()
    try:
        assert wait_for(lambda: reports)
        counter.lease(0, 5, 0.0, [])
        counter.actor_done(0)
        assert wait_for(lambda: counter.progress().learner_done)
        last = len(rounds) + 1  # It may have begun while the learner trained.
        assert wait_for(lambda: len(rounds) >= last)
        before = len(reports)
        assert wait_for(lambda: len(rounds) >= last + 2)
        assert len(reports) == before
    finally:
        stop.set()
        learner.join()
        replay.close()


@pytest.mark.timeout(180)
def test_a_save_that_fails_at_a_stop_is_tried_again(stop, tmp_path, run_dir, monkeypatch):
    agent = D4PG(CONFIG, TARGET.spec())
    replay = Replay(agent, tmp_path / "replay", MIN_SIZE // 2)
    # What Reverb raises in the first calls to a restarted server.
    resets = [RuntimeError("connections to all backends failing"), RuntimeError("Socket closed")]

    def checkpoint(write=replay.client.checkpoint):
        if resets:
            raise resets.pop()
        return write()

    monkeypatch.setattr(replay.client, "checkpoint", checkpoint)
    plan = make_plan(run_dir, TOTAL, checkpoint_seconds=1000.0)
    counter = Counter(run_dir, TOTAL, restored=None)
    node = LearnerNode(agent, lambda: rr.make("single_device"), plan, [replay.client], counter)
    stop.set()
    node.run()
    replay.close()
    assert not resets and holds_last_step(run_dir)
    assert Checkpointer(RunDirectory(run_dir).checkpoints).latest() is not None


@pytest.mark.timeout(180)
def test_a_continued_run_tells_once_that_it_waits_for_rows(
    stop, tmp_path, run_dir, monkeypatch, caplog
):
    """Its learner has taken steps, but its replay restarted empty."""
    monkeypatch.setattr(timing, "_SECONDS_BETWEEN_LINES", 5.0)
    agent = D4PG(CONFIG, TARGET.spec())
    replay = Replay(agent, tmp_path / "replay", 0)
    counter = Counter(run_dir, TOTAL, restored=None)
    plan = make_plan(run_dir, TOTAL, checkpoint_seconds=1000.0)
    node = LearnerNode(agent, lambda: rr.make("single_device"), plan, [replay.client], counter)
    node._learner._num_steps = 7
    learner = threading.Thread(target=node.run)
    learner.start()
    try:
        assert wait_for(lambda: "has waited" in caplog.text)
        time.sleep(2.5)
        assert caplog.text.count("has waited") == 1
    finally:
        stop.set()
        learner.join()
        replay.close()


@pytest.mark.timeout(180)
def test_it_says_when_it_starves_of_one_of_two_replay_servers(stop, tmp_path, run_dir, monkeypatch):
    agent = D4PG(CONFIG, TARGET.spec())
    half = MIN_SIZE // 2
    replays = [Replay(agent, tmp_path / f"replay{n}", n, num_shards=2) for n in (half, 0)]
    counter = Counter(run_dir, TOTAL, restored=None)
    plan = make_plan(run_dir, TOTAL, checkpoint_seconds=1000.0, num_replay_shards=2)
    clients = [replay.client for replay in replays]
    node = LearnerNode(agent, lambda: rr.make("single_device"), plan, clients, counter)
    learner = threading.Thread(target=node.run)
    learner.start()
    try:
        assert wait_for(lambda: counter.may_run_ahead(True))
        replays[1].insert(half)
        assert wait_for(lambda: counter.progress().learner_steps > 0)
        assert not counter.may_run_ahead(False)
        assert counter.lease(0, 0, 0.0, []) == TOTAL  # All steps are granted.
        assert wait_for(lambda: counter.may_run_ahead(True))

        def server_info(timeout=None):
            asked.append(timeout)
            raise RuntimeError("Connection reset by peer")

        # A server that is restarting.
        asked = []
        monkeypatch.setattr(clients[1], "server_info", server_info)
        assert wait_for(lambda: asked)
        monkeypatch.setattr(counter, "_starved_at", -math.inf)
        assert wait_for(lambda: len(asked) > 3)
        assert not counter.may_run_ahead(True)
    finally:
        stop.set()
        learner.join()
        for replay in replays:
            replay.close()


@pytest.mark.timeout(180)
def test_actors_fill_a_replay_server_that_came_back_empty(stop, tmp_path, run_dir):
    """It was killed before a checkpoint; the other server, which is full, would block actors."""
    agent = D4PG(CONFIG, TARGET.spec())
    half = MIN_SIZE // 2
    replays = [Replay(agent, tmp_path / f"replay{i}", half, num_shards=2) for i in range(2)]
    counter = Counter(run_dir, TOTAL, restored=None)
    plan = make_plan(run_dir, TOTAL, checkpoint_seconds=1000.0, num_replay_shards=2)
    clients = [replay.client for replay in replays]
    node = LearnerNode(agent, lambda: rr.make("single_device"), plan, clients, counter)
    learner = threading.Thread(target=node.run)
    learner.start()
    try:
        assert wait_for(lambda: counter.progress().learner_steps > 0)
        replays[1].client.reset(TABLE)
        assert wait_for(lambda: counter.may_run_ahead(True))
        replays[1].insert(half)
        replays[0].insert(2)
        trained = node._learner.num_steps
        assert wait_for(lambda: node._learner.num_steps > trained)
    finally:
        stop.set()
        learner.join()
        for replay in replays:
            replay.close()


@pytest.mark.timeout(180)
def test_it_saves_while_the_replay_fills_and_blames_no_other_one(stop, tmp_path, monkeypatch):
    agent = D4PG(CONFIG, TARGET.spec())
    scratch = tmp_path / "replay"
    scratch.mkdir()
    server = reverb.Server(agent.make_tables(1), checkpointer=DefaultCheckpointer(str(scratch)))
    client = reverb.Client(f"localhost:{server.port}")
    # What Reverb raises when its server has just been killed.
    resets = [RuntimeError("Connection reset by peer")]

    def server_info(timeout=None, answer=client.server_info):
        if resets:
            raise resets.pop()
        return answer(timeout)

    monkeypatch.setattr(client, "server_info", server_info)
    (tmp_path / "run").mkdir()
    RunDirectory(tmp_path / "run").describe("d4pg", {}, {})
    counter = Counter(tmp_path / "run", total_steps=TOTAL, restored=None)
    plan = make_plan(tmp_path / "run", TOTAL, checkpoint_seconds=0.2)
    node = LearnerNode(agent, lambda: rr.make("single_device"), plan, [client], counter)
    learner = threading.Thread(target=node.run)
    learner.start()
    try:
        checkpoints = Checkpointer(RunDirectory(plan.run_dir).checkpoints)
        time.sleep(3.0)
        assert checkpoints.latest() is None  # There is nothing to save.
        assert not resets

        adder = agent.make_adder(client, lambda seconds: None)
        observation = np.zeros(2, np.float32)
        adder.add_first(dm_env.restart(observation))

        def insert(count):
            for _ in range(count):
                adder.add(np.zeros(1, np.float32), dm_env.transition(0.5, observation))
            assert adder.finish(60.0)

        insert(MIN_SIZE // 2)
        assert wait_for(lambda: checkpoints.latest() is not None)
        assert checkpoints.latest().step == 0
        insert(MIN_SIZE // 2 + 10)
        # It takes the steps that the rows allow; then it starves.
        assert wait_for(lambda: counter.progress().learner_steps > 10)
        assert counter.lease(0, 0, 0.0, []) == TOTAL  # All steps are granted.
        time.sleep(4.0)
        # With a single server, actors are never held back in vain.
        assert learner.is_alive() and not counter.may_run_ahead(True)

        counter.lease(0, TOTAL, 0.0, [])
        counter.actor_done(0)
        assert wait_for(lambda: counter.progress().learner_done)
        assert checkpoints.latest().step > 10
        # The evaluator, which waits for this, may query a counter that has just been restarted.
        monkeypatch.setattr(counter, "_learner_done", False)
        assert wait_for(lambda: counter.progress().learner_done, seconds=20)
        adder.close()
    finally:
        stop.set()
        learner.join()
        server.stop()
