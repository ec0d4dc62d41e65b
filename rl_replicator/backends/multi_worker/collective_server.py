"""TensorFlow's server for collectives, which needs private names of TensorFlow.

TensorFlow has no public API for the following: joining a group without the coordination service
(see health.py), probing a process, aborting the collectives that wait for a lost process, and
setting the keys by which collectives of different processes are matched.
"""

import tensorflow as tf
from tensorflow.python.distribute import collective_all_reduce_strategy, cross_device_utils
from tensorflow.python.eager import context as eager_context

from rl_replicator import errors
from rl_replicator.backends.multi_worker import health
from rl_replicator.jobs import cluster as cluster_lib
from rl_replicator.jobs import ports

# The probe holds the GIL while it waits, so it must be short.
_PROBE_MILLISECONDS = 250


def join(cluster: cluster_lib.Cluster, tasks: list[tuple[str, int]]) -> tf.distribute.Strategy:
    """Starts TensorFlow's server for this process, without waiting for the others.

    Args:
      cluster: the cluster.
      tasks: type and index of the tasks that take steps.

    Returns:
      The strategy.

    Raises:
      ConfigError: if TensorFlow's devices are in use already, or the server cannot start.
    """
    ports.bypass_proxy(cluster.all_addresses)
    members = {kind: list(cluster.addresses[kind]) for kind, _ in tasks}
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec(members),
        task_type=cluster.task_type,
        task_id=cluster.task_index,
        rpc_layer="grpc",
        num_accelerators={"GPU": len(tf.config.get_visible_devices("GPU"))},
    )
    # Disables the coordination service and the health check, because health.py replaces them. With
    # an empty type, the strategy does not configure a service of its own.
    eager_context.context().configure_coordination_service("")
    collective_all_reduce_strategy.CollectiveAllReduceExtended._enable_check_health = False
    # A collective uses the same key in every call. The alternative, a new key for every call, does
    # not work for collectives inside the conditions and loops of a compiled step.
    cross_device_utils.CollectiveReplicaLauncher._prefer_unique_instance_key = False
    try:
        strategy = tf.distribute.MultiWorkerMirroredStrategy(resolver)
    except RuntimeError as error:
        if "program startup" not in str(error):
            raise
        raise errors.ConfigError(
            "expected TensorFlow's devices to be unused, but they are in use already; create the "
            "MultiWorkerReplicator before the first tensor, variable or other replicator"
        ) from None
    except tf.errors.OpError as error:
        raise errors.ConfigError(
            f"expected TensorFlow's server to start at {cluster.own_address}, got "
            f"{error.message.splitlines()[0]}; choose a free port for it"
        ) from None
    ports.confine_if_local(cluster.own_address, cluster.all_addresses)
    return strategy


def probe(task: str) -> health.Answer:
    """Probes whether a process answers.

    Args:
      task: name of the process, such as "/job:worker/replica:0/task:1".
    """
    try:
        eager_context.context().check_collective_ops_peer_health(
            task, timeout_in_ms=_PROBE_MILLISECONDS
        )
    except tf.errors.DeadlineExceededError:
        return health.Answer.SILENT
    except tf.errors.FailedPreconditionError:
        return health.Answer.RESTARTED
    except tf.errors.OpError:
        return health.Answer.UNREACHABLE
    return health.Answer.ALIVE


def abort(reason: str) -> None:
    """Aborts all collectives of this process, and those of other processes that wait for it.

    Later collectives of this process fail.

    Args:
      reason: message of the errors.
    """
    eager_context.context().abort_collective_ops(tf.errors.ABORTED, reason)


def number_collectives(strategy: tf.distribute.Strategy, first: int) -> None:
    """Sets the key of the next collective that is traced; the keys of later ones increase.

    Args:
      strategy: strategy whose collectives to number.
      first: key of the next collective.
    """
    for devices in strategy.extended._collective_keys._instance_key_table.values():
        for device in devices:
            devices[device] = first
