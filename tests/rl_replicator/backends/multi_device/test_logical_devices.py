"""Replicas of several logical devices: what is placed where, and that the maths stays the same."""

import collections

import numpy as np
import pytest
import sonnet as snt
import tensorflow as tf

import rl_replicator as rr

BATCH = 16
DATA = np.random.default_rng(0).normal(size=(64, 5)).astype(np.float32)


class Model(snt.Module):
    """Its middle is on logical device 1: a layer that is used twice, loops and branches."""

    def __init__(self, replicator, index):
        super().__init__()
        self._replicator = replicator
        self._index = index
        self.first = snt.Linear(8, name="first")
        with replicator.logical_device(index):
            self.middle = snt.Linear(8, name="middle")
        self.last = snt.Linear(1, name="last")

    def __call__(self, x):
        x = tf.tanh(self.first(x))
        with self._replicator.logical_device(self._index):
            x = tf.tanh(self.middle(x))
            for _ in tf.range(2):
                x = tf.sin(x) * 1.1
            if tf.reduce_sum(tf.square(x)) > 0:
                x = tf.cos(x)
            x = self.middle(x)
        return self.last(x)


def make_step(replicator, index, optimizer_class=snt.optimizers.Adam, is_built=True, **options):
    with replicator.scope():
        model = Model(replicator, index)
        if is_built:
            model(tf.zeros([1, 5]))
        optimizer = replicator.wrap_optimizer(optimizer_class(1e-2), **options)

    def step_fn(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(x)[:, 0] - tf.reduce_sum(x, axis=1)))
        parameters = model.trainable_variables
        optimizer.apply(tape.gradient(loss, parameters), parameters)
        return loss

    def input_fn(context):
        size = context.per_replica_batch_size(BATCH)
        return tf.data.Dataset.from_tensor_slices(DATA).batch(size, drop_remainder=True).repeat()

    step = replicator.replicate(step_fn, replicator.make_inputs(input_fn), 10)
    rng = np.random.default_rng(1)
    for variable in model.trainable_variables:
        variable.assign(rng.normal(size=variable.shape).astype(np.float32))
    return model, optimizer, step


def devices_of(variable):
    return [component.device[-5:] for component in variable.values]


def placed(step):
    """The names of operations by device: of the step and of the functions inside it."""
    names = collections.defaultdict(list)
    definition = step._compiled.graph.as_graph_def()
    for function in definition.library.function:
        for node in function.node_def:
            if node.device:
                names[node.device[-5:]].append((node.name, node.op))
    return names


@pytest.mark.parametrize("name", ["multi_device:1x2", "multi_device:2x2"])
@pytest.mark.parametrize("optimizer_class", [snt.optimizers.Adam, rr.optimizers.Adam])
def test_equals_one_device(name, optimizer_class):
    options = {"max_global_norm": 1.0}
    results = []
    for replicator, index in ((rr.make(name), 1), (rr.SingleDeviceReplicator(), 0)):
        model, _, step = make_step(replicator, index, optimizer_class, **options)
        step()
        step()
        results.append([v.numpy() for v in model.trainable_variables])
    for got, want in zip(*results, strict=True):
        assert np.abs(got - want).max() / np.abs(want).max() <= 1e-5


@pytest.mark.parametrize("is_built", [True, False], ids=["eagerly", "in the step"])
def test_variables_and_slots(is_built):
    model, optimizer, step = make_step(rr.make("multi_device:2x2"), 1, is_built=is_built)
    step()
    for variable in (*model.trainable_variables, *optimizer.m, *optimizer.v):
        middle = "middle/" in variable.name
        assert devices_of(variable) == (["CPU:1", "CPU:3"] if middle else ["CPU:0", "CPU:2"])
        assert "logical_device" not in variable.name


