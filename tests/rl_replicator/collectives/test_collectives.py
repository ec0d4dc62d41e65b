"""Every collective against NumPy, values and gradients, on 1, 2 and 4 replicas.

tests/conformance/multi_worker_program.py has them between processes.
"""

import functools

import numpy as np
import pytest
import sonnet as snt
import tensorflow as tf

import rl_replicator as rr
from rl_replicator import collectives
from tests.rl_replicator.collectives import collective_cases as cases

pytestmark = pytest.mark.usefixtures("plain_graphs")
COUNTS = (1, 2, 4)
# The inputs of all collectives, for each number of replicas: one step each, because compilation
# takes most of the time.
SPECS = {
    1: cases.FIXED[:5],
    2: cases.FIXED,
    4: [cases.FIXED[0], ((3, 1), "float16"), ((), "int64")],
}


@functools.cache
def replicator(count):
    return rr.SingleDeviceReplicator() if count == 1 else rr.MultiDeviceReplicator(count)


def build(count, function):
    chosen = replicator(count)
    function = tf.autograph.experimental.do_not_convert(function)
    return chosen.replicate(function, chosen.make_inputs(lambda context: collectives.replica_id))


def ones(number):
    """Ones [number, 2], whose number of rows is unknown before the step runs."""
    zero = tf.cast(tf.random.uniform([]), tf.int32)  # TensorFlow cannot infer it.
    x = tf.ones([number + zero, 2])
    assert x.shape.as_list() == [None, 2]
    return x


def on_replicas(count, function):
    """Runs `function(replica number)` on each replica; returns the stacked outputs."""
    return replicator(count).gather(build(count, function)())


def test_sparse_rows():
    cases.check_slices(on_replicas(4, cases.slices_step(4)), 4)


def test_halves_add_up_in_float32():
    # 4 x 30000 is not a float16, but their mean is; 1 + 2**-8 is not a bfloat16.
    got = on_replicas(4, lambda i: collectives.all_mean(tf.constant(30000.0, tf.float16)))
    np.testing.assert_array_equal(got, [30000.0] * 4)
    small = [1.0, 2**-9, 2**-9, 2**-8]
    got = on_replicas(4, lambda i: collectives.all_sum(tf.constant(small, tf.bfloat16)[i]))
    np.testing.assert_array_equal(got.astype(np.float32), [1 + 2**-7] * 4)


def test_the_mean_of_integer_rows_is_float32():
    def step_fn(replica):
        rows = tf.fill([1, 2], tf.cast(replica + 3, tf.int32))
        slices = tf.IndexedSlices(rows, tf.constant([0]), tf.constant([2, 2]))
        return collectives.all_mean(slices).values

    for values in on_replicas(2, step_fn):
        assert values.dtype == np.float32
        np.testing.assert_array_equal(values[:, 0], [3 / 2, 4 / 2])


def test_shapes_known_only_when_it_runs():
    count = 2

    def step_fn(replica):
        x = ones(3)
        y = collectives.all_sum([x, tf.cast(x, tf.bfloat16)])
        return [*y, collectives.all_gather(x), collectives.broadcast(x), collectives.all_max(x)]

    total, halves, stacked, sent, largest = on_replicas(count, step_fn)
    np.testing.assert_array_equal(total, np.full([count, 3, 2], count))
    np.testing.assert_array_equal(halves.astype(np.float32), np.full([count, 3, 2], count))
    np.testing.assert_array_equal(stacked, np.ones([count, count, 3, 2]))
    for same in (sent, largest):
        np.testing.assert_array_equal(same, np.ones([count, 3, 2]))


@pytest.mark.parametrize("name", ["all_sum", "broadcast"])
def test_shapes_that_differ_when_it_runs(name):
    collective = getattr(collectives, name)
    step = build(2, lambda i: tf.reduce_sum(collective({"x": ones(i + 1), "y": 1.0})["x"]))
    with pytest.raises(tf.errors.InvalidArgumentError) as caught:
        step()
    assert "expected the same shapes on all replicas in " + name in str(caught.value)
    assert "[[1 2][2 2]]" in "".join(str(caught.value).split("\n"))


