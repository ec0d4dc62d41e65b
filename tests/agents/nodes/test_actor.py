"""Actors with several environments: exact counts, seeds, and new random streams at every start."""

import dataclasses
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest
import reverb

import launchpad as lp
from agents.config import one_by_one
from agents.d4pg.agent import D4PG
from agents.d4pg.config import D4PGConfig
from agents.nodes import actor as actor_node
from agents.nodes.actor import ActorNode
from agents.nodes.counter import Counter
from agents.replay.table import TABLE
from agents.replay.transitions import TransitionLayout
from agents.task import Task
from environments.fakes import TargetMatching
from rl_replicator.runs.metrics import read_metrics
from tests.agents.fixed_samples import Weights
from tests.agents.nodes.plans import TARGET, make_plan
from tests.agents.replay.queue_table import make_table
from tests.waiting import wait_until

# The tests count single transitions.
CONFIG = one_by_one(D4PGConfig(policy_layers=(8,), n_step=2, policy_average=1))


@pytest.fixture(scope="module")
def agent():
    return D4PG(CONFIG, TARGET.spec())


@pytest.fixture(scope="module")
def source(agent):
    return Weights(agent)


@pytest.fixture(autouse=True)
def program(monkeypatch):
    monkeypatch.setattr(lp, "stop_event", threading.Event)
    # The program ends when an actor gets no steps.
    monkeypatch.setattr(lp, "wait_for_stop", lambda seconds: True)


@pytest.fixture
def serve(agent):
    """Starts a server of a table; returns its client."""
    servers = []

    def start(*limits, **settings):
        table = make_table(TransitionLayout(agent.environment_spec), *limits, **settings)
        servers.append(reverb.Server([table]))
        return servers[-1].localhost_client()

    yield start
    for server in servers:
        server.stop()


def act(agent, source, counter, run_dir, actors, envs, indices, task=TARGET, engine="dm_control"):
    """Runs actors one after another; returns the rows that they wrote, sorted."""
    layout = TransitionLayout(agent.environment_spec)
    server = reverb.Server([make_table(layout)])
    client = server.localhost_client()
    plan = make_plan(
        run_dir,
        counter.progress().total_steps,
        num_actors=actors,
        envs_per_actor=envs,
        task=task,
        env_engine=engine,
    )
    for index in indices:
        ActorNode(index, agent, plan, [client], source, counter).run()
    count = client.server_info()[TABLE].current_size
    samples = client.sample(TABLE, num_samples=count, emit_timesteps=False)
    rows = np.stack([np.ravel(sample.data) for sample in samples])
    server.stop()
    return rows[np.lexsort(rows.T)]


@pytest.mark.timeout(120)
def test_environments_of_one_actor_are_those_of_as_many_actors(agent, source, tmp_path):
    """An environment's seeds, noise, sigma and steps do not depend on the actor that runs it."""
    steps = 130
    together = Counter(tmp_path / "one", total_steps=3 * steps, restored=None)
    rows = act(agent, source, together, tmp_path, actors=1, envs=3, indices=[0])
    assert together.progress().environment_steps == 3 * steps
    apart = []
    for index in range(3):
        counter = Counter(tmp_path / str(index), total_steps=steps, restored=None)
        apart.append(act(agent, source, counter, tmp_path, actors=3, envs=1, indices=[index]))
    expected = np.concatenate(apart)
    np.testing.assert_allclose(rows, expected[np.lexsort(expected.T)], atol=1e-6)


@pytest.mark.timeout(120)
def test_interrupted_episodes_are_not_repeated(source, tmp_path):
    """Neither when the run is continued, nor when an actor alone is started again."""
    config = dataclasses.replace(CONFIG, exploration_random_steps=60)
    agent = D4PG(config, TARGET.spec())
    # Every stop comes before the end of an episode (20 steps).
    first = Counter(tmp_path, total_steps=40, restored=None)
    rows = [act(agent, source, first, tmp_path, actors=1, envs=4, indices=[0])]
    assert first.progress().episodes == 0
    later = Counter(tmp_path, total_steps=80, restored=first.snapshot())
    rows.append(act(agent, source, later, tmp_path, actors=1, envs=4, indices=[0]))
    assert later.progress().episodes == 0
    latest = Counter(tmp_path, total_steps=120, restored=later.snapshot())
    latest.start_environment(0)  # By an actor that died immediately.
    rows.append(act(agent, source, latest, tmp_path, actors=1, envs=4, indices=[0]))
    targets = np.concatenate(rows)[:, 0]
    assert len(np.unique(targets)) == len(targets) > 90