def test_forward_backward_and_updates():
    names = placed(make_step(rr.make("multi_device:2x2"), 1)[-1])
    for main, other in (("CPU:0", "CPU:1"), ("CPU:2", "CPU:3")):
        # Forward, and for each use of the layer the gradients of its input and of its weights.
        on_main = collections.Counter(op for _, op in names[main])
        on_other = collections.Counter(op for _, op in names[other])
        assert (on_main["MatMul"], on_other["MatMul"]) == (2 + 3, 2 + 4)
        # The loop with all that its gradient needs, the branch and its gradient.
        for op in ("Sin", "Cos", "While", "If", "StatelessWhile", "StatelessIf"):
            assert not on_main[op]
        assert on_other["Cos"] >= 2
        assert on_other["While"] + on_other["StatelessWhile"] == 2
        # Both gradients of the layer that is used twice are added where it lies.
        assert on_other["AddN"] >= 2
        for name, op in names[main]:
            assert "middle/" not in name, (name, op)
        for name, op in names[other]:
            assert "first/" not in name and "last/" not in name, (name, op)
        # Adam: w and b each of m, v and the parameter itself.
        assigned = [op for op in on_other if op.startswith("Assign")]
        assert sum(on_other[op] for op in assigned) == 6
        assert on_other["Sqrt"] == 2


def test_gradients_of_gradients():
    replicator = rr.make("multi_device:1x2")
    with replicator.scope(), replicator.logical_device(1):
        w = tf.Variable([[2.0]], name="w")

    def step_fn(x):
        with tf.GradientTape() as outer:
            with tf.GradientTape() as inner, replicator.logical_device(1):
                y = tf.sin(tf.matmul(x, w))
            penalty = tf.reduce_sum(tf.square(inner.gradient(y, w)))
        return outer.gradient(penalty, w)

    inputs = replicator.make_inputs(lambda context: lambda: tf.constant([[0.5]]))
    step = replicator.replicate(step_fn, inputs)
    # d/dw (0.5 cos(0.5 w))^2 = -0.25 cos sin at w = 2
    np.testing.assert_allclose(step(), [[-0.25 * np.cos(1.0) * np.sin(1.0)]], rtol=1e-5)
    names = placed(step)
    assert all(op != "MatMul" for _, op in names["CPU:0"])
    assert sum(op == "MatMul" for _, op in names["CPU:1"]) >= 3  # Of each order.


def test_slots_of_layers_with_one_name_cannot_be_told_apart():
    replicator = rr.make("multi_device:1x2")
    with replicator.scope():
        first = snt.Linear(5)
        first(tf.zeros([1, 5]))
        with replicator.logical_device(1):
            second = snt.Linear(5)
            second(tf.zeros([1, 5]))
        optimizer = replicator.wrap_optimizer(snt.optimizers.Adam(1e-3))
    with pytest.raises(rr.ConfigError, match=r"'linear/b' on several.*give the layers names"):
        replicator.build_optimizer(optimizer, [*first.variables, *second.variables])


def test_indices_and_sizes_that_are_not_there():
    for name, index, match in (
        ("single_device", 1, "logical device 0, the only one .* got 1; use a replicator with more"),
        ("multi_device:2", 1, "logical device 0, the only one"),
        ("mesh:data=2", 1, "logical device 0, the only one"),
        ("multi_device:2x2", 2, r"in \[0, 2\), got 2; make the .* e.g. multi_device:2x3"),
        ("multi_device:2x2", -1, r"in \[0, 2\), got -1; count from 0"),
    ):
        replicator = rr.make(name)
        with replicator.logical_device(0):
            pass
        inputs = replicator.make_inputs(lambda context: lambda: tf.constant(1.0))

        def step_fn(x, replicator=replicator, index=index):
            with replicator.logical_device(index):
                return x

        for use in (lambda: step_fn(0), lambda: replicator.replicate(step_fn, inputs)):  # noqa: B023
            with pytest.raises(rr.ConfigError, match=match) as error:
                use()
            assert "\n" not in str(error.value)
    for name in ("multi_device:2x", "multi_device:2x0", "multi_device:x2", "multi_device:2x2x2"):
        with pytest.raises(rr.ConfigError, match="as in multi_device:2x2"):
            rr.make(name)
    with pytest.raises(rr.ConfigError, match="replicas of 2 each, got 3"):
        rr.MultiDeviceReplicator(devices=("/cpu:0", "/cpu:1", "/cpu:2"), devices_per_replica=2)


def test_a_variable_from_outside():
    replicator = rr.make("multi_device:1x2")
    outside = tf.Variable(1.0, name="from_outside")
    inputs = replicator.make_inputs(lambda context: lambda: tf.constant(1.0))

    def step_fn(x):
        with replicator.logical_device(1):
            return outside.assign_add(x)

    with pytest.raises(rr.ConfigError, match="'from_outside:0'"):
        replicator.replicate(step_fn, inputs)
