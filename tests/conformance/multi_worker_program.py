"""Runs behaviours one after another, as one worker of a group, for test_multi_worker.py.

    TF_CONFIG=... python -m tests.conformance.multi_worker_program REPORT NAME [NAME ...]

Every worker writes to REPORT.<its index>, as JSON, the result of each named behaviour (None, or the
traceback of its failure) and further details.
"""

import faulthandler
import json
import os
import pathlib
import signal
import sys
import threading
import time
import traceback

import numpy as np
import pytest
import sonnet as snt
import tensorflow as tf
from tensorflow.python.framework import op_callbacks

import rl_replicator as rr
from docs.examples import keras_learner
from rl_replicator import checkpoints, errors
from rl_replicator.backends.multi_worker import channel
from rl_replicator.checkpoints import parts
from rl_replicator.learners.loop import Training
from rl_replicator.learners.run_options import RunOptions
from rl_replicator.runs.metrics import read_metrics
from rl_replicator.runs.run_directory import RunDirectory
from tests.conformance import regression
from tests.rl_replicator.collectives import collective_cases
from tests.rl_replicator.learners import tiny_learners

GLOBAL_BATCH = 12
FEATURES = 5
DATA = np.random.default_rng(0).normal(size=(96, FEATURES)).astype(np.float32)
# Timeouts under test are short; the others are long enough for a busy machine.
TIMEOUTS = {"start_timeout": 200, "peer_timeout": 30, "call_timeout": 200}
# The peer timeout in `a_frozen_worker`.
SECONDS_TO_FREEZE = 5
TIMEOUTS.update(json.loads(os.environ.get("TIMEOUTS", "{}")))
REPORT = {}
DETAILS = {}  # What a behaviour reports beyond success.


def batches(context):
    size = context.per_replica_batch_size(GLOBAL_BATCH)
    data = tf.data.Dataset.from_tensor_slices(DATA).batch(size, drop_remainder=True)
    return context.shard(data.repeat())


def numbers(context):
    return context.shard(tf.data.Dataset.range(10_000))


def ones(context):
    return lambda: tf.constant(1.0)


def make_learner(replicator):
    """Returns an MLP, its optimizer and its step function; the chief's initial weights apply."""
    with replicator.scope():
        model = snt.nets.MLP([16, 1], activation=tf.tanh)
        model(tf.zeros([1, FEATURES]))
        optimizer = replicator.wrap_optimizer(snt.optimizers.Adam(1e-2))
    replicator.build_optimizer(optimizer, model.trainable_variables)
    return model, optimizer, regression.make_step_fn(model, optimizer)


def train(replicator, steps):
    """Trains from fixed initial weights; returns the final weights and the losses of all steps."""
    model, _, step_fn = make_learner(replicator)
    regression.set_weights(model)
    step = replicator.replicate(step_fn, replicator.make_inputs(batches))
    losses = replicator.reduce("mean", [step() for _ in range(steps)])
    return [v.numpy().tolist() for v in model.trainable_variables], np.ravel(losses).tolist()


def equals_one_replica(replicator):
    DETAILS["trained"] = train(replicator, 20)


def places(replicator):
    task = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
    assert replicator.process_index == task and replicator.is_chief == (task == 0)
    assert replicator.num_local_replicas == 1
    assert replicator.num_processes == replicator.num_replicas
    with pytest.raises(rr.ConfigError, match="one MultiWorkerReplicator in a process"):
        rr.make("multi_worker")


def initial_values_are_the_chiefs(replicator):
    with replicator.scope():
        variable = tf.Variable(tf.random.normal([3]) + replicator.process_index)
    step = replicator.replicate(lambda x: variable * x, replicator.make_inputs(ones))
    values = replicator.gather(step())
    assert values.shape == (replicator.num_replicas, 3) and (values == values[0]).all()


