"""The processes that a coordinator gives work to: they serve until it is gone."""

import importlib
import importlib.util
import sys
import time
from typing import NoReturn

import tensorflow as tf

from rl_replicator import errors
from rl_replicator.jobs import cluster as cluster_lib
from rl_replicator.jobs import ports

_INTERVAL = 0.5
# A coordinator that refuses so many connections in a row has ended; one whose machine does not
# answer at all may come back for so many seconds.
_REFUSALS = 3
_UNREACHABLE_SECONDS = 30.0


def serve(cluster: cluster_lib.Cluster, start_timeout: float) -> NoReturn:
    """Runs what the coordinator sends, and ends the process when the coordinator is gone.

    The process ends with status 0, so that nothing outlives a program that has ended, however it
    did.

    Args:
      cluster: whose own task is a worker or a parameter server.
      start_timeout: seconds for the coordinator to come.

    Raises:
      ConfigError: the own port is not free.
      WorkerLost: the coordinator did not come.
      SystemExit: it came and went.
    """
    ports.check_is_free(cluster.own_address)
    if importlib.util.find_spec("reverb") is not None:
        importlib.import_module("reverb")  # For the operations of datasets that read from a table.
    server = tf.distribute.Server(
        tf.train.ClusterSpec(dict(cluster.addresses)),
        job_name=cluster.task_type,
        task_index=cluster.task_index,
        protocol="grpc",
    )
    coordinator = cluster.address("chief", 0)
    _wait_for(coordinator, start_timeout)
    _wait_for_end_of(coordinator)
    del server
    sys.exit(0)


def _wait_for(coordinator: str, timeout: float) -> None:
    deadline = time.monotonic() + timeout
    while True:
        try:
            return ports.check_reachable(coordinator)
        except OSError:
            if time.monotonic() > deadline:
                raise errors.WorkerLost(
                    f"expected the coordinator, chief 0 ({coordinator}), to start, but it did not "
                    f"within {timeout:g} s; start all processes together, or give a longer "
                    "start_timeout"
                ) from None
        time.sleep(_INTERVAL)


def _wait_for_end_of(coordinator: str) -> None:
    refusals = 0
    answered = time.monotonic()
    while refusals < _REFUSALS and time.monotonic() - answered < _UNREACHABLE_SECONDS:
        time.sleep(_INTERVAL)
        try:
            ports.check_reachable(coordinator)
            refusals, answered = 0, time.monotonic()
        except ConnectionRefusedError:
            refusals += 1
        except OSError:  # No answer: the machine, or the network.
            refusals = 0