def disagreements():
    def zeros(*shape):
        return tf.zeros(shape)

    return {
        "shape": (
            lambda: collectives.all_sum(zeros(2)),
            lambda: collectives.all_sum(zeros(3)),
            r"call 1 replica 0 has all_sum of float32\(2,\), replica 1 has all_sum of .*\(3,\)",
        ),
        "kind": (
            lambda: collectives.all_sum(zeros(2)),
            lambda: collectives.all_mean(zeros(2)),
            r"has all_sum of .*has all_mean of ",
        ),
        "source": (
            lambda: collectives.broadcast(zeros(2), 0),
            lambda: collectives.broadcast(zeros(2), 1),
            r"broadcast from replica 0 of .*broadcast from replica 1 of ",
        ),
        "order": (
            lambda: [collectives.all_sum(zeros(2)), collectives.all_gather(zeros(2))],
            lambda: [collectives.all_gather(zeros(2)), collectives.all_sum(zeros(2))],
            r"call 1 replica 0 has all_sum of .*replica 1 has all_gather of ",
        ),
        "none": (
            lambda: collectives.all_sum({"a": zeros(2), "b": None}),
            lambda: collectives.all_sum({"a": None, "b": zeros(2)}),
            r"\{a: float32\(2,\), b: None\}.*\{a: None, b: float32\(2,\)\}",
        ),
        "number": (
            lambda: [collectives.all_sum(zeros(2)), collectives.all_sum(zeros(2))],
            lambda: collectives.all_sum(zeros(2)),
            r"call 2 replica 0 has all_sum of .*replica 1 has nothing",
        ),
        "fewer": (
            lambda: collectives.all_sum(zeros(2)),
            lambda: [collectives.all_sum(zeros(2)), collectives.all_sum(zeros(2))],
            r"call 2 replica 0 has nothing, replica 1 has all_sum of ",
        ),
    }


@pytest.mark.parametrize("name", disagreements())
def test_replicas_that_disagree_are_told_where(name):
    first, second, message = disagreements()[name]

    def step_fn(replica):
        (second if tf.get_static_value(replica) else first)()

    with pytest.raises(rr.ConfigError, match=message):
        build(2, step_fn)


def test_gradients_that_disagree_are_told_where():
    def step_fn(replica):
        x = tf.ones([2])
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = collectives.all_sum(x)
        return y if tf.get_static_value(replica) else tape.gradient(y, x)

    with pytest.raises(rr.ConfigError, match=r"has the gradient of all_sum of .* has nothing"):
        build(2, step_fn)


def hidden(kind, replica):
    """A collective that some replicas may not reach."""
    x = tf.cast(replica, tf.float32)
    if kind == "cond":
        return tf.cond(x < 1, lambda: collectives.all_sum(x), lambda: x)
    if kind == "while_loop":
        return tf.while_loop(lambda y: y < 1, lambda y: collectives.all_sum(y) + 1, [x])
    if kind == "function":
        return tf.function(collectives.broadcast)(x)
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = collectives.all_sum(x)
    return tf.cond(x < 1, lambda: tape.gradient(y, x), lambda: x)


@pytest.mark.parametrize(
    ("count", "kind"),
    [(1, "cond"), (2, "while_loop"), (1, "function"), (2, "gradient")],
)
def test_collectives_that_not_all_may_reach_are_refused(count, kind):
    with pytest.raises(rr.ConfigError, match=r"inside tf.cond, a loop on tensors or a nested"):
        build(count, lambda replica: hidden(kind, replica))


def test_what_is_not_hidden_passes():
    """Slots created in the step, higher-order gradients, and loops that only use the result."""
    with replicator(2).scope():
        model = snt.Linear(1)
        optimizer = replicator(2).wrap_optimizer(snt.optimizers.Adam(1e-2))

    def step_fn(replica):
        x = tf.ones([2, 3]) * (tf.cast(replica, tf.float32) + 1)
        with tf.GradientTape() as outer:
            outer.watch(x)
            with tf.GradientTape() as inner:
                inner.watch(x)
                y = tf.reduce_sum(collectives.all_sum(x) ** 3)
            slope = inner.gradient(y, x)
            loss = tf.reduce_mean(model(x))
        second, *gradients = outer.gradient([slope, loss], [x, *model.trainable_variables])
        optimizer.apply(gradients, model.trainable_variables)
        total = collectives.all_sum(x[0, 0])
        total = tf.while_loop(lambda y: y < 100.0, lambda y: y + 100.0, [total])[0]
        return slope[0, 0], total, second[0, 0] - model.w[0, 0] * 0

    slope, total, _ = on_replicas(2, step_fn)
    np.testing.assert_allclose(slope, [3 * 3**2 * 2] * 2)  # x is 1 and 2.
    np.testing.assert_allclose(total, [3 + 100] * 2)