def order_gather_and_reduce(replicator):
    n = replicator.num_replicas

    def elements(context):
        return numbers(context).map(
            lambda x: {
                "i": x,
                "u": tf.cast(x, tf.uint64) + 2**63,
                "h": tf.cast(x, tf.bfloat16),
                "s": tf.strings.as_string(x) + b"\0",
                "nothing": None,
            }
        )

    step = replicator.replicate(
        lambda element: {"f": tf.cast(element["i"], tf.float32) * [1.0, -1.0], **element},
        replicator.make_inputs(elements),
        steps_per_call=3,
    )
    for call in range(2):
        outputs = step()
        rows = (call * 3 * n + np.arange(3 * n)).reshape(3, n).T  # [N, K]
        got = replicator.gather(outputs)
        np.testing.assert_array_equal(got["i"], rows)
        np.testing.assert_array_equal(got["f"], np.stack([rows, -rows], axis=-1))
        np.testing.assert_array_equal(got["u"], rows.astype(np.uint64) + np.uint64(2**63))
        np.testing.assert_array_equal(got["h"].astype(np.float32), rows)
        assert got["s"].tolist() == [[b"%d\0" % i for i in row] for row in rows]
        assert got["nothing"] is None
        for op in ("mean", "sum", "min", "max"):
            assert (replicator.reduce(op, outputs["i"]) == getattr(np, op)(rows, axis=0)).all()
        mine = [result["i"] for result in replicator.local_results(outputs)]
        first = replicator.process_index
        np.testing.assert_array_equal(mine, rows[first:][: replicator.num_local_replicas])
    assert replicator.gather({"nothing": None}) == {"nothing": None}


def shapes_change_from_step_to_step(replicator):
    n, own = replicator.num_replicas, replicator.process_index
    lengths = [2, 3, 0, 300, 2, 1]  # Some sizes are new to a collective, others not.

    def input_fn(context):
        return tf.data.Dataset.from_tensor_slices(lengths)

    def collectives(length):
        index = rr.collectives.replica_id()
        x = tf.range(length)[:, tf.newaxis] * tf.constant([[1, 10]]) + index
        y = tf.cast(x, tf.float32)
        with tf.GradientTape() as tape:
            tape.watch(y)
            loss = tf.cast(index + 1, tf.float32) * rr.collectives.all_sum(y)
        fixed, both = rr.collectives.all_sum([tf.constant([1.0]), y])
        return {
            "gathered": rr.collectives.all_gather(x),
            "sum": both + 0 * fixed,
            "gradient": tape.gradient(loss, y),
            "complex": rr.collectives.all_sum(tf.complex(y, -y)),
            "max": rr.collectives.all_max(x),
        }

    step = replicator.replicate(collectives, replicator.make_inputs(input_fn))
    for length in lengths:
        results = replicator.local_results(step())[0]
        rows = np.arange(length)[:, np.newaxis] * [[1, 10]] + np.arange(n)[:, None, None]
        np.testing.assert_array_equal(results["gathered"], rows)
        np.testing.assert_array_equal(results["sum"], rows.sum(0))
        np.testing.assert_array_equal(results["gradient"], np.full([length, 2], n * (n + 1) / 2))
        np.testing.assert_array_equal(results["complex"], rows.sum(0) * (1 - 1j))
        np.testing.assert_array_equal(results["max"], rows.max(0))

    with replicator.scope():
        table = tf.Variable(tf.zeros([4, 2]))
        optimizer = replicator.wrap_optimizer(snt.optimizers.SGD(0.5))

    def sparse_step(length):
        with tf.GradientTape() as tape:
            rows = tf.gather(table, tf.range(length * (1 + rr.collectives.replica_id())) % 4)
            loss = tf.reduce_sum(rows)
        optimizer.apply([tape.gradient(loss, table)], [table])
        return loss

    step = replicator.replicate(sparse_step, replicator.make_inputs(input_fn), 3)
    expected = np.zeros(4)
    for start in (0, 3):
        losses = replicator.local_results(step())[0]
        for length, loss in zip(lengths[start:], losses, strict=False):
            counts = [np.bincount(np.arange(length * (1 + i)) % 4, minlength=4) for i in range(n)]
            np.testing.assert_allclose(loss, 2 * (counts[own] * expected).sum(), rtol=1e-5)
            expected -= 0.5 * np.mean(counts, axis=0)
    np.testing.assert_allclose(table.numpy(), np.stack([expected] * 2, 1), rtol=1e-5)


