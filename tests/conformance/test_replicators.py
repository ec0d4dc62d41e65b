"""The contract of replicators, for every backend that runs in one process.

For backends of several processes, multi_worker_program.py and asynchronous_program.py test the same
contract; for TPUs, test_tpu.py only tests tracing.
"""

import functools
import threading
import time

import numpy as np
import pytest
import sonnet as snt
import tensorflow as tf

import rl_replicator as rr
from rl_replicator.step import results
from tests.conformance import multi_worker_program, regression

NAMES = ("single_device", "multi_device:4", "mesh:data=2,model=2")
# Features that the contract leaves optional: backend -> those that it refuses with a one-line
# error. All others work.
REFUSED = {
    "mesh": {
        "python in the step",
        "masks that change shapes",
        "sparse updates",
    },
}
GLOBAL_BATCH = 16
FEATURES = 5
DATA = np.random.default_rng(0).normal(size=(64, FEATURES)).astype(np.float32)


@pytest.fixture(scope="module", params=NAMES)
def name(request):
    return request.param


@pytest.fixture(scope="module")
def replicator(name):
    return rr.make(name)


def batches(context):
    size = context.per_replica_batch_size(GLOBAL_BATCH)
    return tf.data.Dataset.from_tensor_slices(DATA).batch(size).repeat()


def make_learner(replicator, optimizer_class=snt.optimizers.Adam, **wrap_options):
    """Returns an MLP with LayerNorm and fixed weights, its optimizer and its step function."""
    with replicator.scope():
        model = snt.Sequential(
            [
                snt.Linear(16, w_init=snt.initializers.Constant(0.0)),
                snt.LayerNorm(-1, True, True),
                tf.tanh,
                snt.Linear(1, w_init=snt.initializers.Constant(0.0)),
            ]
        )
        model(tf.zeros([1, FEATURES]))
        optimizer = replicator.wrap_optimizer(optimizer_class(1e-2), **wrap_options)
    regression.set_weights(model)
    return model, optimizer, regression.make_step_fn(model, optimizer)


def train(replicator, steps, steps_per_call=None, **options):
    """Trains from fixed initial weights, and checks that the replicas' copies stay equal.

    Returns:
      The weights and the losses (mean over replicas) after `steps` steps.
    """
    model, _, step_fn = make_learner(replicator, **options)
    before = [variable.numpy() for variable in model.trainable_variables]
    step = replicator.replicate(step_fn, replicator.make_inputs(batches), steps_per_call)
    calls = steps // (steps_per_call or 1)
    losses = np.concatenate(
        [np.atleast_1d(replicator.reduce("mean", step())) for _ in range(calls)]
    )
    for variable, start in zip(model.trainable_variables, before, strict=True):
        copies = getattr(variable, "values", (variable,))
        assert np.abs(copies[0].numpy() - start).max() > 1e-2  # 20 steps of Adam: at most 0.2.
        for copy in copies[1:]:
            np.testing.assert_array_equal(copy.numpy(), copies[0].numpy())
    return [v.numpy() for v in model.trainable_variables], losses


@functools.cache
def reference(**options):
    return train(rr.SingleDeviceReplicator(), 20, **options)


def counter_step(replicator):
    """Returns two counters and a step function; the second counter depends on the input."""
    with replicator.scope():
        before = tf.Variable(0, dtype=tf.int64, trainable=False)
        after = tf.Variable(0, dtype=tf.int64, trainable=False)

    def step_fn(x):
        before.assign_add(1)
        after.assign_add(tf.cast(x * 0 + 1, tf.int64))
        return x

    return before, after, step_fn


def blocking(ready, release):
    """Returns an input function whose dataset waits for `release` after `ready` numbers."""

    def numbers():
        for i in range(10_000):
            if i == ready:
                release.wait(60)
            yield float(i)

    return lambda context: tf.data.Dataset.from_generator(
        numbers, output_signature=tf.TensorSpec([], tf.float32)
    )


# Those of several processes that hold in one as well.
BEHAVIOURS = (
    pytest.param(
        "order_gather_and_reduce", marks=pytest.mark.cpu("a mesh of GPUs takes no strings")
    ),
    "callable_input",
    "two_steps_share_one_input",
)


