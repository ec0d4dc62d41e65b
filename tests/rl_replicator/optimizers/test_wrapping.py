"""Wrapped optimizers of Sonnet and Keras: N replicas with B/N examples do what one does with B."""

import functools
import logging

import numpy as np
import pytest
import sonnet as snt
import tensorflow as tf

import rl_replicator as rr
from rl_replicator import checkpoints, collectives
from rl_replicator.checkpoints import parts
from rl_replicator.optimizers import gradients, wrapping

pytestmark = pytest.mark.usefixtures("plain_graphs")
GLOBAL_BATCH = 8
ROWS = 5
DATA = np.random.default_rng(0).normal(size=(4 * GLOBAL_BATCH, 3)).astype(np.float32)
WORDS = np.random.default_rng(1).integers(0, ROWS, size=4 * GLOBAL_BATCH).astype(np.int32)
keras = tf.keras.optimizers
OPTIMIZERS = {
    "sonnet sgd": lambda: snt.optimizers.SGD(0.1),
    "sonnet adam": lambda: snt.optimizers.Adam(0.01),
    "fused adam": lambda: rr.optimizers.Adam(0.01),
    "keras sgd": lambda: keras.SGD(0.1, momentum=0.9, clipnorm=0.5),
    "keras adam": lambda: keras.Adam(keras.schedules.ExponentialDecay(0.01, 2, 0.5)),
    "keras adamw": lambda: keras.AdamW(0.01, weight_decay=0.1, global_clipnorm=0.3),
    "keras ema": lambda: keras.RMSprop(
        0.01, use_ema=True, ema_momentum=0.5, ema_overwrite_frequency=2
    ),
}


@functools.cache
def replicator(count):
    return rr.SingleDeviceReplicator() if count == 1 else rr.MultiDeviceReplicator(count)


def batches(context):
    size = context.per_replica_batch_size(GLOBAL_BATCH)
    return tf.data.Dataset.from_tensor_slices((DATA, WORDS)).batch(size).repeat()


def learner(count, make_optimizer, built=True, **options):
    """A table with sparse gradients, a vector with dense ones, and a variable without any."""
    chosen = replicator(count)
    with chosen.scope():
        variables = [
            tf.Variable(np.linspace(-1, 1, ROWS * 3, dtype=np.float32).reshape(ROWS, 3)),
            tf.Variable([0.5, -0.5, 1.0]),
            tf.Variable(1.0),
        ]
        optimizer = chosen.wrap_optimizer(make_optimizer(), **options)
    if built:
        chosen.build_optimizer(optimizer, variables)
    return variables, optimizer


def loss_of(variables, batch):
    x, words = batch
    table, vector, _ = variables
    return tf.reduce_mean(tf.square(tf.reduce_sum(x * (tf.gather(table, words) + vector), 1) - 1))


def make_step(variables, optimizer, share=1.0, spoiled=lambda: False):
    def step_fn(batch):
        with tf.GradientTape() as tape:
            loss = optimizer.scale_loss(loss_of(variables, batch) * share)
        gradients = tape.gradient(loss, variables)
        assert isinstance(gradients[0], tf.IndexedSlices) and gradients[2] is None
        bad = tf.where(spoiled(), float("nan"), 1.0)
        optimizer.apply([gradients[0], gradients[1] * bad, None], variables)
        return optimizer.num_skipped

    return step_fn


def test_misuse_has_one_line():
    chosen = replicator(1)
    sgd = OPTIMIZERS["sonnet sgd"]
    for optimizer, options, message in (
        ("adam", {}, "expected a Sonnet or Keras optimizer, got str"),
        (chosen.wrap_optimizer(sgd()), {}, "got _Sonnet of .*; call wrap_optimizer once"),
        (tf.keras.mixed_precision.LossScaleOptimizer(keras.SGD()), {}, "wrap its inner_optimizer"),
        (keras.legacy.SGD(0.1), {}, "a Sonnet or Keras optimizer, got SGD of keras.*legacy"),
        (keras.Nadam(), {}, "got Nadam of .*; use Adam"),
    ):
        with pytest.raises(rr.ConfigError, match=message):
            chosen.wrap_optimizer(optimizer, **options)


