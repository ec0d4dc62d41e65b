"""A replay that starts with recorded episodes: its rows, its rate limiter, and continued runs."""

import dataclasses
import functools
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import reverb

from agents import td3
from agents.datasets import minari_files, prefill
from agents.nodes.run_plan import EvaluationSchedule
from agents.replay.checkpoint import make_server_checkpointer, prefilled, read_items, read_tables
from agents.replay.config import ReplayConfig
from agents.replay.transitions import RECORDED, TABLE
from agents.runs import replay_figures
from agents.runs.options import AgentOptions
from rl_replicator.checkpoints import Checkpointer
from rl_replicator.errors import UsageError
from rl_replicator.runs.run_directory import RunDirectory
from tests.agents.datasets import random_episodes
from tests.agents.replay.queue_table import make_table

pytestmark = pytest.mark.usefixtures("plain_graphs")
CHAIN, TARGET = "environments.fakes:chain", "environments.fakes:target"
CONFIG = td3.command.config(
    policy_layers=(16,),
    critic_layers=(16,),
    global_batch_size=32,
    steps_per_call=4,
    n_step=3,
    discount=0.5,
    replay=ReplayConfig(min_size=200, samples_per_insert=16.0, transitions_per_item=1),
)


def options(run_dir, **changes):
    settings = {
        "env": TARGET,
        "steps": 400,
        "run_dir": run_dir,
        "agent": CONFIG,
        "checkpoint_seconds": 1.0,
        "video": False,
        "evaluation": EvaluationSchedule(every=400, episodes=1, last_episodes=1),
    }
    return AgentOptions(**(settings | changes))


def fill(name, env, run_dir, config=CONFIG, num_shards=1, online_fraction=1.0):
    """Fills the replay of a run of TD3; returns the agent and the number of transitions."""
    chosen = options(run_dir, env=env, agent=config)
    agent = td3.command.make_agent(config, chosen.task.spec())
    with RunDirectory(run_dir).opened("td3", chosen.identity):
        RunDirectory(run_dir).describe("td3", chosen.identity, {})
    dataset = minari_files.open_dataset(name, chosen.task)
    tables = functools.partial(agent.make_tables, 1, num_shards, online_fraction)
    limit = prefill.as_if_sampled
    return agent, prefill.fill(agent, tables, dataset, num_shards, run_dir, limit)


def rows(agent, run_dir, shard, count):
    """The initial contents of a run's replay server: [(row, priority)]."""
    checkpointer = make_server_checkpointer(run_dir, shard)()
    stored = prefilled(run_dir) / str(shard)
    # The server's table, but sampled without a limit and in the order of insertion.
    prefill.change(stored, prefill.lift_limit)
    prefill.change(stored, lambda table: table.sampler.Clear())
    prefill.change(stored, lambda table: setattr(table.sampler, "fifo", True))
    prefill.change(stored, lambda table: setattr(table, "max_times_sampled", 1))
    server = reverb.Server([make_table(agent.layout)], checkpointer=checkpointer)
    try:
        client = server.localhost_client()
        samples = client.sample(TABLE, num_samples=count, emit_timesteps=False)
        return [(np.ravel(one.data), one.info.priority) for one in samples]
    finally:
        server.stop()


def test_rows_are_those_of_actors(tmp_path):
    (episode,) = random_episodes.make_dataset("a-v0", CHAIN, 1)
    agent, held = fill("a-v0", CHAIN, tmp_path / "run")
    assert held == 10
    found = rows(agent, tmp_path / "run", 0, 10)
    for step, (row, priority) in enumerate(found):
        last = min(step + 3, 10)
        np.testing.assert_array_equal(row[:2], episode.observations[step])
        np.testing.assert_array_equal(row[2:3], episode.actions[step])
        # Rewards of 1 and gamma of 0.5 over three steps; the last one terminates.
        assert row[3] == [1.75, 1.5, 1.0][max(0, step - 7)]
        assert row[4] == (0.0 if last == 10 else 0.125)
        np.testing.assert_array_equal(row[5:], episode.observations[last])
        assert priority == agent.initial_priority


