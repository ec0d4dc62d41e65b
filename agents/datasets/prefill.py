"""Fills the replay of a new run with recorded episodes.

A private server receives the transitions and writes its tables to files, from which the replay
servers of the run start until there is a checkpoint. So they are filled before any actor starts,
including servers that are restarted.
"""

import contextlib
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import reverb
import tensorflow as tf
from reverb.platform.checkpointers_lib import DefaultCheckpointer

from agents.agent import Agent
from agents.datasets.minari_files import EpisodeDataset
from agents.datasets.recording import RecordedEpisode
from agents.replay import local
from agents.replay.checkpoint import TABLES_FILE, prefilled, read_tables
from agents.replay.transitions import TABLE, transitions_per_item
from rl_replicator.errors import UsageError, cannot_write
from rl_replicator.processes import ports
from rl_replicator.runs import atomic_file

_SECONDS_TO_CONFIRM = 300.0
_SCRATCH = ".prefill-"
# Beyond any difference between samples and inserts.
_NO_LIMIT = 1e300


# Changes a table in files, given the limiter that it was made with.
Limit = Callable[[Any, Any], None]


def fill(
    agent: Agent,
    make_tables: Callable[[], Sequence[reverb.Table]],
    dataset: EpisodeDataset,
    num_shards: int,
    run_dir: Path,
    limit: Limit,
) -> int:
    """Writes the filled tables of all replay servers.

    Args:
      agent: makes the adders that fill the tables.
      make_tables: makes the tables of a server, of which the last one is filled.
      dataset: the episodes. Each server gets about equally many steps: the learner takes the same
        number of rows from each, so actors that feed a fuller one would wait for those of the
        others.
      num_shards: number of replay servers.
      run_dir: directory of the run.
      limit: `as_if_sampled`, or `unlimited` for a run without actors.

    Returns:
      Number of recorded transitions in the tables.

    Raises:
      UsageError: if the agent cannot learn from recorded episodes, or the disk is full.
    """
    discard(run_dir)
    held = 0
    try:
        with tempfile.TemporaryDirectory(prefix=_SCRATCH, dir=run_dir) as scratch:
            for shard in range(num_shards):
                folder = Path(scratch) / "filled" / str(shard)
                episodes = dataset.episodes(shard, num_shards)
                held += _fill_server(agent, make_tables, episodes, folder, Path(scratch), limit)
            (Path(scratch) / "filled").rename(prefilled(run_dir))
    except OSError as error:
        raise cannot_write(f"cannot write to {run_dir}: {error}", error) from error
    return held


def discard(run_dir: Path) -> None:
    """Deletes the files that `fill` has written, including those of a killed process."""
    for folder in (prefilled(run_dir), *run_dir.glob(f"{_SCRATCH}*")):
        shutil.rmtree(folder, ignore_errors=True)


def _fill_server(
    agent: Agent,
    make_tables: Callable[[], Sequence[reverb.Table]],
    episodes: Iterable[RecordedEpisode],
    folder: Path,
    scratch: Path,
    limit: Limit,
) -> int:
    tables = make_tables()
    name = tables[-1].info.name
    with _served(tables, scratch / f"{folder.name}-empty") as client:
        empty = Path(client.checkpoint())
    limits = {table.table_name: table.rate_limiter for table in read_tables(empty)}
    # Nothing is sampled yet, so the limiter would soon hold back the inserts.
    change(empty, lift_limit)
    with _served(make_tables(), scratch / f"{folder.name}-filled", empty) as client:
        inserted = _insert(agent, client, episodes, name)
        table = client.server_info()[name]
        # The last item may repeat some.
        held = min(inserted, transitions_per_item(table.signature) * table.current_size)
        filled = Path(client.checkpoint())
    change(filled, lambda table: limit(table, limits[table.table_name]))
    folder.parent.mkdir(exist_ok=True)
    filled.rename(folder)
    return held