def test_other_attributes_are_those_of_the_inner_optimizer():
    adam = keras.Adam(0.01, jit_compile=True)
    wrapped = replicator(1).wrap_optimizer(adam)
    assert isinstance(wrapped, keras.Optimizer) and wrapped.optimizer is adam
    wrapped.learning_rate = 0.5
    assert float(wrapped.learning_rate) == float(adam.learning_rate) == 0.5
    assert int(wrapped.num_skipped) == 0 and float(wrapped.loss_scale) == 1.0
    assert wrapped.iterations is adam.iterations
    sgd = snt.optimizers.SGD(0.1)
    wrapped = replicator(1).wrap_optimizer(sgd)
    wrapped.learning_rate = 0.5
    assert wrapped.learning_rate == sgd.learning_rate == 0.5
    assert not hasattr(wrapped, "apply_gradients")  # That is Keras's method.


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (
            "keras adam",
            r"slots, .* got others \(Keras: The .* variable w:0\); call .*build_optimizer",
        ),
        ("sonnet adam", r"in their order \(w:0\), got others of the same names; use one"),
    ],
)
def test_one_optimizer_for_two_networks(kind, message):
    """A Keras optimizer serves both once it is built for both."""
    chosen = replicator(2)

    def train(is_built):
        with chosen.scope():
            networks = [tf.Variable(1.0, name="w") for _ in range(2)]
            optimizer = chosen.wrap_optimizer(OPTIMIZERS[kind]())
        if is_built:
            chosen.build_optimizer(optimizer, networks)

        def step_fn(x):
            for w in networks:
                optimizer.apply([x * w], [w])

        inputs = chosen.make_inputs(lambda context: lambda: tf.ones([]))
        chosen.replicate(step_fn, inputs)()
        return [float(w.numpy()) for w in networks]

    with pytest.raises(rr.ConfigError, match=message):
        train(is_built=False)
    if kind == "keras adam":
        one, other = train(is_built=True)
        assert one < 1.0 and other < 1.0


class OnlyUp(snt.Optimizer):
    """A user's own optimizer, whose Python code AutoGraph has to convert."""

    def apply(self, updates, parameters):
        for update, parameter in zip(updates, parameters, strict=True):
            if update > 0.0:
                parameter.assign_add(update)
        return tf.linalg.global_norm(updates)


def test_a_users_optimizer_may_branch_on_tensors():
    chosen = replicator(1)
    with chosen.scope():
        variable = tf.Variable(0.0)
        optimizer = chosen.wrap_optimizer(OnlyUp(), skip_nonfinite=True)

    def step_fn(update):
        optimizer.apply([update], [variable])
        return variable.read_value()

    data = tf.data.Dataset.from_tensor_slices([1.0, -2.0, 4.0])
    step = chosen.replicate(step_fn, chosen.make_inputs(lambda context: data))
    assert [float(chosen.reduce("sum", step())) for _ in range(3)] == [1.0, 1.0, 5.0]


def test_a_forgotten_scale_is_refused():
    variables, optimizer = learner(1, OPTIMIZERS["sonnet sgd"], loss_scale=8.0)

    def step_fn(batch):
        with tf.GradientTape() as tape:
            loss = loss_of(variables, batch)
        optimizer.apply(tape.gradient(loss, variables), variables)

    chosen = replicator(1)
    step_fn = tf.autograph.experimental.do_not_convert(step_fn)
    with pytest.raises(rr.ConfigError, match=r"expected the gradient of optimizer.scale_loss"):
        chosen.replicate(step_fn, chosen.make_inputs(batches))


