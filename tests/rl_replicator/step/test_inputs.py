"""Inputs of all kinds: replay tables, finite data, pipelines per replica, positions."""

import gc
import threading
import time
import weakref

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.eager import context as eager_context

import rl_replicator as rr
from rl_replicator.step.inputs import contract, sources


@pytest.mark.parametrize("name", ["single_device", "multi_device:2"])
def test_cancel_while_a_replay_table_is_empty(name):
    reverb = pytest.importorskip("reverb")
    table = reverb.Table.queue("t", 100, signature=tf.TensorSpec([3], tf.float32))
    server = reverb.Server([table])
    replicator = rr.make(name)

    def input_fn(context):
        return reverb.TimestepDataset.from_table_signature(
            f"localhost:{server.port}", "t", max_in_flight_samples_per_worker=1
        ).batch(2)

    def step_fn(sample):
        return {"key": sample.info.key, "data": sample.data}

    inputs = replicator.make_inputs(input_fn)
    step = replicator.replicate(step_fn, inputs, steps_per_call=2)
    threading.Timer(0.3, step.cancel).start()
    with pytest.raises(rr.StepCancelled):
        step()
    client = server.localhost_client()
    count = 4 * replicator.num_replicas  # Two steps of batches of 2.
    for i in range(count):
        client.insert(np.full([3], i, np.float32), {"t": 1.0})
    outputs = replicator.gather(step())
    assert outputs["key"].dtype == np.uint64
    assert outputs["key"].shape == (replicator.num_replicas, 2, 2)
    assert len(set(outputs["key"].ravel().tolist())) == count
    in_order = outputs["data"][..., 0].transpose(1, 0, 2).ravel()  # [K, N, B]
    np.testing.assert_array_equal(in_order, np.arange(count))
    inputs.close()
    server.stop()


@pytest.mark.parametrize(
    ("own", "other"),
    [
        ("single_device", "multi_device:2"),
        ("multi_device:2", "single_device"),
        ("mesh:data=2",) * 2,
    ],
)
def test_inputs_and_outputs_of_another_replicator_are_refused(own, other):
    """A step would read only a part of each row, and a reduction only a part of the outputs."""
    own, other = rr.make(own), rr.make(other)
    inputs = other.make_inputs(lambda context: tf.data.Dataset.range(8).batch(2))
    with pytest.raises(rr.ConfigError, match="expected inputs of this replicator, got those of"):
        own.replicate(lambda x: x, inputs)
    with pytest.raises(rr.ConfigError, match="expected inputs of this replicator, got _RangeD"):
        own.replicate(lambda x: x, tf.data.Dataset.range(8))
    if other.num_replicas > 1:
        outputs = other.replicate(lambda x: {"x": x}, inputs)()
        with pytest.raises(rr.ConfigError, match=r"of 1 replica\(s\), got 2 at \['x'\]"):
            own.reduce("sum", outputs)


def test_context():
    context = rr.InputContext(num_replicas=4)
    assert (context.num_replicas_in_sync, context.input_pipeline_id) == (4, 0)
    assert context.num_input_pipelines == 1
    assert context.per_replica_batch_size(256) == 64
    assert rr.InputContext(1).per_replica_batch_size(1) == 1
    for size in (-4, 9):
        with pytest.raises(rr.ConfigError, match=f"global batch size.*got {size}; use a multiple"):
            context.per_replica_batch_size(size)


