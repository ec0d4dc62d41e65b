"""Communication between the replicas of a step, in the style of MPI."""

from rl_replicator.collectives.collectives import (
    all_gather,
    all_max,
    all_mean,
    all_min,
    all_reduce,
    all_sum,
    broadcast,
    map_gather,
    map_reduce,
    replica_seed,
)
from rl_replicator.collectives.sums import num_replicas, replica_id

__all__ = [
    "all_gather",
    "all_max",
    "all_mean",
    "all_min",
    "all_reduce",
    "all_sum",
    "broadcast",
    "map_gather",
    "map_reduce",
    "num_replicas",
    "replica_id",
    "replica_seed",
]