def test_the_last_item_repeats_some_transitions_that_do_not_count(tmp_path):
    (episode,) = random_episodes.make_dataset("a-v0", CHAIN, 1)
    replay = dataclasses.replace(CONFIG.replay, transitions_per_item=4)
    config = dataclasses.replace(CONFIG, replay=replay)
    agent, held = fill("a-v0", CHAIN, tmp_path / "run", config)
    assert held == 10
    found = [row.reshape(4, -1) for row, _ in rows(agent, tmp_path / "run", 0, 3)]
    steps = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 8, 9]
    np.testing.assert_array_equal(np.concatenate(found)[:, :2], episode.observations[steps])


def test_shards_get_equally_many_steps(tmp_path):
    """Actors that feed a fuller shard would wait for those of the others."""
    played = random_episodes.make_dataset("a-v0", CHAIN, 4)
    agent, held = fill("a-v0", CHAIN, tmp_path / "run", num_shards=2)
    assert held == 40
    for shard in (0, 1):
        own = [row[2] for row, _ in rows(agent, tmp_path / "run", shard, 20)]
        np.testing.assert_array_equal(
            own, np.ravel([played[i].actions for i in (shard, shard + 2)])
        )


@pytest.mark.parametrize(("episodes", "sampled"), [(15, 16 * (300 - 200)), (5, 0)])
def test_only_the_steps_of_actors_make_learner_steps_due(episodes, sampled, tmp_path):
    random_episodes.make_dataset("a-v0", TARGET, episodes)
    agent, _ = fill("a-v0", TARGET, tmp_path / "run")
    (table,) = read_tables(prefilled(tmp_path / "run") / "0")
    own = agent.make_tables(1)[0].info.rate_limiter_info
    limiter = table.rate_limiter
    for name in ("samples_per_insert", "min_diff", "max_diff", "min_size_to_sample"):
        assert getattr(limiter, name) == getattr(own, name)
    assert (limiter.insert_count, limiter.sample_count) == (20 * episodes, sampled)
    assert table.sampler.prioritized.priority_exponent == CONFIG.replay.priority_exponent


def test_recorded_transitions_get_a_table_of_their_own(tmp_path):
    random_episodes.make_dataset("a-v0", TARGET, 15)
    _, held = fill("a-v0", TARGET, tmp_path / "run", online_fraction=0.5)
    assert held == 300
    own, recorded = sorted(
        read_tables(prefilled(tmp_path / "run") / "0"), key=lambda table: table.table_name
    )[::-1]
    assert (own.table_name, own.rate_limiter.insert_count) == (TABLE, 0)
    # Sampling starts with the run's own steps, at half of their rate, and has no limit here.
    assert (own.rate_limiter.min_size_to_sample, own.rate_limiter.samples_per_insert) == (200, 8)
    assert (recorded.table_name, recorded.rate_limiter.insert_count) == (RECORDED, 300)
    assert recorded.rate_limiter.min_size_to_sample == 1
    assert recorded.rate_limiter.max_diff > 1e100


def test_an_error_closes_the_writer(tmp_path):
    """Otherwise its destructor would wait for a server that has ended."""
    chosen = options(tmp_path, env=CHAIN)
    agent = td3.command.make_agent(CONFIG, chosen.task.spec())
    first = chosen.task.make(0).reset()
    adders = []

    class Broken:
        def episodes(self, shard, num_shards):
            return [self]

        def add_to(self, adder):
            adders.append(adder)
            adder.add_first(first)
            raise ValueError("the file ends here")

    tables = functools.partial(agent.make_tables, 1)
    with pytest.raises(UsageError, match="got TD3: the file ends here"):
        prefill.fill(agent, tables, Broken(), 1, tmp_path, prefill.as_if_sampled)
    with pytest.raises(RuntimeError, match="Close has been called"):
        adders[0].finish(5.0)


def test_a_small_table_keeps_the_newest(tmp_path):
    played = random_episodes.make_dataset("a-v0", TARGET, 15)
    replay = dataclasses.replace(CONFIG.replay, max_size=250)
    agent, _ = fill("a-v0", TARGET, tmp_path / "run", dataclasses.replace(CONFIG, replay=replay))
    (table,) = read_tables(prefilled(tmp_path / "run") / "0")
    assert (table.rate_limiter.insert_count, table.rate_limiter.delete_count) == (300, 50)
    (row, _), *_ = rows(agent, tmp_path / "run", 0, 1)
    np.testing.assert_array_equal(row[:2], played[2].observations[10])