@pytest.mark.parametrize(
    ("name", "per_replica", "steps_per_call"),
    [("multi_device:4", False, 4), ("multi_device:2", True, None)],
)
def test_finite_data_is_used_to_its_last_example(name, per_replica, steps_per_call):
    """23 examples in batches of 4: a short batch, and replicas that have none in the last row."""
    replicator = rr.make(name)

    def input_fn(context):
        data = tf.data.Dataset.range(1, 24).map(lambda x: {"x": tf.cast(x, tf.float32)})
        return context.shard(data).batch(4)

    def step_fn(taken):
        batch, mask = taken
        assert mask.shape == batch["x"].shape == [4]
        return tf.reduce_sum(batch["x"] * mask), tf.reduce_sum(mask)

    inputs = replicator.make_inputs(input_fn, per_replica=per_replica, pad_to=4)
    step = replicator.replicate(step_fn, inputs, steps_per_call)
    for _ in range(2):  # The data can be read again.
        totals, num_steps = np.zeros(2), 0
        with pytest.raises(rr.EndOfData):
            while True:
                outputs = np.array(replicator.gather(step()))  # [2, N] or [2, N, k]
                totals += outputs.reshape(2, -1).sum(axis=1)
                num_steps += 1 if steps_per_call is None else outputs.shape[2]
        assert totals.tolist() == [23 * 24 / 2, 23]
        assert num_steps == inputs.position
        with pytest.raises(rr.EndOfData):
            step()
        inputs.restart()


def test_batches_of_different_sizes_are_refused():
    """Their examples would count differently in the mean over replicas."""
    replicator = rr.make("multi_device:2")
    data = tf.data.Dataset.range(15).batch(4).map(lambda x: {"x": x, "size": tf.size(x)})
    inputs = replicator.make_inputs(lambda context: data)
    step = replicator.replicate(lambda batch: batch["size"], inputs)
    assert replicator.gather(step()).tolist() == [4, 4]
    for _ in range(2):
        with pytest.raises(rr.ConfigError, match=r"one size on all replicas.*drop_remainder"):
            step()
    assert inputs.position == 1


@pytest.mark.parametrize(
    ("input_fn", "options", "message"),
    [
        (lambda _: tf.data.Dataset.range(3), {"pad_to": 2}, "expected batches of dense tensors"),
        (lambda _: lambda: 1, {"pad_to": 2}, "the only thing to pad"),
        (
            lambda _: tf.data.Dataset.range(3).batch(3, drop_remainder=True),
            {"pad_to": 2},
            "at most 2 examples to pad, got 3; batch the data",
        ),
        (
            lambda _: tf.data.Dataset.range(3).batch(3),
            {"pad_to": 2},
            r"^expected batches of at most 2 .*, got more; .*\)$",
        ),
        (
            lambda context: tf.data.Dataset.from_tensors(np.zeros(context.input_pipeline_id)),
            {"per_replica": True},
            "expected datasets with equal elements",
        ),
    ],
)
def test_data_that_cannot_be_used_is_refused(input_fn, options, message):
    replicator = rr.make("multi_device:2")
    with pytest.raises(rr.ConfigError, match=message):
        replicator.replicate(lambda x: x, replicator.make_inputs(input_fn, **options))()


def test_a_pipeline_for_every_replica():
    replicator = rr.make("multi_device:4")
    contexts = []

    def input_fn(context):
        contexts.append((context.input_pipeline_id, context.num_input_pipelines))
        return tf.data.Dataset.range(100).map(lambda x: x + 1000 * context.input_pipeline_id)

    n = replicator.num_replicas
    step = replicator.replicate(lambda x: x, replicator.make_inputs(input_fn, per_replica=True))
    assert contexts == [(i, n) for i in range(n)]
    for k in range(2):
        assert replicator.gather(step()).tolist() == [1000 * i + k for i in range(n)]

    callables = replicator.make_inputs(
        lambda context: lambda: tf.constant(context.input_pipeline_id), per_replica=True
    )
    numbers = replicator.replicate(lambda x: x, callables)
    assert replicator.gather(numbers()).tolist() == list(range(n))


@pytest.mark.parametrize("name", ["multi_device:2", "mesh:data=2"])
def test_what_python_computes_is_no_callable_input(name):
    replicator = rr.make(name)
    random = np.random.default_rng(0)
    for function, kind in (
        (lambda: {"x": tf.zeros([2]), "y": random.normal(size=2)}, "ndarray"),
        (lambda: random.normal(), "float"),
        (lambda: random.normal(size=2).astype("f")[0], "float32"),
    ):
        with pytest.raises(rr.ConfigError, match=rf"got a {kind}, which .* tf\.numpy_function"):
            inputs = replicator.make_inputs(lambda context, function=function: function)
            replicator.replicate(lambda x: x, inputs)

    def draw():
        x = tf.numpy_function(lambda: random.normal(size=2), [], tf.float64)
        return tf.ensure_shape(x, [2])

    step = replicator.replicate(lambda x: x, replicator.make_inputs(lambda context: draw))
    first, second = (replicator.local_results(step())[0].numpy() for _ in range(2))
    assert (first != second).all()