def test_misuse_has_one_line():
    with pytest.raises(rr.ConfigError, match="expected one of sum, mean"):
        collectives.all_reduce(tf.constant(1.0), "median")
    with pytest.raises(rr.ConfigError, match=r"source_replica in \[0, 1\), got 1"):
        collectives.broadcast(tf.constant(1.0), 1)
    with pytest.raises(rr.ConfigError, match="expected one of sum, mean"):
        collectives.map_reduce(tf.square, [1.0], "median")
    with replicator(2).scope(), pytest.raises(rr.ConfigError, match="inside a replicated step"):
        collectives.all_sum(tf.constant(1.0))


def test_what_cannot_be_reduced_has_one_line():
    def step_fn(replica):
        rows = tf.IndexedSlices(tf.ones([1, 2]), tf.constant([0]), tf.constant([3, 2]))
        for function, value, message in (
            (collectives.all_sum, True, "numbers in a sum, got bools"),
            (collectives.all_max, tf.complex(1.0, 1.0), "real numbers in a max"),
            (collectives.all_min, rows, "expected dense tensors, got tf.IndexedSlices"),
            (collectives.all_gather, rows, "expected dense tensors, got tf.IndexedSlices"),
            (collectives.broadcast, [rows], "expected dense tensors, got tf.IndexedSlices"),
            (collectives.all_sum, "text", "numbers or bools in a collective, got string"),
            (collectives.all_mean, tf.ragged.constant([[1], []]), "got a RaggedTensor"),
        ):
            with pytest.raises(rr.ConfigError, match=message):
                function(value)
        with pytest.raises(rr.ConfigError, match="numbers in a sum, got bools"):
            collectives.map_reduce(lambda x: x, [True, False])

    build(2, step_fn)


def test_values_of_unknown_rank_are_refused():
    def step_fn(replica):
        unknown = tf.compat.v1.placeholder_with_default(tf.ones([2]), None)
        with pytest.raises(rr.ConfigError, match="expected tensors of known rank in all_sum of"):
            collectives.all_sum(unknown)

    build(2, step_fn)


def test_each_replica_computes_its_own_items():
    computed = [[], []]

    def step_fn(replica):
        own = computed[tf.get_static_value(replica)]
        own.clear()  # A step may be traced again.

        def function(x):
            own.append(x)
            return tf.constant(x)

        return collectives.map_gather(function, [10, 11, 12])

    assert [x.tolist() for x in on_replicas(2, step_fn)] == [[10, 10], [11, 11], [12, 12]]
    assert computed == [[10, 12], [11, 12]]  # The second replica has no item in the last row.


@pytest.mark.slow
@pytest.mark.parametrize("count", COUNTS)
def test_values_and_gradients(count):
    xs = cases.draw(count, count, SPECS[count])
    cases.check(on_replicas(count, cases.make_step(xs, count, count)), xs, count, count)


@pytest.mark.slow
def test_maps():
    """With fewer items than replicas, with equal shares, and with more items for some replicas."""
    rng = np.random.default_rng(0)
    lists = [rng.integers(-8, 8, size=(length, 3)).astype(np.float32) for length in (1, 4, 3)]
    ops = {1: ("sum",), 4: (), 3: ("sum", "mean", "min", "max")}

    def step_fn(replica):
        def function(x):
            return {"square": x * x, "first": tf.cast(x[0], tf.int32), "none": None}

        return [
            (
                collectives.map_gather(function, list(xs)),
                [collectives.map_reduce(function, list(xs), op) for op in ops[len(xs)]],
            )
            for xs in lists
        ]

    for xs, (gathered, reduced) in zip(lists, on_replicas(2, step_fn), strict=True):
        for item, x in zip(gathered, xs, strict=True):
            np.testing.assert_array_equal(item["square"], [x**2] * 2)
        for op, result in zip(ops[len(xs)], reduced, strict=True):
            assert result["none"] is None
            for name, values in (("square", xs**2), ("first", xs[:, 0])):
                expected = getattr(np, op)(values, axis=0)
                np.testing.assert_allclose(result[name], [expected] * 2, 1e-6)


def test_a_variable_is_read_before_it_is_assigned_a_mean_of_the_same_call():
    # TensorFlow's graph optimization must keep the order.
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": False})
    with replicator(2).scope():
        variable = tf.Variable(0.0)

    def step_fn(replica):
        late = tf.random.normal([400, 400])
        for _ in range(6):
            late = tf.matmul(late, late) / 100
        with tf.control_dependencies([late]):
            value = variable.read_value()
        new, old = collectives.all_mean([ones(1)[0, 0], value])
        variable.assign(new)
        return new, old

    new, old = on_replicas(2, step_fn)
    assert (new.tolist(), old.tolist(), variable.numpy()) == ([1, 1], [0, 0], 1)