def test_what_a_process_that_was_killed_has_written_is_deleted(tmp_path):
    for name in ("prefill", ".prefill-x1y2", "checkpoints"):
        (tmp_path / "run" / name / "0").mkdir(parents=True)
    prefill.discard(tmp_path / "run")
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["checkpoints"]


HALF = {
    "online_fraction": 0.5,
    "agent": dataclasses.replace(
        CONFIG, replay=dataclasses.replace(CONFIG.replay, priority_exponent=0.6)
    ),
}
SHARDS = {"online_fraction": 0.5, "envs_per_actor": 2, "replay_shards": 2}
# On a busy machine, an actor's last rows may not be in the table yet when it is saved.
LOST = 100


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A complete run with 400 recorded transitions beside its own, and the path of its dataset."""
    root = tmp_path_factory.mktemp("trained")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MINARI_DATASETS_PATH", str(root))
        random_episodes.make_dataset("a-v0", TARGET, 20)
    folder = root / "a-v0"
    assert td3.command.train(options(root / "run", prefill=str(folder), **HALF)) == 0
    shutil.rmtree(folder)  # It is no longer needed.
    return root / "run", str(folder)


def progress(run_dir):
    """Returns environment steps and learner steps of a run, and the limiters of its tables."""
    checkpoint = Checkpointer(run_dir / "checkpoints").latest().path
    tables = {each.table_name: each.rate_limiter for each in read_tables(checkpoint / "replay")}
    state = json.loads((checkpoint / "progress" / "state.json").read_text())
    return state["environment_steps"], state["learner_steps"], tables


def test_a_run_takes_half_of_each_batch_from_the_data(trained):
    run_dir, _ = trained
    steps, learner_steps, tables = progress(run_dir)
    assert steps == 400 and tables[RECORDED].insert_count == 400
    assert 400 - LOST < tables[TABLE].insert_count <= 400
    # As many learner steps as without the data: 16 samples for each of 200 steps in batches of 32,
    # and the limiter's tolerance of 24 steps.
    assert 100 - 24 - LOST / 2 < learner_steps <= 100 + 24 + CONFIG.steps_per_call
    sampled = [tables[name].sample_count - start for name, start in ((TABLE, 0), (RECORDED, 399))]
    for count in sampled:  # The input holds some batches more.
        assert 0 <= count - 16 * learner_steps <= 16 * 20, sampled
    items = read_items(Checkpointer(run_dir / "checkpoints").latest().path / "replay")
    for name in tables:
        assert len({item.priority for item in items if item.table == name}) > 50, name
    assert replay_figures.read(run_dir)["inserted"] == tables[TABLE].insert_count
    assert not prefilled(run_dir).exists()


def test_a_run_never_takes_the_data_again(trained, tmp_path):
    run_dir, dataset = trained
    run_dir = Path(shutil.copytree(run_dir, tmp_path / "run"))
    before = progress(run_dir)[2][TABLE].insert_count
    assert td3.command.train(options(run_dir, prefill=dataset, steps=500, **HALF)) == 0
    steps, _, tables = progress(run_dir)
    assert steps == 500 and before < tables[TABLE].insert_count <= 500
    assert tables[RECORDED].insert_count == 400
    with pytest.raises(UsageError, match="prefill was .* and is now None"):
        td3.command.train(options(run_dir, steps=600))


def test_bad_data_ends_before_the_run_begins(tmp_path):
    random_episodes.make_dataset("a-v0", CHAIN, 1)
    for name, changes, message in (
        ("b-v0", {}, "to be a Minari dataset or its folder, found none of the name b-v0"),
        ("a-v0", {"env": "cartpole:swingup"}, "expected observations in a Box of 5 numbers"),
        ("a-v0", {"deterministic": True}, "--prefill: expected None with --deterministic"),
        ("a-v0", {"online_fraction": 0.0}, "--online-fraction: expected 1, or a number between"),
        (None, {"online_fraction": 0.5}, "between 0 and 1 with --prefill, got 0.5"),
        ("a-v0", {"online_fraction": 0.01}, "a fraction of the 32 transitions"),
        ("a-v0", {"env": CHAIN, **SHARDS}, "--replay-shards: expected at most 1, .* got 2"),
    ):
        with pytest.raises(UsageError, match=message) as error:
            td3.command.train(options(tmp_path / "run", prefill=name, **changes))
        assert "\n" not in str(error.value)
        assert not (tmp_path / "run").exists()