@pytest.mark.parametrize("per_replica", [False, True])
def test_positions(per_replica):
    replicator = rr.make("multi_device:2")

    def input_fn(context):
        return context.shard(tf.data.Dataset.range(100_000))

    inputs = replicator.make_inputs(input_fn, per_replica=per_replica)
    inputs.go_to(7)
    step = replicator.replicate(lambda x: x, inputs)
    more = replicator.replicate(lambda x: x, inputs, steps_per_call=3)
    assert sorted(replicator.gather(step())) == [14, 15]
    assert sorted(replicator.gather(more()).ravel()) == list(range(16, 22))
    assert inputs.position == 11
    with pytest.raises(rr.ConfigError, match="before the first step"):
        inputs.go_to(7)
    step.cancel()
    with pytest.raises(rr.StepCancelled):
        while True:
            step()
    assert sorted(replicator.gather(step())) == [2 * inputs.position - 2, 2 * inputs.position - 1]
    inputs.restart()
    inputs.go_to(50)
    assert inputs.position == 50
    assert sorted(replicator.gather(step())) == [100, 101]
    assert inputs.position == 51
    inputs.restart()
    assert sorted(replicator.gather(step())) == [0, 1]


def test_a_row_that_a_cancel_kept_is_the_next_one_until_a_restart():
    """Steps of several processes keep what they took if another process cancels them."""
    inputs = rr.SingleDeviceReplicator().make_inputs(lambda context: tf.data.Dataset.range(10))
    inputs.keep_unused_rows()

    @tf.function(autograph=False)
    def cancelled(*arguments):
        status, entry = inputs.take(*arguments)
        inputs.keep_unused(status, tf.constant(contract.CANCELLED), entry)

    @tf.function(autograph=False)
    def used(*arguments):
        return inputs.load(inputs.take(*arguments)[1])[0]

    inputs.start()
    cancelled(*inputs.arguments)
    assert [used(*inputs.arguments) for _ in range(2)] == [0, 1]
    cancelled(*inputs.arguments)
    inputs.restart()
    inputs.start()
    assert [used(*inputs.arguments) for _ in range(2)] == [0, 1]


def test_a_cancelled_call_returns_what_it_had_taken():
    replicator = rr.make("multi_device:2")
    waits, goes_on = threading.Event(), threading.Event()

    def wait(number):
        if number == 2 * replicator.num_replicas:  # The first row of the third step.
            waits.set()
            goes_on.wait()
        return number

    def input_fn(context):
        return tf.data.Dataset.range(100).map(lambda x: tf.numpy_function(wait, [x], tf.int64))

    inputs = replicator.make_inputs(input_fn)
    step = replicator.replicate(lambda x: x, inputs, steps_per_call=4)
    future = step.begin()
    assert waits.wait(60)
    deadline = time.monotonic() + 60
    while inputs.position < 2 and time.monotonic() < deadline:
        time.sleep(0.01)
    step.cancel()
    with pytest.raises(rr.StepCancelled) as error:
        future.result()
    goes_on.set()
    taken, rest = replicator.gather(error.value.outputs), replicator.gather(step())
    assert taken.shape == (replicator.num_replicas, 2)
    numbers = np.concatenate([taken.T.ravel(), rest.T.ravel()])
    np.testing.assert_array_equal(numbers, np.arange(6 * replicator.num_replicas))


def result_of(step, inputs):
    """Calls a step; closes its input if that hangs, so that the test fails and ends."""
    future = step.begin()
    try:
        return future.result(60)
    except TimeoutError:
        inputs.close()
        raise