def every_collective_equals_numpy(replicator):
    n = replicator.num_replicas
    inputs = replicator.make_inputs(lambda context: rr.collectives.replica_id)

    def run(step_fn):
        step_fn = tf.autograph.experimental.do_not_convert(step_fn)
        return replicator.gather(replicator.replicate(step_fn, inputs)())

    xs = collective_cases.draw(0, n, collective_cases.FIXED)
    collective_cases.check(run(collective_cases.make_step(xs, n, 0)), xs, n, 0)
    collective_cases.check_slices(run(collective_cases.slices_step(n)), n)


def gathering_different_things(replicator):
    with pytest.raises(rr.ConfigError, match="gather the same nest and shapes"):
        replicator.gather(tf.zeros([1 + replicator.process_index]))


def callable_input(replicator):
    inputs = replicator.make_inputs(lambda context: lambda: rr.collectives.replica_id())
    step = replicator.replicate(lambda x: rr.collectives.all_gather(x * 10), inputs, 2)
    expected = [10 * i for i in range(replicator.num_replicas)]
    assert replicator.gather(step()).tolist() == [[expected] * 2] * replicator.num_replicas


def two_steps_share_one_input(replicator):
    n = replicator.num_replicas
    inputs = replicator.make_inputs(numbers)
    plus = replicator.replicate(lambda x: x, inputs)
    minus = replicator.replicate(lambda x: -x, inputs, steps_per_call=2)
    assert replicator.gather(plus()).tolist() == list(range(n))
    assert replicator.reduce("min", minus()).tolist() == [1 - 2 * n, 1 - 3 * n]
    future = plus.begin()  # Also in the background.
    assert replicator.reduce("max", future.result()) == 4 * n - 1
    assert inputs.position == 4


def random_numbers_differ(replicator):
    tf.random.set_seed(1)
    try:
        step = replicator.replicate(
            lambda x: tf.nn.dropout(tf.ones([32]), 0.5), replicator.make_inputs(ones)
        )
    finally:
        tf.random.set_seed(None)
    masks = replicator.gather(step())
    assert len({tuple(mask) for mask in masks.tolist()}) == replicator.num_replicas


def layers_and_slots_appear_in_the_first_step(replicator):
    with replicator.scope():
        model = snt.Linear(1, w_init=snt.initializers.Ones())
        optimizer = replicator.wrap_optimizer(snt.optimizers.Momentum(0.1, 0.9))
    steps = []

    def step_fn(x):
        if not steps:
            steps.append(tf.Variable(0.5))
        steps[0].assign_add(1.0)
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(model(x))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply(gradients, model.trainable_variables)
        return loss

    step = replicator.replicate(step_fn, replicator.make_inputs(batches), 4)
    losses = replicator.reduce("mean", step())
    np.testing.assert_allclose(losses[0], DATA[:GLOBAL_BATCH].sum(1).mean(), rtol=1e-4, atol=1e-5)
    w, velocity = np.ones(FEATURES), np.zeros(FEATURES)
    for k in range(4):
        velocity = 0.9 * velocity + DATA[k * GLOBAL_BATCH : (k + 1) * GLOBAL_BATCH].mean(0)
        w -= 0.1 * velocity
    np.testing.assert_allclose(model.w.numpy()[:, 0], w, rtol=1e-5, atol=1e-6)
    assert steps[0].numpy() == 4.5