def test_one_replica_pays_nothing():
    variables = [tf.Variable([1.0, 2.0]), tf.Variable(3.0)]
    adam = OPTIMIZERS["fused adam"]()
    wrapped = replicator(1).wrap_optimizer(adam)
    replicator(1).build_optimizer(wrapped, variables)

    def operations(optimizer):
        @tf.function
        def apply(updates):
            optimizer.apply(updates, variables)

        concrete = apply.get_concrete_function([tf.TensorSpec(v.shape) for v in variables])
        return sorted(node.type for node in concrete.graph.get_operations())

    assert operations(wrapped) == operations(adam)


def test_nones_must_agree():
    variables, optimizer = learner(2, OPTIMIZERS["sonnet sgd"])
    with pytest.raises(rr.ConfigError, match=r"at least one parameter, got None for all \(Variabl"):
        optimizer.apply([None] * 3, variables)

    def step_fn(replica):
        some = 0 if tf.get_static_value(replica) else 1
        gradients = [None] * 3
        gradients[some] = tf.zeros_like(variables[some])
        optimizer.apply(gradients, variables)

    chosen = replicator(2)
    inputs = chosen.make_inputs(lambda context: collectives.replica_id)
    with pytest.raises(rr.ConfigError, match=r"\[None, float32\(3,\), None\]"):
        chosen.replicate(step_fn, inputs)


def test_keras_is_told_of_reduced_gradients():
    variable = tf.Variable(1.0)
    pairs = [(tf.constant(1.0), variable)]
    sgd = OPTIMIZERS["keras sgd"]
    with pytest.raises(rr.ConfigError, match=r'use wrap_optimizer\(..., reduction="none"\)'):
        replicator(1).wrap_optimizer(sgd()).apply_gradients(pairs, skip_gradients_aggregation=True)
    optimizer = replicator(1).wrap_optimizer(sgd(), reduction="none")
    optimizer.apply_gradients(pairs, skip_gradients_aggregation=True)
    assert variable.numpy() < 1.0


def test_a_function_that_steps_would_share_skips_nothing():
    """Each step has its own statistics to restore."""
    variables, optimizer = learner(
        1, OPTIMIZERS["sonnet sgd"], reduction="none", skip_nonfinite=True
    )
    apply = tf.function(lambda: optimizer.apply([v * 0 for v in variables], variables))
    chosen = replicator(1)

    def step_fn(_):
        tf.cond(tf.constant(True), apply, lambda: None)

    with pytest.raises(rr.ConfigError, match="outside of nested tf.functions"):
        chosen.replicate(step_fn, chosen.make_inputs(batches))


def state(variables, optimizer):
    """All variables of both, by name in a checkpoint, except the guard's."""
    found = parts.TrackablePart(variables=variables, optimizer=optimizer).variables()
    return {
        name: [copy.numpy() for copy in getattr(variable, "values", (variable,))]
        for name, variable in found.items()
        if "guard" not in name
    }


@pytest.mark.parametrize(("count", "nested"), [(1, True), (2, False)])
def test_all_losses_of_a_step_have_one_scale(count, nested):
    """The first update is skipped, which halves the scale; that must not double the second one.

    Nor may it in the second of two steps that call the same `tf.function`.
    """
    chosen = replicator(count)
    with chosen.scope():
        variables = [tf.Variable(0.0), tf.Variable(0.0)]
        optimizer = chosen.wrap_optimizer(snt.optimizers.SGD(1.0), loss_scale="dynamic")

    scale_loss = optimizer.scale_loss
    if nested:
        scale_loss = tf.function(scale_loss, autograph=False)

    def step_fn(factors):
        with tf.GradientTape(persistent=True) as tape:
            first = scale_loss(variables[0] * factors[0])
            second = scale_loss(variables[1] * factors[1])
        optimizer.apply([tape.gradient(first, variables[0]), None], variables)
        optimizer.apply([None, tape.gradient(second, variables[1])], variables)
        with tf.GradientTape() as tape:
            third = scale_loss(variables[1] * factors[1])
        optimizer.apply([None, tape.gradient(third, variables[1])], variables)

    data = tf.data.Dataset.from_tensors([np.inf, 1.0]).repeat()
    step_fn = tf.autograph.experimental.do_not_convert(step_fn)
    inputs = chosen.make_inputs(lambda context: data)
    chosen.replicate(step_fn, inputs, steps_per_call=2)()
    assert [variable.numpy() for variable in variables] == [0.0, -4.0]
    assert int(optimizer.num_skipped) == 2
    assert float(optimizer.loss_scale) == gradients.INITIAL_SCALE / 4
    chosen.replicate(step_fn, inputs)()
    assert [variable.numpy() for variable in variables] == [0.0, -6.0]
    assert float(optimizer.loss_scale) == gradients.INITIAL_SCALE / 8