def lengthening(x):
    with tf.control_dependencies([tf.debugging.assert_less(x, np.int64(2), "too large")]):
        return tf.range(x + 1)


@pytest.mark.parametrize(
    ("make_data", "last", "message"),
    [
        (lambda: tf.data.Dataset.range(6).batch(4), rr.EndOfData, "ended"),
        (
            lambda: tf.data.Dataset.range(9).map(lengthening),
            tf.errors.InvalidArgumentError,
            "too large",
        ),
    ],
    ids=["end", "failure"],
)
def test_an_end_outlasts_a_call_that_fails(make_data, last, message):
    """Elements of different lengths cannot be stacked."""
    replicator = rr.SingleDeviceReplicator()
    inputs = replicator.make_inputs(lambda context: make_data())
    step = replicator.replicate(lambda x: x, inputs, steps_per_call=3)
    with pytest.raises(rr.ConfigError, match="same shape"):
        result_of(step, inputs)
    for _ in range(2):
        with pytest.raises(last, match=message):
            result_of(step, inputs)


def windows(x):
    return tf.data.Dataset.range(2 * x, 2 * x + 2)


def optionals(x):
    return tf.experimental.Optional.from_value(4 * x + 1)


@pytest.mark.parametrize(
    ("element", "step_fn"),
    [
        (windows, lambda window: window.reduce(np.int64(0), lambda a, b: a + b)),
        (optionals, lambda optional: optional.get_value()),
    ],
    ids=["datasets", "optionals"],
)
def test_elements_that_are_variants(element, step_fn):
    replicator = rr.make("multi_device:2")
    n = replicator.num_replicas
    data = tf.data.Dataset.range(n).map(element)
    inputs = replicator.make_inputs(lambda context: data)
    step = replicator.replicate(step_fn, inputs)
    assert replicator.gather(result_of(step, inputs)).tolist() == [4 * i + 1 for i in range(n)]
    with pytest.raises(rr.EndOfData, match="ended"):
        result_of(step, inputs)
    inputs.restart()
    step.cancel()
    while not inputs.num_ready():
        time.sleep(0.01)
    with pytest.raises(rr.StepCancelled):
        result_of(step, inputs)