@pytest.mark.parametrize("behaviour", BEHAVIOURS)
def test_behaviour_of_several_processes(replicator, behaviour):
    getattr(multi_worker_program, behaviour)(replicator)


def test_equals_one_replica_with_the_global_batch(replicator):
    """With a loop, a fused optimizer and clipping; test_equality.py trains without them."""
    # 20 steps in float32: only the order of the sums over the batch differs.
    options = {"optimizer_class": rr.optimizers.Adam, "max_global_norm": 0.5}
    expected, expected_losses = reference(**options)
    weights, losses = train(replicator, 20, 5, **options)
    assert expected_losses[-1] < expected_losses[0]
    np.testing.assert_allclose(losses, expected_losses, rtol=1e-5)
    for got, want in zip(weights, expected, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


def test_a_closed_input_ends_the_step(replicator):
    release = threading.Event()
    inputs = replicator.make_inputs(blocking(0, release))
    step = replicator.replicate(lambda x: x, inputs)
    threading.Timer(0.1, inputs.close).start()
    for _ in range(2):
        with pytest.raises(rr.EndOfData, match="closed"):
            step()
    release.set()


def outputs_of(values, replicator):
    """Returns values, one for each replica, as the outputs of a step."""
    values = tuple(values)[: replicator.num_replicas]
    return values[0] if len(values) == 1 else results.PerReplica(values)


def test_what_is_gathered_and_reduced(replicator):
    n = replicator.num_replicas
    for op, value, message in (
        ("median", 1.0, "expected one of sum, mean"),
        ("sum", True, r"expected numbers in a sum, got bools at \['a'\]"),
        ("mean", b"text", r"expected numbers or bools to reduce, got strings at \['a'\]"),
        ("min", 1j, r"expected real numbers in a min, got complex128 at \['a'\]"),
    ):
        outputs = {"a": outputs_of([tf.constant(value)] * 4, replicator), "b": None}
        with pytest.raises(rr.ConfigError, match=message) as error:
            replicator.reduce(op, outputs)
        assert "\n" not in str(error.value)
    outputs = outputs_of([tf.constant([True, i == 0]) for i in range(4)], replicator)
    assert replicator.reduce("mean", outputs).tolist() == [1.0, 1 / n]
    assert replicator.reduce("min", outputs).tolist() == [True, n == 1]
    assert replicator.reduce("max", outputs).tolist() == [True, True]
    texts = [tf.constant(b"%d\0" % i) for i in range(n)]
    gathered = replicator.gather(outputs_of(texts, replicator))
    assert gathered.dtype == object and gathered.tolist() == [x.numpy() for x in texts]
    if n > 1:
        different = {"a": outputs_of([tf.zeros([1 + i, 2]) for i in range(4)], replicator)}
        with pytest.raises(rr.ConfigError, match=r"\['a'\].*\(1, 2\), \(2, 2\)"):
            replicator.gather(different)
        plain = {"a": tf.constant(1.0), "b": 2.0}  # The outputs of one replica, and a number.
        with pytest.raises(rr.ConfigError, match=rf"outputs of {n} .*, got 1 at \['a'\]; use"):
            replicator.reduce("sum", plain)
        assert replicator.reduce("sum", plain["b"]) == 2.0 * n


def test_a_callable_input_is_cancelled_and_closed(replicator):
    inputs = replicator.make_inputs(lambda context: lambda: rr.collectives.replica_id())
    step = replicator.replicate(lambda x: x * 10, inputs, steps_per_call=2)
    step.cancel()
    with pytest.raises(rr.StepCancelled):
        step()
    assert replicator.reduce("sum", step()).shape == (2,)
    inputs.close()
    with pytest.raises(rr.EndOfData, match="closed"):
        step()


BRANCHES = {
    "the variable": (lambda a, n: a.assign(n), lambda a: a),
    "assignments": (lambda a, n: a.assign_add(n), lambda a: a.assign_sub(1.0)),
    "nothing": (lambda a, n: tf.group(a.assign(n)), lambda a: tf.no_op()),
}


def in_a_branch(choose):
    def branch():
        choose()
        return tf.constant(0)

    tf.cond(tf.constant(True), branch, lambda: tf.constant(1))


def in_a_function(choose):
    def function(x):
        choose()
        return x + 1

    return tf.function(function)(tf.constant(0))


def as_the_result_of_a_function(choose):
    tf.function(choose)()


def in_a_loop(choose):
    def body(i):
        choose()
        return i + 1

    return tf.while_loop(lambda i: i < 1, body, [0])


def as_a_variable_of_a_loop(choose):
    return tf.while_loop(lambda i, _: i < 1, lambda i, _: (i + 1, choose() * 1.0), [0, 0.0])[0]


def in_what_is_not_used(choose):
    return tf.function(lambda: (choose() * 2.0, tf.constant(1))[1])()


PLACES = (
    in_a_branch,
    in_a_function,
    as_the_result_of_a_function,
    in_a_loop,
    as_a_variable_of_a_loop,
    in_what_is_not_used,
)


def test_assignments_of_a_cond_whose_result_is_not_used(replicator):
    with replicator.scope():
        values = {branches: tf.Variable(0.0) for branches in BRANCHES}
        sums = [tf.Variable(0.0) for _ in PLACES]
        count = tf.Variable(0, dtype=tf.int64)

    def step_fn(x):
        count.assign_add(1)
        number, is_due = tf.cast(count, tf.float32), count % 2 == 0
        for branches, (assign, keep) in BRANCHES.items():
            value = values[branches]
            tf.cond(is_due, lambda a=assign, v=value: a(v, number), lambda k=keep, v=value: k(v))
        for place, value in zip(PLACES, sums, strict=True):
            place(lambda v=value: tf.cond(is_due, lambda: v.assign_add(1.0), v.read_value))
        return tf.reduce_sum(x)

    inputs = replicator.make_inputs(
        lambda context: tf.data.Dataset.from_tensors(tf.ones([4])).repeat()
    )
    step = replicator.replicate(step_fn, inputs, steps_per_call=4)
    assert (replicator.gather(step()) == 4.0).all()
    got = {branches: value.numpy() for branches, value in values.items()}
    assert got == {**dict.fromkeys(BRANCHES, 4.0), "assignments": 0.0 - 1.0 + 2.0 - 1.0 + 4.0}
    assert [value.numpy() for value in sums] == [2.0] * len(PLACES)


def test_variables_may_appear_in_the_first_step(replicator):
    made = []

    def step_fn(x):
        if not made:
            starts = (1.0, np.ones([2], np.float32), [tf.constant(1.0), 1.0], tf.ones([2]))
            made.extend(tf.Variable(start) for start in starts)
            made.append(tf.Variable(lambda: tf.random.normal([2])))
        for variable in made:
            variable.assign_add(tf.ones_like(variable))
        return [variable.read_value() for variable in made]

    step = replicator.replicate(step_fn, replicator.make_inputs(batches), 2)
    starts = [variable.numpy() for variable in made]
    assert all((start == 1.0).all() for start in starts[:-1])
    for copies, start in zip(replicator.gather(step()), starts, strict=True):
        for copy in copies:
            np.testing.assert_allclose(copy, [start + 1, start + 2], rtol=1e-6)


def test_cancel_ends_a_step_that_waits_and_leaves_no_trace(replicator):
    n = replicator.num_replicas
    release = threading.Event()
    ready = 2 * n + (1 if n > 1 else 0)  # Two steps and, with several replicas, a part of a third.
    before, after, step_fn = counter_step(replicator)
    step = replicator.replicate(step_fn, replicator.make_inputs(blocking(ready, release)), 3)
    step.cancel()  # Not lost, although no call waits.
    with pytest.raises(rr.StepCancelled):
        step()

    def cancel_when_it_waits():
        while after.numpy() < 2:
            time.sleep(0.01)
        time.sleep(0.2)
        step.cancel()

    threading.Thread(target=cancel_when_it_waits, daemon=True).start()
    with pytest.raises(rr.StepCancelled):
        while True:
            step()
    assert (before.numpy(), after.numpy()) == (2, 2)
    release.set()
    outputs = step()  # It continues with the data that has arrived.
    assert replicator.gather(outputs).ravel()[0] == 2 * n
    assert (before.numpy(), after.numpy()) == (5, 5)


def test_end_of_data(replicator):
    n = replicator.num_replicas
    before, after, step_fn = counter_step(replicator)
    source = tf.data.Dataset.range(3 * n).map(lambda i: tf.cast(i, tf.float32))
    step = replicator.replicate(step_fn, replicator.make_inputs(lambda context: source))
    for _ in range(3):
        step()
    for _ in range(2):
        with pytest.raises(rr.EndOfData):
            step()
    assert (before.numpy(), after.numpy()) == (3, 3)


def test_misuse_has_one_line(replicator):
    with rr.make("multi_device:2").scope():
        other = tf.Variable(1.0, name="of_another", trainable=False)
    inputs = replicator.make_inputs(lambda context: lambda: tf.constant(1.0))
    outside = tf.Variable([1.0, 2.0], name="from_outside")
    with pytest.raises(rr.ConfigError, match=r"'from_outside:0' \(2,\) from outside"):
        replicator.replicate(lambda x: outside.assign_add([x, x]), inputs)
    match = "not depend on the step for variable 'late', got .*; create it before `replicate`"
    with pytest.raises(rr.ConfigError, match=match):
        replicator.replicate(
            lambda x: tf.Variable(tf.reduce_sum(x), name="late").read_value(),
            replicator.make_inputs(batches),
        )
    with pytest.raises(rr.ConfigError, match="from outside"):
        replicator.replicate(
            lambda x: (
                tf.raw_ops.ReadVariableOp(resource=other.values[0].handle, dtype=tf.float32) + x
            ),
            inputs,
        )
    for steps in (0, 1.5, "2"):
        match = f"steps_per_call to be a whole number of at least 1, got {steps!r}"
        with pytest.raises(rr.ConfigError, match=match):
            replicator.replicate(lambda x: x, inputs, steps_per_call=steps)
    with pytest.raises(rr.ConfigError, match="check_every to be a whole number"):
        replicator.replicate(lambda x: x, inputs, check_every=0)
    with pytest.raises(rr.ConfigError, match="expected input_fn to return"):
        replicator.make_inputs(lambda context: 3)


def sparse_update(replicator):
    """Takes a step that applies `tf.IndexedSlices`; returns whether it updated the right row."""
    with replicator.scope():
        table = tf.Variable(tf.ones([3, 2]))
        optimizer = replicator.wrap_optimizer(snt.optimizers.SGD(1.0))

    def step_fn(x):
        rows = tf.IndexedSlices(tf.ones([1, 2]), tf.constant([1]), tf.constant([3, 2]))
        optimizer.apply([rows], [table])
        return x

    run(replicator, step_fn)
    return table.numpy()[:, 0].tolist() == [1, 0, 1]


def rows(replicator):
    """Replaces rows and reads elements of a variable in a step; returns whether both worked."""
    with replicator.scope():
        table = tf.Variable(tf.ones([3, 2]), trainable=False)

    def step_fn(x):
        rows = tf.fill([2, 2], 5.0)
        table.assign(tf.tensor_scatter_nd_update(table, [[2], [0]], rows))
        return tf.gather_nd(table, [[0, 1], [1, 0]])

    return run(replicator, step_fn).tolist() == [5, 1] and table.numpy()[2].tolist() == [5, 5]


def run(replicator, step_fn):
    """Returns the first replica's output of one step."""
    step = replicator.replicate(step_fn, replicator.make_inputs(batches))
    return replicator.gather(step())[0]


OPTIONAL = {
    "python in the step": lambda r: (
        run(r, lambda x: tf.numpy_function(lambda: np.float32(7), [], tf.float32)) == 7
    ),
    "masks that change shapes": lambda r: (
        run(r, lambda x: tf.reduce_min(tf.boolean_mask(x, x > 0))) > 0
    ),
    "sparse updates": sparse_update,
    "rows": rows,
}


@pytest.mark.parametrize("feature", OPTIONAL)
def test_every_feature_works_or_is_refused(replicator, name, feature):
    if feature not in REFUSED.get(name.partition(":")[0], ()):
        assert OPTIONAL[feature](replicator)
        return
    with pytest.raises(rr.ConfigError, match="^expected ") as error:
        OPTIONAL[feature](replicator)
    assert "\n" not in str(error.value)
