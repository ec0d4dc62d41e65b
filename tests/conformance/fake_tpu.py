"""A TPU that is not there, for tests of what a step is traced to."""

import collections

import tensorflow as tf
from tensorflow.python.tpu import tpu_system_metadata

CORES = 4


class FakeTPU(tf.distribute.cluster_resolver.TPUClusterResolver):
    """Describes TPU cores that are not there: enough to trace for, not to run on."""

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
    """How many operations of each type a step consists of, loops and all."""
    definition = step._compiled.graph.as_graph_def()
    nodes = [*definition.node, *(n for f in definition.library.function for n in f.node_def)]
    return collections.Counter(node.op for node in nodes)