@pytest.mark.parametrize(
    ("name", "steps_per_call"), [("single_device", None), ("multi_device:2", 2)]
)
def test_tensorflow_knows_the_shapes_of_the_data_when_it_optimizes_a_step(name, steps_per_call):
    """Else it computes them in every step, as here for a gradient, and fuses fewer operations."""

    def step_fn(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tf.nn.conv2d(x, tf.ones([3, 3, 1, 1]), 1, "SAME") ** 2
        return tape.gradient(y, x)

    replicator = rr.make(name)
    data = tf.data.Dataset.from_tensors(tf.ones([2, 4, 4, 1])).repeat()
    inputs = replicator.make_inputs(lambda context: data)
    replicator.replicate(lambda x: x, inputs)()  # The input makes its own graphs now.
    step = replicator.replicate(step_fn, inputs, steps_per_call=steps_per_call)
    eager_context.context().enable_graph_collection()
    step()
    graphs = eager_context.export_run_metadata().function_graphs
    eager_context.context().disable_graph_collection()
    found = {node.op for graph in graphs for node in graph.post_optimization_graph.node}
    assert "Conv2DBackpropInput" in found and not found & {"Shape", "ShapeN"}


@pytest.mark.parametrize("end", ["free", "close", "close while tracing", "restart"])
def test_a_pump_ends_with_its_input(end):
    """Otherwise it would wait forever, and keep the dataset and all that the dataset reads from."""
    source = tf.queue.FIFOQueue(10, tf.int64, shapes=[])
    source.enqueue_many([[0, 1]])

    def use():
        data = tf.data.Dataset.range(10).map(lambda _: source.dequeue()).prefetch(1)
        replicator = rr.SingleDeviceReplicator()
        inputs = replicator.make_inputs(lambda context: data.batch(1), pad_to=1)
        step = replicator.replicate(lambda x: tf.nest.flatten(x)[0][0], inputs)
        assert int(result_of(step, inputs)) == 0
        return inputs, step, weakref.ref(inputs)

    before = set(threading.enumerate())
    inputs, step, reference = use()
    (pump,) = [t for t in set(threading.enumerate()) - before if t.name == "input-pump"]
    pump.join(0.2)
    assert pump.is_alive()
    if end == "free":
        del inputs, step
        gc.collect()
        assert reference() is None
    elif end == "close":
        inputs.close()
    elif end == "close while tracing":  # As a signal handler may do.
        graph = tf.function(lambda: inputs.close()).get_concrete_function().graph
        assert not [op for op in graph.get_operations() if "Queue" in op.type]
    else:
        inputs.restart()
    pump.join(60)
    assert not pump.is_alive()
    if end == "restart":
        source.enqueue_many([[7, 8]])
        assert int(result_of(step, inputs)) == 7
    elif end != "free":
        with pytest.raises(rr.EndOfData, match="closed"):
            result_of(step, inputs)
    source.close()


def test_a_wait_that_ends_slowly_holds_up_no_other_input(monkeypatch):
    """Reverb's takes seconds."""
    release, held_up = threading.Event(), []
    close = tf.queue.FIFOQueue.close

    def slow_close(queue, *arguments, **options):
        if queue.dtypes == [tf.bool] and not release.wait(60):
            held_up.append(threading.current_thread())
        close(queue, *arguments, **options)

    monkeypatch.setattr(tf.queue.FIFOQueue, "close", slow_close)
    replicator = rr.SingleDeviceReplicator()
    for _ in range(3):
        inputs = replicator.make_inputs(lambda context: tf.data.Dataset.range(100))
        step = replicator.replicate(lambda x: x, inputs)
        step()
        inputs.restart()
        assert int(step()) == 0
        inputs.close()
    release.set()
    assert threading.current_thread() not in held_up


def test_autotuning_is_off_unless_asked_for():
    """With it, the garbage collector may wait for a minute to free an iterator."""
    data = tf.data.Dataset.range(100).map(lambda x: x + 1, tf.data.AUTOTUNE)
    tuned = tf.data.Options()
    tuned.autotune.enabled = True

    def is_tuned(data):
        (found,) = sources.call_input_fn(
            lambda context: data, [rr.InputContext(num_replicas=1)], None
        )
        assert found.element_spec == data.element_spec
        return found.options().autotune.enabled

    assert is_tuned(data) is False
    assert is_tuned(data.with_options(tuned)) is True


def test_the_garbage_collector_does_not_wait_for_a_generator():
    """TensorFlow frees an iterator once its threads have left the generator."""
    entered, release, collected = (threading.Event() for _ in range(3))

    def numbers():
        yield from range(4)
        entered.set()
        release.wait(100)

    def use():
        data = tf.data.Dataset.from_generator(numbers, output_signature=tf.TensorSpec([], tf.int64))
        replicator = rr.SingleDeviceReplicator()
        inputs = replicator.make_inputs(lambda context: data.prefetch(1))
        replicator.replicate(lambda x: x, inputs)()
        assert entered.wait(60)  # Two rows are in the queue, and one has been prefetched.

    def collect():
        gc.collect()
        for pump in pumps:
            pump.join(0.5)  # It waits for the generator.
        gc.collect()
        collected.set()

    before = set(threading.enumerate())
    use()
    pumps = [t for t in set(threading.enumerate()) - before if t.name == "input-pump"]
    threading.Thread(target=collect, daemon=True).start()
    is_collected = collected.wait(60)
    release.set()
    assert is_collected


def test_data_without_an_element_says_so():
    replicator = rr.make("single_device")
    data = tf.data.Dataset.range(3).batch(4, drop_remainder=True).repeat()
    step = replicator.replicate(lambda x: x, replicator.make_inputs(lambda context: data))
    with pytest.raises(rr.EndOfData, match=r"no element for a step: batch\(drop_remainder=True\)"):
        step()
