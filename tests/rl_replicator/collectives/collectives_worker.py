"""One of several processes that run all collectives. Started by test_collectives.py.

TF_CONFIG=... python collectives_worker.py
"""

import numpy as np
import pytest
import tensorflow as tf

import rl_replicator as rr
from rl_replicator import collectives
from tests.rl_replicator.collectives import collective_cases as cases


def main():
    replicator = rr.make("multi_worker")
    count = replicator.num_replicas
    inputs = replicator.make_inputs(lambda context: collectives.replica_id)

    def ones(number):
        """Ones [number], whose length is not known statically."""
        return tf.ones([number + tf.cast(tf.random.uniform([]), tf.int32)])

    def run(step_fn):
        step_fn = tf.autograph.experimental.do_not_convert(step_fn)
        return replicator.gather(replicator.replicate(step_fn, inputs)())

    xs = cases.draw(0, count, cases.FIXED)
    cases.check(run(cases.make_step(xs, count, 0)), xs, count, 0)
    cases.check_slices(run(cases.slices_step(count)), count)

    def no_rows(replica):
        nothing = ones(0)
        empty = nothing[:, tf.newaxis] * [1.0, 1.0]
        rows = tf.IndexedSlices(empty, tf.cast(nothing, tf.int32), tf.constant([3, 2]))
        return tf.convert_to_tensor(collectives.all_sum(rows)), collectives.all_sum(tf.shape(empty))

    dense, shape = run(no_rows)
    assert not dense.any() and shape.tolist() == [[0, 2 * count]] * count

    def same_shapes(replica):
        return collectives.all_sum(ones(2))

    assert run(same_shapes).tolist() == [[count, count]] * count
    assert (
        run(lambda i: collectives.map_gather(lambda x: x * 2, [1, 2, 3]))[2].tolist() == [6] * count
    )
    means = run(lambda i: collectives.map_reduce(tf.square, [1.0, 2.0, 3.0], "mean"))
    np.testing.assert_allclose(means, [14 / 3] * count, 1e-6)

    def other_order(replica):
        first, second = (tf.zeros([2]), tf.zeros([3]))
        if replicator.process_index:
            first, second = second, first
        return collectives.all_sum(first), collectives.all_sum(second)

    with pytest.raises(rr.ConfigError, match=r"all_sum of float32\(2,\).*all_sum of float32\(3,\)"):
        run(other_order)

    with pytest.raises(tf.errors.InvalidArgumentError, match="same shapes on all replicas"):
        run(lambda replica: tf.reduce_sum(collectives.all_sum(ones(replica + 1))))
    print("all done")


if __name__ == "__main__":
    main()
