"""What the collectives become on TPUs, which share one trace and sum at most 32 bits."""

import numpy as np
import tensorflow as tf

import rl_replicator as rr
from rl_replicator import collectives
from rl_replicator.collectives import sums
from tests.conformance.fake_tpu import CORES, FakeTPU, operations

BATCH, FEATURES = 8, 5


def test_every_collective_becomes_a_sum_across_cores():
    replicator = rr.TpuReplicator(resolver=FakeTPU())
    dtypes = set()

    def step_fn(x):
        kinds = {
            "all_reduce": [collectives.all_reduce(x, op) for op in ("sum", "mean", "min", "max")],
            "all_gather": collectives.all_gather((x, tf.constant(1))),
            "broadcast": collectives.broadcast(x, 1),
            "map_gather": collectives.map_gather(tf.sin, [x, x + 1, x + 2, x + 3, x + 4]),
            "replica": collectives.replica_id(),
        }
        graph = tf.compat.v1.get_default_graph()
        made = [op for op in graph.get_operations() if op.type == "CrossReplicaSum"]
        dtypes.update(op.get_attr("T").name for op in made)
        assert collectives.num_replicas() == CORES
        assert tf.get_static_value(kinds["replica"]) is None
        assert kinds["all_gather"][0].shape == (CORES, BATCH, FEATURES)
        return kinds

    inputs = replicator.make_inputs(lambda context: lambda: tf.zeros([BATCH, FEATURES]))
    found = operations(replicator.replicate(step_fn, inputs))
    assert found["CrossReplicaSum"] >= 8
    assert not [name for name in found if name.startswith("Collective")]
    assert dtypes == {"float32", "int32"}  # TPUs cannot add up 64 bits.


def test_64_bit_integers_are_summed_in_parts(monkeypatch):
    # The sum across cores cannot run here: a sum of equal replicas stands in.
    monkeypatch.setattr(sums, "_all_sum", lambda xs: [x * CORES for x in xs])
    bounds = np.iinfo(np.int64)
    numbers = np.random.default_rng(0).integers(bounds.min, bounds.max, (2, 9), np.int64)
    totals = sums._sum_in_parts([tf.constant(x) for x in numbers])
    for got, x in zip(totals, numbers, strict=True):
        np.testing.assert_array_equal(got.numpy(), x * CORES)
