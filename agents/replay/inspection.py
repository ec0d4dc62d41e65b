"""Reads the contents of the replay in a checkpoint."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import reverb
import tensorflow as tf

from agents.replay import stored_tables
from agents.replay.transitions import TABLE, Layout
from rl_replicator.errors import UsageError

_BATCH = 256
# A server that returns nothing for this long has lost a transition.
_TIMEOUT_MS = 60_000


@dataclasses.dataclass(frozen=True)
class StoredReplay:
    """The transitions of one replay server, and its counts.

    Attributes:
      priorities: [n] float64; of their items.
      times_sampled: [n] int64; of their items, each time with all of their transitions.
      rewards: [n] float32 n-step returns, as the learner gets them.
      discounts: [n] float32 n-step discounts; 0 where nothing is bootstrapped.
      max_size: transitions that the table can hold.
      num_inserted: transitions inserted since the beginning of the run.
      samples_per_insert: samples for each transition that its limiter allows.
      priority_exponent: alpha; 0 if the table is sampled uniformly.
    """

    priorities: np.ndarray
    times_sampled: np.ndarray
    rewards: np.ndarray
    discounts: np.ndarray
    max_size: int
    num_inserted: int
    samples_per_insert: float
    priority_exponent: float


def read(agent: Any, folder: Path, scratch: Path, num_shards: int) -> StoredReplay:
    """Reads the replay of one server from a checkpoint. Changes nothing there.

    Args:
      agent: `agents.off_policy_agent.OffPolicyAgent` of the run.
      folder: the part of the checkpoint.
      scratch: folder to make, which the caller deletes.
      num_shards: number of replay servers of the run.

    Raises:
      UsageError: if it is not the replay of such an agent.
    """
    if (folder / "rows.npy").exists():
        raise UsageError(
            "expected the replay of a run without --deterministic, got one that Reverb did not "
            "write; start a run without it"
        )
    (table,) = stored_tables.read(folder)
    copy = scratch / "copy"
    stored_tables.link(folder, copy)
    stored_tables.change(copy, _read_once)
    # Reverb removes an item at its n-th sample, but never if it had more before.
    priorities, times_sampled = stored_tables.reset_times_sampled(copy)
    with stored_tables.served(agent.make_tables(1, num_shards), scratch / "served", copy) as client:
        rewards, discounts = _rewards(client, agent.layout, len(priorities))
    limiter, length = table.rate_limiter, agent.layout.transitions_per_item
    return StoredReplay(
        np.repeat(priorities, length),
        np.repeat(times_sampled, length),
        rewards,
        discounts,
        max_size=length * table.max_size,
        num_inserted=length * limiter.insert_count,
        samples_per_insert=limiter.samples_per_insert,
        priority_exponent=table.sampler.prioritized.priority_exponent,
    )


def _read_once(table: Any) -> None:
    """Makes a table return each item once, the oldest first."""
    stored_tables.lift_limit(table)
    table.sampler.Clear()
    table.sampler.fifo = True
    table.sampler.is_deterministic = True
    table.max_times_sampled = 1


def _rewards(client: reverb.Client, layout: Layout, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Reads the rewards and the discounts of all transitions in `count` items."""
    dataset = reverb.TrajectoryDataset(
        client.server_address,
        TABLE,
        dtypes=tf.nest.map_structure(lambda spec: spec.dtype, layout.signature),
        shapes=tf.nest.map_structure(lambda spec: spec.shape, layout.signature),
        max_in_flight_samples_per_worker=_BATCH,
        num_workers_per_iterator=1,
        rate_limiter_timeout_ms=_TIMEOUT_MS,
    )
    rewards, discounts = [np.zeros(0, np.float32)], [np.zeros(0, np.float32)]
    length = layout.transitions_per_item
    for data in dataset.take(count).map(lambda sample: sample.data).batch(_BATCH):
        size = tf.nest.flatten(data)[0].shape[0]
        transitions = [
            layout.unpack(data, tf.fill([size], place) if length > 1 else None)
            for place in range(length)
        ]
        rewards.append(np.stack([each.reward for each in transitions], axis=1).ravel())
        discounts.append(np.stack([each.discount for each in transitions], axis=1).ravel())
    found = sum(map(len, rewards))
    expected = length * count
    if found != expected:
        raise RuntimeError(f"expected {expected} transitions of the replay, read {found}")
    return np.concatenate(rewards), np.concatenate(discounts)