def a_cancel_in_one_process_cancels_the_step_of_all(replicator):
    is_last = replicator.process_index == replicator.num_processes - 1
    release = threading.Event()

    def source():
        for i in range(1000):
            if i == 2 and is_last:
                release.wait(60)
            yield float(i)

    inputs = replicator.make_inputs(
        lambda context: tf.data.Dataset.from_generator(
            source, output_signature=tf.TensorSpec([], tf.float32)
        )
    )
    with replicator.scope():
        count = tf.Variable(0, trainable=False)
    step = replicator.replicate(lambda x: (x, count.assign_add(1)), inputs, 3)

    def cancel_when_it_waits():
        while inputs.position < 2:
            time.sleep(0.01)
        time.sleep(0.1)
        step.cancel()

    if is_last:
        threading.Thread(target=cancel_when_it_waits, daemon=True).start()
    with pytest.raises(rr.StepCancelled):
        step()
    release.set()
    assert count.numpy() == 2 and inputs.position == 2
    elements, counts = replicator.gather(step())
    # No process has lost the row that it had read when the step was cancelled.
    assert elements.tolist() == [[2, 3, 4]] * replicator.num_replicas
    assert counts.tolist() == [[3, 4, 5]] * replicator.num_replicas
    assert inputs.position == 5

    inputs = replicator.make_inputs(ones)
    step = replicator.replicate(lambda x: x, inputs)
    if is_last:
        step.cancel()
    with pytest.raises(rr.StepCancelled):
        step()
    assert replicator.reduce("sum", step()) == replicator.num_replicas


def uneven_data_ends_at_an_agreed_step(replicator):
    rows = 4 + 3 * replicator.process_index
    for steps_per_call, calls in ((None, 4), (3, 2)):  # The last call takes one step.
        with replicator.scope():
            count = tf.Variable(0, trainable=False)
        inputs = replicator.make_inputs(lambda context: tf.data.Dataset.range(rows))
        step = replicator.replicate(lambda x, c=count: c.assign_add(1), inputs, steps_per_call)
        for _ in range(calls):
            step()
        for _ in range(2):
            with pytest.raises(rr.EndOfData):
                step()
        assert count.numpy() == 4 and inputs.position == 4


def batches_of_different_sizes_are_refused(replicator):
    examples = 8 if replicator.process_index else 7
    inputs = replicator.make_inputs(lambda context: tf.data.Dataset.range(examples).batch(4))
    step = replicator.replicate(tf.size, inputs)
    assert replicator.reduce("sum", step()) == 4 * replicator.num_replicas
    for _ in range(2):
        with pytest.raises(rr.ConfigError, match=r"one size on all replicas.*drop_remainder"):
            step()
    assert inputs.position == 1


