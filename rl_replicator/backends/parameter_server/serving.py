"""The workers and parameter servers, which serve the coordinator until it ends."""

import importlib
import importlib.util
import logging
import sys
import time
from typing import NoReturn

import tensorflow as tf

from rl_replicator import errors
from rl_replicator.backends.parameter_server import watch
from rl_replicator.jobs import cluster as cluster_lib
from rl_replicator.jobs import ports

_INTERVAL = 0.5
# A coordinator has ended if it refuses this many connections in a row, or if its machine does not
# answer for this many seconds.
_REFUSALS = 3
_UNREACHABLE_SECONDS = 30.0


def serve(cluster: cluster_lib.Cluster, start_timeout: float) -> NoReturn:
    """Serves the coordinator, and ends this process with status 0 when the coordinator has ended.

    So no process outlives the program, however the program ends. On several machines, each process
    has its own supervisor. If the coordinator dies, its supervisor restarts it: this process serves
    the new coordinator, or ends if none starts in time.

    Args:
      cluster: cluster in which this process is a worker or a parameter server.
      start_timeout: seconds to wait for the coordinator to start; on several machines, also to be
        restarted.

    Raises:
      ConfigError: if the port of this process is not free.
      WorkerLost: if the coordinator did not start.
      SystemExit: if the coordinator has ended.
    """
    ports.check_may_listen(cluster.own_address, cluster.all_addresses)
    if importlib.util.find_spec("reverb") is not None:
        importlib.import_module("reverb")  # Registers the ops of datasets that sample from a table.
    ports.bypass_proxy(cluster.all_addresses)
    server = tf.distribute.Server(
        tf.train.ClusterSpec(dict(cluster.addresses)),
        job_name=cluster.task_type,
        task_index=cluster.task_index,
        protocol="grpc",
    )
    is_one_machine = ports.confine_if_local(cluster.own_address, cluster.all_addresses)
    coordinator = cluster.address("chief", 0)
    if watch.wait_until_reachable([coordinator], start_timeout):
        raise errors.WorkerLost(
            f"expected the coordinator, chief 0 ({coordinator}), to start, but it did not within "
            f"{start_timeout:g} s; start all processes together, or give a longer start_timeout"
        )
    _wait_for_end_of(coordinator)
    while not is_one_machine:  # On one machine, one supervisor restarts all processes.
        logging.getLogger(__name__).warning(
            "the coordinator (%s) is gone; waiting %g s for it to be restarted",
            coordinator,
            start_timeout,
        )
        if watch.wait_until_reachable([coordinator], start_timeout):
            break
        _wait_for_end_of(coordinator)
    del server
    sys.exit(0)


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
        except OSError:  # The machine or the network does not answer.
            refusals = 0