def test_checkpoints_move_between_numbers_of_replicas(tmp_path):
    learners = [learner(count, OPTIMIZERS["keras ema"], loss_scale="dynamic") for count in (2, 1)]
    (variables, optimizer), (others, other) = learners
    chosen = replicator(2)
    chosen.replicate(make_step(variables, optimizer), chosen.make_inputs(batches))()
    with chosen.scope():
        optimizer.guard.scale.assign(8.0)
        optimizer.guard.num_skipped.assign(5)
    here = parts.TrackablePart(variables=variables, optimizer=optimizer)
    there = parts.TrackablePart(variables=others, optimizer=other)
    checkpoints.Checkpointer(tmp_path).save(1, {"learner": here})
    checkpoints.Checkpointer(tmp_path).restore({"learner": there})
    assert (float(other.loss_scale), int(other.num_skipped)) == (8.0, 5)
    saved, restored = state(variables, optimizer), state(others, other)
    assert saved.keys() == restored.keys()
    assert any("slot" in key or "/m/" in key or "_variables" in key for key in saved)
    for key, copies in saved.items():
        np.testing.assert_array_equal(copies[0], restored[key][0], key)


@pytest.mark.parametrize(("name", "count"), [("keras ema", 2), ("fused adam", 1)])
def test_a_step_that_is_not_finite_is_skipped_by_all(name, count, caplog):
    chosen = replicator(count)
    variables, optimizer = learner(count, OPTIMIZERS[name], skip_nonfinite=True)
    with chosen.scope():
        bad = tf.Variable(-1, trainable=False)  # The replica that has a NaN.
    step_fn = make_step(variables, optimizer, spoiled=lambda: bad == collectives.replica_id())
    step = chosen.replicate(step_fn, chosen.make_inputs(batches))
    step()
    before = state(variables, optimizer)
    with chosen.scope():
        bad.assign(count - 1)
    assert chosen.gather(step()).tolist() == [1] * count
    after = state(variables, optimizer)
    assert before.keys() == after.keys() and len(before) > 4
    for key, copies in before.items():
        np.testing.assert_array_equal(copies, after[key], key)
    with chosen.scope():
        bad.assign(-1)
    step()
    assert not np.array_equal(before["variables/0"], state(variables, optimizer)["variables/0"])
    with caplog.at_level(logging.WARNING):
        assert (optimizer.report_skipped(), optimizer.report_skipped()) == (1, 0)
    ours = [r.getMessage() for r in caplog.records if r.name == wrapping.__name__]
    assert ours == ["skipped 1 steps whose gradients were not finite (1 in all)"]


def train(count, make_optimizer, steps=4, share=1.0, built=True, **options):
    variables, optimizer = learner(count, make_optimizer, built, **options)
    step_fn = make_step(variables, optimizer, share)
    chosen = replicator(count)
    chosen.replicate(step_fn, chosen.make_inputs(batches), steps)()
    for variable in variables:
        for copy in getattr(variable, "values", ())[1:]:
            np.testing.assert_array_equal(copy.numpy(), variable.values[0].numpy())
    return [variable.numpy() for variable in variables]