def padded_evaluation_sees_every_example_once(replicator):
    # The first process has no example at all.
    mine = np.arange(7 * replicator.process_index, dtype=np.int64)
    inputs = replicator.make_inputs(
        lambda context: tf.data.Dataset.from_tensor_slices(mine).batch(4), pad_to=4
    )

    def step_fn(batch):
        values, mask = batch
        total = tf.reduce_sum(tf.cast(values, tf.float32) * mask)
        return rr.collectives.all_sum({"examples": tf.reduce_sum(mask), "total": total})

    step = replicator.replicate(step_fn, inputs)
    sums, steps = {"examples": 0.0, "total": 0.0}, 0
    with pytest.raises(rr.EndOfData):
        while True:
            for name, value in replicator.reduce("max", step()).items():
                sums[name] += value
            steps += 1
    sizes = [7 * i for i in range(replicator.num_processes)]
    assert sums == {"examples": sum(sizes), "total": sum(s * (s - 1) / 2 for s in sizes)}
    assert steps == -(-sizes[-1] // 4)
    evaluation = replicator.make_evaluation(
        lambda values, mask: tf.reduce_sum(tf.cast(values, tf.float32) * mask),
        lambda context: tf.data.Dataset.from_tensor_slices(mine).batch(4),
        global_batch_size=4 * replicator.num_replicas,
    )
    assert [evaluation(), evaluation()] == [sums["total"]] * 2


def an_error_of_one_input_ends_the_step_of_all(replicator):
    bad = 2 if replicator.process_index == 1 else -1
    source = tf.data.Dataset.range(100).map(
        lambda i: tf.debugging.check_numerics(1.0 / tf.cast(bad - i, tf.float32), "bad")
    )
    step = replicator.replicate(lambda x: x, replicator.make_inputs(lambda context: source))
    expected = tf.errors.InvalidArgumentError if bad == 2 else errors.StepFailed
    with pytest.raises(expected, match=r"bad|input of another process failed"):
        for _ in range(3):
            step()


def different_collectives_are_refused(replicator):
    def step_fn(x):
        shape = [1] if replicator.process_index else [2]
        return rr.collectives.all_sum(tf.zeros(shape) + x)

    with pytest.raises(rr.ConfigError, match=r"collectives in the same order.*worker 1"):
        replicator.replicate(step_fn, replicator.make_inputs(ones))


def different_outputs_are_refused(replicator):
    name = "b" if replicator.process_index else "a"
    message = r"worker 0.* has results {a: a tensor}.*worker 1.* has results {b: a tensor}"
    with pytest.raises(rr.ConfigError, match=message):
        replicator.replicate(lambda x: {name: x}, replicator.make_inputs(ones))


def different_variables_are_refused(replicator):
    with replicator.scope():
        first = tf.Variable(1.0, name="first")
        second = tf.Variable([1.0, 2.0], name="second")
    second.assign([1.0, 2.0 + replicator.process_index])
    step = replicator.replicate(lambda x: first * second * x, replicator.make_inputs(ones))
    with pytest.raises(rr.ReplicasDiffer, match=r"'second:0' \(2,\) differs between replica 0"):
        step()
    second.assign([3.0, 4.0])
    assert replicator.gather(step()).tolist() == [[3.0, 4.0]] * replicator.num_replicas


def exchanges_leave_nothing_behind(replicator):
    """For messages of all sizes: a short one takes one collective, a longer one two."""
    replicator.reduce("sum", tf.zeros([300]))
    before = num_threads()
    for i in range(300):
        values = np.full([1 + i], i, np.int32)
        total = replicator.reduce("sum", values)
        np.testing.assert_array_equal(total, values * replicator.num_replicas)
    assert num_threads() < before + 50, (before, num_threads())
    # In a group, TensorFlow keeps memory for every operation that runs outside of a function.
    ran = []

    def note(kind, *args, **kwargs):
        ran.append(kind)

    op_callbacks.add_op_callback(note)
    replicator.reduce("mean", {"loss": np.float32(1.0), "counts": np.arange(3)})
    op_callbacks.remove_op_callback(note)
    assert len(ran) == 1, ran


def training_saves_by_the_clock_without_waiting_for_other_processes(replicator):
    learner = tiny_learners.Regression(replicator, tiny_learners.Config(steps=300, every=300))
    folder = pathlib.Path(sys.argv[1]).with_name("run")
    training = Training(
        replicator,
        learner,
        RunDirectory(folder),
        RunOptions(steps_per_call=1, checkpoint_seconds=0.01),
    )
    exchange, exchanges = replicator._group.exchange, []
    replicator._group.exchange = lambda *args: exchanges.append(args) or exchange(*args)
    before = num_threads()
    assert training.run() is None
    replicator._group.exchange = exchange
    assert num_threads() < before + 50, (before, num_threads())
    assert not exchanges
    if replicator.is_chief:
        assert len(list(RunDirectory(folder).checkpoints.iterdir())) > 1


def a_keras_learner_is_evaluated(replicator):
    """The states of its metrics differ between processes by design."""
    config = keras_learner.Config(steps=4, evaluate_every=2, units=2)
    learner = keras_learner.make_learner(replicator, config)
    folder = pathlib.Path(sys.argv[1]).with_name("keras")
    training = Training(
        replicator,
        learner,
        RunDirectory(folder),
        RunOptions(steps_per_call=2, checkpoint_seconds=1000.0),
    )
    assert training.run() is None
    figures = training.measure()
    assert set(figures) == {"loss", "accuracy", "mae"} and np.isfinite(list(figures.values())).all()
    for name, value in figures.items():
        assert replicator.reduce("max", np.float64(value)) == value, name
    if replicator.is_chief:
        assert read_metrics(folder, "evaluation")["steps"].tolist() == [2, 4]


# Behaviours that end a group. DETAILS["at"] is the time by the clock that all processes share.


def num_threads():
    return len(os.listdir("/proc/self/task"))


def expect_loss(function, match):
    with pytest.raises(rr.WorkerLost, match=match) as caught:
        while True:
            function()
    DETAILS["at"] = time.time()
    DETAILS["error"] = str(caught.value)
    DETAILS["workers"] = caught.value.workers


def a_killed_worker(replicator):
    """One waits for its own data, one for the killed worker in a step, one in a gather."""
    last = replicator.num_processes - 1
    never = threading.Event()

    def nothing():
        never.wait(60)
        yield 1.0

    # Every step has another shape, so that the lost collective is a new one.
    step = replicator.replicate(
        lambda x: tf.size(rr.collectives.all_sum(tf.zeros([2**x]))),
        replicator.make_inputs(lambda context: tf.data.Dataset.range(20)),
    )
    waiting = replicator.replicate(
        lambda x: x,
        replicator.make_inputs(
            lambda context: tf.data.Dataset.from_generator(
                nothing, output_signature=tf.TensorSpec([], tf.float32)
            )
        ),
    )
    step()
    meet(replicator, "before_the_kill")
    if replicator.process_index == last:
        time.sleep(1)
        DETAILS["at"] = time.time()
        leave("a_killed_worker", lambda: os.kill(os.getpid(), signal.SIGKILL))
    function = [waiting, step, lambda: replicator.gather(tf.zeros([]))][replicator.process_index]
    expect_loss(function, rf"worker {last} \(127.0.0.1:\d+\) is gone: .* restart the whole group")


def a_frozen_worker(replicator):
    step = replicator.replicate(lambda x: rr.collectives.all_sum(x), replicator.make_inputs(ones))
    step()
    meet(replicator, "before_the_freeze")
    if replicator.process_index == 1:
        DETAILS["at"] = time.time()
        leave("a_frozen_worker", lambda: os.kill(os.getpid(), signal.SIGSTOP))
    replicator._group._monitor._peer_timeout = SECONDS_TO_FREEZE
    exchange = threading.Thread(target=exchange_with_nobody, args=(replicator,))
    exchange.start()
    expect_loss(step, r"worker 1 \(127.0.0.1:\d+\) has not answered for \d+ s: it is frozen")
    exchange.join(60)
    assert DETAILS["exchange"] == "WorkerLost"


def exchange_with_nobody(replicator):
    try:
        replicator.reduce("mean", tf.zeros([]))
    except Exception as error:
        DETAILS["exchange"] = type(error).__name__


def an_error_in_the_step_of_one(replicator):
    bad = float(replicator.process_index)

    def step_fn(x):
        checked = tf.debugging.check_numerics(x / (x - bad), "not finite")
        return rr.collectives.all_sum(tf.ones([100]) * checked)

    step = replicator.replicate(step_fn, replicator.make_inputs(ones))
    if replicator.process_index == 1:
        with pytest.raises(tf.errors.InvalidArgumentError, match="not finite"):
            step()
        wait_for_report(0)  # The others learn of it before this process ends.
        return
    begun = time.monotonic()
    match = r"^the step failed in worker 1 \(127.0.0.1:\d+\): .*not finite.*; see its output$"
    with pytest.raises(errors.StepFailed, match=match):
        step()
    DETAILS["seconds"] = time.monotonic() - begun


def a_call_that_one_does_not_make(replicator):
    gave_up = pathlib.Path(f"{sys.argv[1]}.gave-up")
    if replicator.process_index == 1:
        wait_for(gave_up)
        with pytest.raises(errors.StepFailed, match="worker 0 .* has waited 2 s .* and gave up"):
            replicator.reduce("mean", tf.zeros([]))
        # SIGTERM ends it as it ends any Python program.
        leave("a_call_that_one_does_not_make", lambda: os.kill(os.getpid(), signal.SIGTERM))
        time.sleep(60)
    begun = time.time()
    with pytest.raises(errors.StepFailed, match="worker 0 .* has waited 2 s .* and gave up"):
        replicator.reduce("mean", tf.zeros([]))
    DETAILS["seconds"] = time.time() - begun
    gave_up.touch()
    wait_for_report(1)  # If this process ended first, the other would report it as gone.


def different_steps(replicator):
    steps = [replicator.replicate(lambda x: x, replicator.make_inputs(ones)) for _ in range(2)]
    for step in steps:
        step()
    with pytest.raises(rr.ConfigError, match="same steps in the same order"):
        steps[replicator.process_index]()


def is_killed_and_trains_on(replicator):
    """Under a supervisor, which runs it a second time after the kill."""
    folder = pathlib.Path(sys.argv[1]).parent
    model, optimizer, step_fn = make_learner(replicator)
    regression.set_weights(model)
    inputs = replicator.make_inputs(batches)
    step = replicator.replicate(step_fn, inputs, 5)
    learner = {
        "learner": parts.TrackablePart(model=model, optimizer=optimizer),
        "input": parts.InputPart(inputs),
    }
    checkpointer = checkpoints.Checkpointer(folder / "checkpoints")
    resumed = checkpointer.latest()
    if resumed is not None:
        checkpointer.restore(learner)
        assert inputs.position == 10
    try:
        while inputs.position < 20:
            step()
            if resumed is not None and inputs.position == 15:
                DETAILS["at"] = time.time()
            if replicator.is_chief:
                checkpointer.save(inputs.position, learner)
            replicator.reduce("mean", 0.0)  # All wait until the checkpoint is written.
            if resumed is None and inputs.position == 10 and not replicator.is_chief:
                (folder / "killed").write_text(str(time.time()))
                os.kill(os.getpid(), signal.SIGKILL)
    except rr.WorkerLost:  # Ends the process, and does not count as a failure.
        sys.exit(errors.WORKER_LOST_STATUS)
    DETAILS["weights"] = [v.numpy().tolist() for v in model.trainable_variables]


def wait_for_report(index):
    """Waits until another process of the group has written its report."""
    wait_for(pathlib.Path(f"{sys.argv[1]}.{index}"))


def meet(replicator, name):
    """Waits until all processes have reached this point, without an exchange.

    A step may end in one process while another one still reads from it.
    """
    marks = [pathlib.Path(f"{sys.argv[1]}.{name}.{i}") for i in range(replicator.num_processes)]
    marks[replicator.process_index].touch()
    for mark in marks:
        wait_for(mark)


def wait_for(path):
    """Waits for a file, for at most a minute."""
    deadline = time.monotonic() + 60
    while not path.exists() and time.monotonic() < deadline:
        time.sleep(0.05)


def leave(name, how):
    """Ends this process in the middle of a behaviour, which counts as passed."""
    REPORT[name] = None
    write_report()
    how()


def write_report():
    index = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
    pathlib.Path(f"{sys.argv[1]}.{index}").write_text(json.dumps([REPORT, DETAILS]))


def refuse_exchanges(patch):
    """Makes exchanges fail: a single process has no peers, so no behaviour may send a message."""

    def refuse(*args):
        raise AssertionError("one process exchanges messages")

    for name in ("gather", "gather_tensor"):
        patch.setattr(channel.MessageChannel, name, refuse)


def main():
    faulthandler.dump_traceback_later(270)  # Shows where it hangs, if it does.
    replicator = rr.MultiWorkerReplicator(**TIMEOUTS)
    if replicator.num_processes == 1:
        refuse_exchanges(pytest.MonkeyPatch())
    for name in sys.argv[2:]:
        begun = time.monotonic()
        try:
            globals()[name](replicator)
            REPORT[name] = None
        except Exception:
            REPORT[name] = traceback.format_exc()
        print(f"{name}: {time.monotonic() - begun:.2f} s")
    write_report()


if __name__ == "__main__":
    main()
