"""A fake TPU, for tests of the graph that a step is traced to."""

import collections

import tensorflow as tf
from tensorflow.python.tpu import tpu_system_metadata

CORES = 4


class FakeTPU(tf.distribute.cluster_resolver.TPUClusterResolver):
    """Describes TPU cores that do not exist: enough to trace for, but not to run on."""

    def __init__(self):
        super().__init__("local")

    def get_tpu_system_metadata(self):
        names = [f"/job:localhost/replica:0/task:0/device:TPU:{i}" for i in range(CORES)]
        return tpu_system_metadata.TPUSystemMetadata(
            num_cores=CORES,
            num_hosts=1,
            num_of_cores_per_host=CORES,
            topology=None,
            devices=[tf.config.LogicalDevice(name, "TPU") for name in names],
        )


def operations(step):
    """Returns the number of operations of each type in a step's graph and its functions."""
    definition = step._compiled.graph.as_graph_def()
    nodes = [*definition.node, *(n for f in definition.library.function for n in f.node_def)]
    return collections.Counter(node.op for node in nodes)