@functools.cache
def reference(name):
    """One device without any wrapper."""
    optimizer = OPTIMIZERS[name]()
    start = np.linspace(-1, 1, ROWS * 3, dtype=np.float32).reshape(ROWS, 3)
    variables = [tf.Variable(start), tf.Variable([0.5, -0.5, 1.0])]
    for i in range(4):
        rows = slice(i * GLOBAL_BATCH, (i + 1) * GLOBAL_BATCH)
        with tf.GradientTape() as tape:
            loss = loss_of([*variables, None], (DATA[rows], WORDS[rows]))
        gradients = tape.gradient(loss, variables)
        # One row for each index, which clipping counts once.
        indices, places = np.unique(gradients[0].indices, return_inverse=True)
        values = np.zeros([len(indices), 3], np.float32)
        np.add.at(values, places, gradients[0].values)
        gradients[0] = tf.IndexedSlices(tf.constant(values), tf.constant(indices))
        if isinstance(optimizer, snt.Optimizer):
            optimizer.apply(gradients, variables)
        else:
            optimizer.apply_gradients(zip(gradients, variables, strict=True))
    return [variable.numpy() for variable in variables]


def close(got, expected, tolerance=1e-5):
    for one, other in zip(got, expected, strict=True):
        np.testing.assert_allclose(one, other, tolerance, tolerance)


def test_sum():
    # Each replica's loss is its share of the whole.
    weights = train(2, OPTIMIZERS["sonnet sgd"], share=1 / 2, reduction="sum")
    close(weights[:2], reference("sonnet sgd"))


def test_clipping_counts_sparse_rows_as_dense():
    """The limit is that of the gradients of the loss, not of the scaled loss."""

    def one_step(limit):
        options = {"max_global_norm": limit, "loss_scale": 64.0}
        return train(2, lambda: snt.optimizers.SGD(1.0), 1, **options)

    start = [variable.numpy() for variable in learner(1, lambda: snt.optimizers.SGD(1.0))[0]]
    free, clipped = one_step(None), one_step(0.25)
    flat = [np.concatenate([w.ravel() for w in weights]) for weights in (start, free, clipped)]
    moves = [flat[1] - flat[0], flat[2] - flat[0]]
    assert np.linalg.norm(moves[0]) > 0.25
    np.testing.assert_allclose(np.linalg.norm(moves[1]), 0.25, 1e-5)
    np.testing.assert_allclose(moves[1], moves[0] * 0.25 / np.linalg.norm(moves[0]), 1e-4, 1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "count", "scale"),
    [
        *((name, 2, None) for name in OPTIMIZERS if "sgd" not in name and name != "sonnet adam"),
        # Not Adam, whose steps are the same for gradients of any scale.
        ("sonnet sgd", 2, 1024.0),
        ("keras sgd", 2, "dynamic"),
    ],
)
def test_any_optimizer_equals_one_device(name, count, scale):
    weights = train(count, OPTIMIZERS[name], loss_scale=scale)
    close(weights[:2], reference(name))
    assert weights[2] == 1.0


def without_bias():
    optimizer = keras.AdamW(0.1, weight_decay=0.5)
    optimizer.exclude_from_weight_decay(var_names=["^bias:0$"])
    return optimizer


def test_replicas_see_the_same_names():
    """Although one of the gradients is sparse."""

    def trained(count):
        chosen = replicator(count)
        with chosen.scope():
            variables = [tf.Variable(tf.ones([ROWS, 3])), tf.Variable([1.0], name="bias")]
            optimizer = chosen.wrap_optimizer(without_bias())

        def step_fn(batch):
            x, words = batch
            with tf.GradientTape() as tape:
                table, bias = variables
                loss = tf.reduce_mean(tf.reduce_sum(x * tf.gather(table, words), 1) + bias)
            optimizer.apply(tape.gradient(loss, variables), variables)

        step_fn = tf.autograph.experimental.do_not_convert(step_fn)
        chosen.replicate(step_fn, chosen.make_inputs(batches), 3)()
        return [variable.numpy() for variable in variables]

    close(trained(2), trained(1))