def test_steps_are_those_of_the_simulator(agent, source, tmp_path):
    """200 actions that are repeated four times: 40 episodes of 20 steps."""
    counter, task = Counter(tmp_path, 800, restored=None), dataclasses.replace(TARGET, repeats=4)
    rows = act(agent, source, counter, tmp_path, actors=1, envs=1, indices=[0], task=task)
    assert (len(rows), counter.progress().environment_steps) == (200, 800)
    actor = read_metrics(tmp_path, "actor")
    assert actor["environment_steps"][-1] == 800 and actor["episodes"][-1] == 40
    assert set(actor["episode_length"]) == {20.0}


def test_every_start_of_an_environment_has_numbers_of_its_own(tmp_path):
    counter = Counter(tmp_path, total_steps=100, restored=None)
    seen = [counter.start_environment(3), counter.start_environment(3)]
    assert counter.start_environment(4) == seen[0] == (0, 0)  # It has the number besides.
    counter.lease(0, 0, 0.0, [])
    counter.lease(0, 100, 0.0, [])
    saved = counter.snapshot()
    seen.append(counter.start_environment(3))
    # The counter alone was restored: it has forgotten the last start.
    seen.append(Counter(tmp_path, 200, restored=saved).start_environment(3))
    assert len(set(seen)) == len(seen)


class CountingAdder:
    """An agent's own adder, with nothing beyond the contract."""

    def __init__(self):
        self.steps, self.is_closed, self.seconds_waited = 0, False, 0.0

    def reset(self):
        pass

    def add_first(self, timestep):
        pass

    def add(self, action, next_timestep, extras=()):
        self.steps += 1

    def finish(self, timeout):
        return True

    def close(self):
        self.is_closed = True


@pytest.mark.parametrize("failing", ["environment", "policy"])
def test_environments_are_closed_when_their_actor_is_not_made(
    agent, source, serve, tmp_path, monkeypatch, failing
):
    """For example, by a stop while it waits for the learner: nothing else can close them."""
    made, closed = [], []

    def make(self, seed, make=TARGET.make):
        if failing == "environment" and len(made) == 2:
            raise SystemExit
        made.append(make(seed))
        return made[-1]

    def make_actor(*arguments):
        raise SystemExit

    monkeypatch.setattr(Task, "make", make)
    monkeypatch.setattr(agent, "make_actor", make_actor)
    monkeypatch.setattr(TargetMatching, "close", lambda self: closed.append(self))
    plan = make_plan(tmp_path, 50, envs_per_actor=3)
    with pytest.raises(SystemExit):
        ActorNode(0, agent, plan, [serve()], source, Counter(tmp_path, 50, restored=None))
    assert len({*map(id, closed)}) == len(closed) == len(made) == {"environment": 2}.get(failing, 3)


@pytest.mark.timeout(120)
def test_a_stop_within_a_lease_is_seen_at_the_next_step(agent, source, tmp_path, monkeypatch):
    """A robot's steps are so slow that a lease outlasts the program's termination notice."""
    stop, taken, closed, at_step = threading.Event(), [], [], 130
    monkeypatch.setattr(lp, "stop_event", lambda: stop)

    def step(self, action, step=TargetMatching.step):
        taken.append(self)
        if len(taken) == at_step:
            stop.set()
        return step(self, action)

    monkeypatch.setattr(TargetMatching, "step", step)
    monkeypatch.setattr(TargetMatching, "close", lambda self: closed.append(self))
    counter = Counter(tmp_path, total_steps=250, restored=None)
    rows = act(agent, source, counter, tmp_path, actors=1, envs=1, indices=[0])
    assert len(taken) == at_step and len(closed) == 1
    # All of them are counted, and the rest of the lease can be granted again.
    assert counter.progress().environment_steps == at_step and len(rows) >= at_step - 1
    again = Counter(tmp_path / "again", total_steps=250, restored=counter.snapshot())
    leases = []
    while granted := again.lease(0, leases[-1] if leases else 0, 0.0, []):
        leases.append(granted)
    assert sum(leases) == 250 - at_step