@contextlib.contextmanager
def _served(
    tables: Sequence[reverb.Table], scratch: Path, stored: Path | None = None
) -> Iterator[reverb.Client]:
    """Serves tables in this process.

    Args:
      tables: the tables of the server.
      scratch: folder to make, for what the client has the server write.
      stored: files to restore the tables from.

    Yields:
      A client.
    """
    scratch.mkdir(parents=True)
    server = reverb.Server(
        tables,
        checkpointer=DefaultCheckpointer(
            str(scratch), fallback_checkpoint_path=None if stored is None else str(stored)
        ),
    )
    try:
        ports.bypass_proxy(["localhost"])
        yield reverb.Client(f"localhost:{server.port}")
    finally:
        server.stop()


def change(folder: Path, change_table: Callable[[Any], None]) -> None:
    """Changes the settings of the tables in files.

    Reverb restores everything about a table from them, whatever table the new server was made with.

    Args:
      folder: a folder that a server has written.
      change_table: is called with each `PriorityTableCheckpoint`, and changes it in place.
    """
    path = folder / TABLES_FILE
    tables = read_tables(folder)
    with tf.io.TFRecordWriter(str(path), "ZLIB") as writer:
        for table in tables:
            change_table(table)
            writer.write(table.SerializeToString())


def lift_limit(table: Any) -> None:
    """Lets a table be filled and sampled without a rate limit.

    Args:
      table: the `PriorityTableCheckpoint`.
    """
    table.rate_limiter.min_size_to_sample = 1
    table.rate_limiter.min_diff, table.rate_limiter.max_diff = -_NO_LIMIT, _NO_LIMIT


def fill_local(agent: Agent, dataset: EpisodeDataset, seed: int, run_dir: Path) -> int:
    """Writes the filled replay of a deterministic run without actors.

    Args:
      agent: see `fill`.
      dataset: see `fill`.
      seed: the seed of the run.
      run_dir: directory of the run.

    Returns:
      Number of transitions in the replay.

    Raises:
      UsageError: see `fill`.
    """
    discard(run_dir)
    (table,) = agent.make_tables(1)
    replay = local.make(table.info, seed)
    inserted = _insert(agent, replay, dataset.episodes(), TABLE)
    try:
        with atomic_file.making_folder(prefilled(run_dir)) as folder:
            (folder / "0").mkdir()
            replay.save(folder / "0")
    except OSError as error:
        raise cannot_write(f"cannot write to {run_dir}: {error}", error) from error
    return min(inserted, table.info.max_size)


def _insert(agent: Agent, client: Any, episodes: Iterable[RecordedEpisode], table: str) -> int:
    """Inserts all steps; returns their number once the server has confirmed them."""
    adder = agent.make_adder(client, lambda seconds: None, table)
    expected = 0
    try:
        for episode in episodes:
            episode.add_to(adder)
            expected += episode.num_steps
        if not adder.finish(_SECONDS_TO_CONFIRM):
            raise RuntimeError(f"the replay did not confirm all of {expected} transitions")
    except UsageError:
        raise
    except ValueError as error:  # Perhaps the agent has extras.
        raise UsageError(
            f"expected an agent that learns from recorded observations, actions, rewards and "
            f"discounts alone, got {type(agent).__name__}: {str(error).partition(';')[0]}; train "
            "another agent, or leave --prefill or --offline out"
        ) from error
    finally:
        adder.close()  # Before its server: the destructor of a writer would wait for it.
    return expected


def unlimited(table: Any, limiter: Any) -> None:
    """Lets a learner sample a table as often as it can."""
    del limiter
    lift_limit(table)


def as_if_sampled(table: Any, limiter: Any) -> None:
    """Gives a filled table its limiter, as if its transitions had been sampled as often as due.

    They count towards the minimum number of transitions for sampling. Beyond that, only the steps
    of the run's own actors make learner steps due, as many per step as without a prefill.
    """
    counts = table.rate_limiter.insert_count, table.rate_limiter.delete_count
    table.rate_limiter.CopyFrom(limiter)
    table.rate_limiter.insert_count, table.rate_limiter.delete_count = counts
    surplus = max(0, counts[0] - limiter.min_size_to_sample)
    table.rate_limiter.sample_count = round(surplus * limiter.samples_per_insert)