def test_an_optimizer_has_the_slots_of_one_list_of_parameters():
    first, second = tf.Variable(1.0, name="first"), tf.Variable(2.0, name="second")
    optimizer = replicator(1).wrap_optimizer(rr.optimizers.Adam(0.1))
    with pytest.raises(rr.ConfigError, match="got none; build the model on a first input"):
        replicator(1).build_optimizer(optimizer, tf.keras.layers.Dense(1).trainable_variables)
    replicator(1).build_optimizer(optimizer, [first, second])
    replicator(1).build_optimizer(optimizer, (first, second))
    for others in ([second, first], [first]):
        with pytest.raises(rr.ConfigError, match=r"\(first:0, second:0\), got .*one optimizer for"):
            replicator(1).build_optimizer(optimizer, others)


@pytest.mark.parametrize("name", ["sonnet sgd", "keras sgd"])
def test_constraints_of_variables_hold(name):
    chosen = replicator(2)
    with chosen.scope():
        weight = tf.Variable([0.01, 5.0], constraint=tf.keras.constraints.NonNeg())
        optimizer = chosen.wrap_optimizer(OPTIMIZERS[name]())

    def step_fn(batch):
        optimizer.apply([tf.constant([3.0, 1.0])], [weight])

    chosen.replicate(step_fn, chosen.make_inputs(batches), 2)()
    for copy in getattr(weight, "values", (weight,)):
        first, second = copy.numpy()
        assert first == 0.0 and 0.0 < second < 5.0


class MyKerasOptimizer(keras.SGD):
    """A subclass of Keras's that a user wrote."""

    def update_step(self, gradient, variable):
        variable.assign_sub(0.1 * gradient)


@pytest.mark.parametrize(
    ("make_optimizer", "count"),
    [
        (lambda: snt.optimizers.Adam(0.1), 2),
        (lambda: rr.optimizers.Adam(0.1), 1),
        (MyKerasOptimizer, 2),
        (lambda: keras.legacy.Adam(0.1), 2),
    ],
)
def test_a_forgotten_wrap_is_refused(make_optimizer, count):
    """Replicas would diverge (Sonnet), or sum the gradients (Keras)."""
    chosen = replicator(count)
    with chosen.scope():
        w = tf.Variable(1.0)
        optimizer = make_optimizer()

    def step_fn(batch):
        gradients = [tf.reduce_sum(batch[0])]
        if isinstance(optimizer, snt.Optimizer):
            optimizer.apply(gradients, [w])
        else:
            optimizer.apply_gradients(zip(gradients, [w], strict=True))

    with pytest.raises(rr.ConfigError, match=r"an unwrapped one in the step .*wrap_optimizer"):
        chosen.replicate(step_fn, chosen.make_inputs(batches))


def test_outside_of_steps_any_optimizer_may_be_applied():
    w = tf.Variable(1.0)
    optimizer = snt.optimizers.SGD(0.5)

    def step_fn(x):
        with tf.init_scope():
            optimizer.apply([tf.constant(1.0)], [w])
        return x

    inputs = replicator(1).make_inputs(lambda context: lambda: tf.constant(1))
    replicator(1).replicate(step_fn, inputs)
    assert w.numpy() <= 0.5


def test_a_step_may_reduce_the_gradients_itself():
    chosen = replicator(2)
    with chosen.scope():
        w = tf.Variable(1.0)
        optimizer = chosen.wrap_optimizer(snt.optimizers.SGD(1.0), reduction="none")

    def step_fn(x):
        gradients = collectives.all_mean([x])
        tf.cond(gradients[0] > 1.0, lambda: optimizer.apply(gradients, [w]), lambda: None)

    data = tf.data.Dataset.from_tensor_slices([1.0, 1.0, 2.0, 4.0])
    step = chosen.replicate(step_fn, chosen.make_inputs(lambda context: data))
    values = []
    for _ in range(2):
        step()
        values.append([copy.numpy() for copy in w.values])
    assert values == [[1.0, 1.0], [-2.0, -2.0]]