class Restarted:
    """A counter that dies when an actor has no steps left, and restarts with half of the steps."""

    def __init__(self, folder):
        self.counter = Counter(folder, total_steps=250, restored=None)
        self._restored = Counter(folder, total_steps=250, restored={"environment_steps": 120})
        self.orders, self.first_waits = [], {}

    def __getattr__(self, name):
        return getattr(self.counter, name)

    def lease(self, actor, steps, waited, episodes):
        self.first_waits.setdefault(len(self.orders), waited)
        return self.counter.lease(actor, steps, waited, episodes)

    def standby(self, actor):
        if not self.orders:
            self.counter = self._restored
        elif self.orders == ["act", "wait"]:
            self.counter.learner_done()
        self.orders.append(self.counter.standby(actor))
        return self.orders[-1]


@pytest.mark.timeout(120)
def test_an_actor_takes_the_steps_that_a_restarted_counter_has_forgotten(
    agent, source, serve, tmp_path, monkeypatch
):
    """The other actors may have ended; the learner would wait for these steps forever."""
    monkeypatch.setattr(lp, "wait_for_stop", lambda seconds: False)
    counter = Restarted(tmp_path)
    ActorNode(0, agent, make_plan(tmp_path, 250), [serve()], source, counter).run()
    assert counter.progress().environment_steps == 250 and counter.progress().steps_done
    assert counter.orders == ["act", "wait", "end"]
    assert counter.first_waits[1] < 0.5  # The waits before the restart do not count again.
    # Episodes have their full length: the one that was cut off is not counted.
    lengths = read_metrics(tmp_path, "actor")["episode_length"]
    assert set(lengths) == {20}


@pytest.mark.timeout(120)
def test_a_pool_takes_exactly_the_steps_and_repeats_none_after_a_stop(tmp_path):
    task, size = Task("pendulum:swingup"), 2
    pendulum = D4PG(CONFIG, task.spec())
    stop = size * 1000 + 10  # Shortly after the ends of the first episodes.

    def observations(counter):
        rows = act(pendulum, weights, counter, tmp_path, 1, size, [0], task, "envpool")
        assert counter.progress().steps_done
        return rows[:, :3]

    weights, counter = Weights(pendulum), Counter(tmp_path, total_steps=stop, restored=None)
    before = observations(counter)
    assert counter.progress().environment_steps == stop and counter.progress().episodes == size
    assert len(before) == stop - size * (CONFIG.n_step - 1)  # The newest episodes lack their last.
    continued = Counter(tmp_path, total_steps=stop + 60, restored=counter.snapshot())
    both = np.concatenate([before, observations(continued)])
    assert len(np.unique(both, axis=0)) == len(both) > stop


@pytest.mark.timeout(120)
def test_the_steps_are_done_when_the_replay_holds_the_last_rows(agent, source, serve, tmp_path):
    """The learner, which is behind, keeps sampling until then; its last checkpoint has all rows."""
    client = serve(reverb.rate_limiters.Queue(50), max_times_sampled=0)
    counter = Counter(tmp_path, total_steps=60, restored=None)
    node = ActorNode(0, agent, make_plan(tmp_path, 60), [client], source, counter)
    actor = threading.Thread(target=node.run)
    actor.start()
    while counter.progress().environment_steps < 60 and actor.is_alive():
        time.sleep(0.01)
    assert counter.progress().actors_finishing == 1 and not counter.progress().steps_done
    list(client.sample(TABLE, num_samples=30, emit_timesteps=False))
    actor.join()
    assert counter.progress().steps_done
    assert client.server_info()[TABLE].rate_limiter_info.insert_stats.completed == 60


