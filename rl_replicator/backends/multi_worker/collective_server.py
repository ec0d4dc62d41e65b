"""TensorFlow's server for collectives, as far as its public names do not go.

Private, for want of public names: joining a group without the coordination service (see health.py),
asking one process for a sign of life, ending the collectives that wait for a lost one, and the keys
by which collectives of different processes find each other.
"""

import tensorflow as tf
from tensorflow.python.distribute import collective_all_reduce_strategy, cross_device_utils
from tensorflow.python.eager import context as eager_context

from rl_replicator import errors
from rl_replicator.backends.multi_worker import health
from rl_replicator.jobs import cluster as cluster_lib

# The probe holds Python's lock while it waits, so it may not wait long.
_PROBE_MILLISECONDS = 250


def join(cluster: cluster_lib.Cluster, tasks: list[tuple[str, int]]) -> tf.distribute.Strategy:
    """Starts TensorFlow's server for this process; waits for nobody.

    Args:
      cluster: names the own task.
      tasks: those that take part, type and index.

    Raises:
      ConfigError: TensorFlow's devices are in use already, or the server cannot start.
    """
    members = {kind: list(cluster.addresses[kind]) for kind, _ in tasks}
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec(members),
        task_type=cluster.task_type,
        task_id=cluster.task_index,
        rpc_layer="grpc",
        num_accelerators={"GPU": len(tf.config.get_visible_devices("GPU"))},
    )
    # An empty type keeps the strategy from configuring one; and health.py does the watching.
    eager_context.context().configure_coordination_service("")
    collective_all_reduce_strategy.CollectiveAllReduceExtended._enable_check_health = False
    # A collective has one key for good. The other way, a new key in every call, does not reach
    # collectives inside the conditions and loops of a compiled step.
    cross_device_utils.CollectiveReplicaLauncher._prefer_unique_instance_key = False
    try:
        return tf.distribute.MultiWorkerMirroredStrategy(resolver)
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


def probe(task: str) -> health.Answer:
    """Asks a process, such as "/job:worker/replica:0/task:1", for a sign of life."""
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
    """Ends all collectives of this process, for good; those of others that wait for it end too."""
    eager_context.context().abort_collective_ops(tf.errors.ABORTED, reason)


def number_collectives(strategy: tf.distribute.Strategy, first: int) -> None:
    """Has the collectives that are made from now on numbered from `first`."""
    for devices in strategy.extended._collective_keys._instance_key_table.values():
        for device in devices:
            devices[device] = first