@pytest.mark.timeout(120)
def test_an_actor_that_would_wait_for_ever_takes_its_last_steps(
    agent, source, serve, tmp_path, monkeypatch, caplog
):
    """The learner needs rows of another replay server, and no actor is left to insert any there."""
    monkeypatch.setattr(actor_node, "_SECONDS_TO_RUN_AHEAD", 0.2)
    client = serve(reverb.rate_limiters.Queue(20), max_times_sampled=0)
    counter, asked = Counter(tmp_path, total_steps=100, restored=None), []  # One lease.
    ask = counter.may_run_ahead
    monkeypatch.setattr(counter, "may_run_ahead", lambda each: asked.append(ask(each)) or asked[-1])
    plan = make_plan(tmp_path, 100, num_replay_shards=2)
    node = ActorNode(0, agent, plan, [client, None], source, counter)
    actor = threading.Thread(target=node.run)
    actor.start()
    counter.report_learner(1, 0.0, {})
    while len(asked) < 2 and actor.is_alive():
        time.sleep(0.01)
    # The learner may just be slow, or restarting: the actor waits for it.
    assert not any(asked) and "continues without the replay" not in caplog.text
    deadline = time.monotonic() + 60
    while actor.is_alive() and time.monotonic() < deadline:
        counter.report_learner(1, 1.0, {})
        actor.join(0.2)
    assert counter.progress().environment_steps == 100 and counter.progress().steps_done
    assert client.server_info()[TABLE].rate_limiter_info.insert_stats.completed == 20
    assert "actor 0 continues without the replay" in caplog.text


def test_actors_run_ahead_only_if_they_feed_several_servers_or_in_the_last_leases(tmp_path):
    counter = Counter(tmp_path, total_steps=150, restored={"learner_steps": 7})
    counter.lease(0, 0, 0.0, [])
    assert not counter.may_run_ahead(feeds_several=True)
    for _ in range(5):  # Seconds in which the learner got no rows.
        counter.report_learner(7, 1.0, {})
    assert counter.may_run_ahead(feeds_several=True)
    # 50 steps may still be granted to an actor that feeds the other server.
    assert not counter.may_run_ahead(feeds_several=False)
    counter.lease(1, 0, 0.0, [])
    assert counter.may_run_ahead(feeds_several=False)
    counter.report_learner(8, 0.0, {})
    assert not counter.may_run_ahead(feeds_several=True)


@pytest.mark.timeout(120)
def test_an_agents_own_adder_needs_no_more_than_the_contract_names(
    agent, source, tmp_path, monkeypatch
):
    """The leases of three other actors, which are in progress, count for the exploration."""
    closed, contexts, adders = [], [], [CountingAdder() for _ in range(3)]
    monkeypatch.setattr(TargetMatching, "close", lambda self: closed.append(self))

    def make_actor(source, adders, own):
        contexts.extend(own)
        return agent.make_actor(source, adders, own)

    left = list(adders)
    other = SimpleNamespace(make_adder=lambda *_: left.pop(), make_actor=make_actor)
    counter = Counter(tmp_path, total_steps=507, restored=None)
    assert [counter.lease(actor, 0, 0.0, []) for actor in (1, 2, 3)] == [100, 100, 100]
    assert [counter.lease_start(actor) for actor in (1, 2, 3)] == [0, 100, 200]
    plan = make_plan(tmp_path, 507, num_actors=4, envs_per_actor=3)
    ActorNode(0, other, plan, [None], source, counter).run()  # Three leases.
    assert sum(adder.steps for adder in adders) == 207 == counter.environment_steps()
    assert contexts[0].environment_steps() == 500
    # Places from 0 to 1 over the environments of all actors.
    assert [context.rank for context in contexts] == pytest.approx([0, 1 / 11, 2 / 11])
    assert all(adder.is_closed for adder in adders) and len({*map(id, closed)}) == 3


@pytest.mark.timeout(120)
def test_an_actor_with_slow_steps_reports_every_few_seconds(agent, source, tmp_path, monkeypatch):
    stop = threading.Event()
    monkeypatch.setattr(lp, "stop_event", lambda: stop)

    def step(self, action, step=TargetMatching.step):
        stop.wait(0.25)
        return step(self, action)

    monkeypatch.setattr(TargetMatching, "step", step)
    counter = Counter(tmp_path, total_steps=300, restored=None)

    def make_actor(source, adders, contexts):
        assert contexts[0].rank == 0.5  # The only environment.
        return agent.make_actor(source, adders, contexts)

    other = SimpleNamespace(make_adder=lambda *_: CountingAdder(), make_actor=make_actor)
    node = ActorNode(0, other, make_plan(tmp_path, 300), [None], source, counter)
    actor = threading.Thread(target=node.run)
    actor.start()
    assert wait_until(counter.environment_steps) < 100  # Before the end of its lease.
    stop.set()
    actor.join()
    again = Counter(tmp_path / "again", total_steps=300, restored=counter.snapshot())
    assert again.lease(0, 0, 0.0, []) == 100
