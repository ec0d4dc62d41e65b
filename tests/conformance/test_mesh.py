"""Behaviour specific to a mesh: layouts, shared inputs, what it refuses. test_replicators.py tests
the rest of the contract, and test_equality.py that split layers train as on one device."""

import numpy as np
import pytest
import sonnet as snt
import tensorflow as tf
from tensorflow.experimental import dtensor

import rl_replicator as rr

pytestmark = pytest.mark.usefixtures("plain_graphs")
BATCH = 16
IMAGES = np.random.default_rng(0).normal(size=(48, 6, 6, 3)).astype(np.float32)
# The first layer is split by columns and the second by rows, as in Shoeybi et al. 2019
# (arXiv:1909.08053).
LAYOUTS = {
    r"first/w": ("none", "model"),
    r"first/b": ("model",),
    r"^(mlp|conv_net)/second/w": ("model", "none"),  # Slots follow by object, not by name.
}
MESH = {"data": 2, "model": 2}


@pytest.fixture(scope="module")
def replicator():
    return rr.MeshReplicator(MESH)


def images(context):
    size = context.per_replica_batch_size(BATCH)
    return tf.data.Dataset.from_tensor_slices(IMAGES).batch(size, drop_remainder=True).repeat()


class Mlp(snt.Module):
    def __init__(self):
        super().__init__()
        self.first = snt.Linear(32, name="first")
        self.second = snt.Linear(1, name="second")

    def __call__(self, x):
        return self.second(tf.nn.relu(self.first(tf.reshape(x, [-1, 108]))))


def train(replicator, model_class, steps, optimizer_class=snt.optimizers.Adam, **options):
    """Returns the model and the optimizer after `steps` steps; compiles nothing if that is 0."""
    with replicator.scope():
        model = model_class()
        optimizer = replicator.wrap_optimizer(optimizer_class(1e-3), **options)
        model(tf.zeros([1, 6, 6, 3]))
    replicator.build_optimizer(optimizer, model.trainable_variables)
    for variable, value in zip(model.trainable_variables, start_of(model), strict=True):
        variable.assign(value)
    if not steps:
        return model, optimizer

    def step_fn(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(x)[:, 0] - tf.reduce_mean(x, axis=[1, 2, 3])))
        parameters = model.trainable_variables
        optimizer.apply(tape.gradient(loss, parameters), parameters)
        return loss

    step = replicator.replicate(step_fn, replicator.make_inputs(images), 10)
    for _ in range(steps // 10):
        step()
    return model, optimizer


def start_of(model):
    """Returns the initial values of the trainable variables."""
    rng = np.random.default_rng(1)
    return [rng.normal(size=v.shape).astype(np.float32) for v in model.trainable_variables]


def rate(step):
    return 0.01 / (1.0 + tf.cast(step, tf.float32))


def decayed(variables):
    return [variable.shape.rank > 1 for variable in variables]


OPTIMIZERS = {
    "adam": rr.optimizers.Adam,
    "lars": lambda _: rr.optimizers.LARS(rate, decayed, 0.9, 0.1, trust=0.1),
    "keras adam": tf.keras.optimizers.Adam,
    "keras adafactor": tf.keras.optimizers.Adafactor,  # It also has slots of other shapes.
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizer_equals_one_device(name):
    """One layer is split by columns with its bias, the other by rows; slots are split likewise."""
    options = {"max_global_norm": 1.0, "skip_nonfinite": True}  # Puts kernels in a tf.cond.
    runs = []
    for replicator in (rr.MeshReplicator(MESH, LAYOUTS), rr.SingleDeviceReplicator()):
        model, optimizer = train(replicator, Mlp, 10, OPTIMIZERS[name], **options)
        state = slots_of(optimizer, model.trainable_variables)
        start = start_of(model)
        moved = [v.numpy() - w for v, w in zip(model.trainable_variables, start, strict=True)]
        runs.append((moved, [[slot.numpy() for slot in slots] for slots in state]))
        if isinstance(replicator, rr.MeshReplicator):
            for variable, slots in zip(model.trainable_variables, state, strict=True):
                assert slots
                for slot in slots:
                    assert slot.layout == variable.layout, slot.name
    for got, want in zip(*map(tf.nest.flatten, runs), strict=True):
        assert np.abs(want).max() > 1e-6
        assert np.abs(got - want).max() <= 1e-4 * np.abs(want).max()


def slots_of(optimizer, parameters):
    """Returns the slots of each parameter, by its index in the optimizer's lists."""
    names = ("m", "v", "scaled_velocities", "_momentums", "_velocities", "_v")
    lists = [getattr(optimizer, name, ()) for name in names]
    return [[slots[i] for slots in lists if slots] for i in range(len(parameters))]


def test_variables_and_slots_lie_as_their_layout_says():
    name = "mesh:data=2,model=2@first/w=none,model@first/b=model@second/w=model,none"
    model, optimizer = train(rr.make(name), Mlp, 0)
    specs = {"first/w": ("none", "model"), "first/b": ("model",), "second/w": ("model", "none")}
    for variable in model.trainable_variables:
        spec = specs.get(variable.name.removeprefix("mlp/").removesuffix(":0"), ("none",))
        want = [dtensor.UNSHARDED if axis == "none" else axis for axis in spec]
        slots = [m for m in optimizer.m if m.name.endswith("/" + variable.name)]
        assert len(slots) == 1
        for one in (variable, *slots):
            assert one.layout.sharding_specs == want
    shards = {name[-5:]: part.numpy() for name, part in model.first.w.shards().items()}
    kind = "GPU" if tf.config.list_logical_devices("GPU") else "CPU"
    assert sorted(shards) == [f"{kind}:{i}" for i in range(4)]
    whole = model.first.w.numpy()
    for name, half in ((f"{kind}:0", whole[:, :16]), (f"{kind}:3", whole[:, 16:])):
        np.testing.assert_array_equal(shards[name], half)


def test_outside_of_steps_variables_are_ordinary():
    model, _ = train(rr.MeshReplicator(MESH, LAYOUTS), Mlp, 0)
    w = model.first.w
    value = np.arange(108 * 32, dtype=np.float32).reshape(108, 32)
    w.assign(value)
    w.assign_add(np.ones_like(value))
    w.assign_sub(2 * np.ones_like(value))
    np.testing.assert_array_equal(w, value - 1)
    np.testing.assert_allclose(
        model(IMAGES)[:, 0],
        np.maximum(IMAGES.reshape(-1, 108) @ w.numpy() + model.first.b.numpy(), 0)
        @ model.second.w.numpy()[:, 0]
        + model.second.b.numpy(),
        rtol=1e-3,  # GPUs round factors to TF32.
    )
    with pytest.raises(ValueError, match="expected a value of shape"):
        w.assign(value[:1])


ROWS = np.arange(12, dtype=np.float32).reshape(6, 2)
IDS = np.arange(24, dtype=np.int32).reshape(4, 6) % 5  # DTensor itself copies small tensors.
LOOKUPS = {
    "gather": lambda table, ids: tf.gather(table, ids),
    "embedding_lookup": lambda table, ids: tf.nn.embedding_lookup(table, ids),
    "gather_nd": lambda table, ids: tf.gather_nd(table, ids[..., None]),
}


def test_rows_of_a_table_are_read_in_steps_and_outside():
    replicator = rr.make("mesh:data=2,model=2@table=none,model")
    with replicator.scope():
        table = tf.Variable(ROWS, name="table")
        for lookup in LOOKUPS.values():
            np.testing.assert_array_equal(lookup(table, IDS), ROWS[IDS])
    inputs = replicator.make_inputs(lambda context: tf.data.Dataset.from_tensors(IDS))
    step = replicator.replicate(
        lambda ids: [lookup(table, ids) for lookup in LOOKUPS.values()], inputs
    )
    for name, got in zip(LOOKUPS, step(), strict=True):
        np.testing.assert_array_equal(LOOKUPS[name](table, IDS), ROWS[IDS])
        np.testing.assert_array_equal(got, ROWS[IDS])


@pytest.mark.parametrize("make", [snt.Embed, tf.keras.layers.Embedding])
def test_embeddings_are_built_and_called_outside_of_steps(make):
    replicator = rr.make("mesh:data=2")
    with replicator.scope():
        embed = make(6, 2)
        built = embed(IDS)
    (table,) = embed.trainable_variables
    for rows in (built, embed(IDS)):
        np.testing.assert_array_equal(rows, table.numpy()[IDS])
    inputs = replicator.make_inputs(lambda context: tf.data.Dataset.from_tensors(IDS))
    np.testing.assert_array_equal(replicator.replicate(embed, inputs)(), table.numpy()[IDS])


def test_constants_and_noise(replicator):
    scale = tf.constant(np.arange(200.0), tf.float32)  # Too large to be embedded in the graph.
    with replicator.scope():
        generator = tf.random.Generator.from_seed(1)

    def step_fn(noise):
        seeded = tf.random.stateless_uniform([4], [1, 2])
        return noise + tf.reduce_sum(scale), seeded, generator.uniform([4])

    inputs = replicator.make_inputs(lambda context: lambda: tf.random.uniform([4]))
    step = replicator.replicate(step_fn, inputs)
    first, second = replicator.gather(step()), replicator.gather(step())
    assert not np.array_equal(first[0], second[0])
    np.testing.assert_array_equal(first[1][0], tf.random.stateless_uniform([4], [1, 2]))
    assert not np.array_equal(first[2], second[2])


def test_a_variable_read_after_its_assignment_is_new(replicator):
    """DTensor may combine all-reduces across assignments; see mesh.py."""
    data = np.random.default_rng(0).normal(size=(BATCH, 108)).astype(np.float32)
    with replicator.scope():
        weights = [tf.Variable(tf.ones([108, 1])), tf.Variable(tf.zeros([1]))]
        moments = [[tf.Variable(tf.zeros(w.shape), trainable=False) for _ in "mv"] for w in weights]

    def step_fn(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(tf.matmul(x, weights[0]) + weights[1]))
        gradients = tape.gradient(loss, weights)
        for weight, (m, v), gradient in zip(weights, moments, gradients, strict=True):
            m.assign_add((gradient - m) * 0.1)
            v.assign_add((tf.square(gradient) - v) * 0.01)
            weight.assign_sub(m / (tf.sqrt(v) + 1e-7))
        return gradients

    inputs = replicator.make_inputs(lambda context: tf.data.Dataset.from_tensors(data).repeat())
    gradients = replicator.replicate(step_fn, inputs)()
    for weight, start, gradient in zip(weights, (1, 0), gradients, strict=True):
        np.testing.assert_allclose(weight, start - np.sign(gradient), atol=1e-3)


def test_inputs_that_do_not_divide(replicator):
    for batch_size in (15, 16):
        source = tf.data.Dataset.range(31).batch(batch_size, drop_remainder=batch_size == 15)
        with pytest.raises(rr.ConfigError, match=r"first dimension data=2 divides, got shape \(15"):
            inputs = replicator.make_inputs(lambda context, source=source: source)
            step = replicator.replicate(lambda x: x, inputs)
            step()
            step()


def test_layouts_that_cannot_be_followed():
    for layouts, match in (
        ({"first/w": ("none", "modle")}, "to name dimensions of the mesh .data, model.*'modle'"),
        ({"first/w": ("model",)}, r"to name 2 dimensions for 'mlp/first/w' \(108, 32\)"),
        ({"second/w": ("none", "model")}, r"'mlp/second/w' \(32, 1\) that model=2 divides, got 1"),
        ({"third/w": ("none", "model")}, "'third/w' to match the name of a.*mlp/first/w"),
        ({"first/(w": ("none", "model")}, "expected a regular expression"),
    ):
        with pytest.raises(rr.ConfigError, match=match) as error:
            train(rr.MeshReplicator(MESH, layouts), Mlp, 10)
        assert "\n" not in str(error.value)


def test_meshes_that_cannot_be_made():
    for name in (
        *("mesh", "mesh:", "mesh:data", "mesh:data=0", "mesh:a=2,a=2", "mesh:data=2@"),
        *("mesh:data=2@w", "mesh:data=2@w=", "mesh:data=2@=none", "mesh:data=2@w=none@w=data"),
        "mesh:data=2@w=model",
    ):
        with pytest.raises(rr.ConfigError, match="^expected "):
            rr.make(name)


def refuses(replicator, match, step_fn, inputs=None):
    with pytest.raises(rr.ConfigError, match=match) as error:
        replicator.replicate(step_fn, inputs or replicator.make_inputs(images))()
    assert "\n" not in str(error.value)


PIXELS = np.array([[0, 1, 5], [2, 4, 0]])


def gradient_of_gather_nd(x, indices):
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = tf.reduce_sum(tf.gather_nd(x, indices) ** 2)
    return tape.gradient(y, x)


def gradient_of_gather(x):
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = tf.reduce_sum(tf.gather(x, tf.zeros([BATCH], tf.int32), batch_dims=1))
    return tape.gradient(y, x)


def test_operations_that_a_mesh_cannot_run(replicator):
    refuses(replicator, "found RandomUniform .*stateless", lambda x: tf.nn.dropout(x, 0.5))
    refuses(
        replicator,
        "PyFunc",
        lambda x: tf.numpy_function(lambda y: y, [tf.shape(x)[0]], tf.int32, stateful=False),
    )
    layers = tf.keras.layers
    for layer in (layers.BatchNormalization(), layers.LayerNormalization()):
        with replicator.scope():
            layer(IMAGES)
        message = (
            "CrossReplicaBatchNorm, or fused=False .* LayerNormalization, snt.LayerNorm, or an"
        )
        refuses(replicator, f"{message} epsilon of at most 1e-5$", layer)
    # On these, DTensor crashes or returns wrong results.
    for slices in (lambda x: x[tf.newaxis], lambda x: x[:, tf.newaxis, ...]):
        refuses(replicator, "use tf.expand_dims instead of tf.newaxis", slices)
    refuses(replicator, "use tf.gather instead of a slice with a negative step", lambda x: x[::-1])
    for indices_are_used in (
        lambda x: tf.scatter_nd(PIXELS, x[:2, 0, 0], tf.shape(x, tf.int64)),
        lambda x: gradient_of_gather_nd(x, PIXELS),
    ):
        refuses(replicator, "found ScatterNd .*use int32 indices in tf.scat", indices_are_used)
    refuses(replicator, "use tf.slice", lambda x: x[: tf.cast(tf.reduce_sum(x) * 0, tf.int32)])
    refuses(replicator, "tf.gather_nd in place of a tf.gather with", gradient_of_gather)
    refuses(replicator, "found Where", lambda x: tf.boolean_mask(x, x > 0))
    refuses(replicator, "use tf.cast", lambda x: tf.reduce_mean(tf.cast(x, tf.int32)))

    def positive(x):
        return tf.reduce_mean(x) > 0

    advice = "tf.fill"
    refuses(replicator, advice, lambda x: tf.where(positive(x), x, -x))
    refuses(replicator, advice, lambda x: tf.where(positive(x), 1.0, x))

    def in_a_branch(x):
        return tf.cond(positive(x), lambda: tf.where(positive(x), x, -x), lambda: x)

    refuses(replicator, advice, in_a_branch)
    index = tf.constant(0)
    refuses(replicator, "use tf.cond", lambda x: tf.switch_case(index, [lambda: x, lambda: -x]))
    # Only DTensor itself detects this one.
    refuses(replicator, "got LRN", tf.nn.local_response_normalization)


def test_assignments_in_a_function_that_was_traced_before(replicator):
    with replicator.scope():
        value = tf.Variable(0.0)

    def add(is_due):
        tf.cond(is_due, lambda: value.assign_add(1.0), value.read_value)

    def read(is_due):
        return tf.cond(is_due, value.read_value, lambda: 0.0)

    functions = {function: tf.function(function) for function in (add, read)}
    for function in functions.values():
        function.get_concrete_function(tf.TensorSpec([], tf.bool))

    def step_with(function):
        return lambda x: function(tf.reduce_sum(x * x) > 0.0)

    refuses(replicator, "found If .*call function.python_function", step_with(functions[add]))
    inputs = replicator.make_inputs(images)
    replicator.replicate(step_with(functions[add].python_function), inputs)()
    assert value.numpy() == 1.0
    assert replicator.replicate(step_with(functions[read]), inputs)() == 1.0


def test_operations_that_look_like_those(replicator):
    indices = PIXELS.astype(np.int32)
    with replicator.scope():
        norm = tf.keras.layers.LayerNormalization(epsilon=1e-5)
        normalized = norm(IMAGES[:BATCH])

    def slices(x):
        return x[..., tf.newaxis], x[:, 1:2, :, :, tf.newaxis], x[:, -1], x[1:3, ..., 0]

    def step_fn(x):
        is_high = tf.reduce_mean(x) > 1000
        return {
            "sum": tf.where(is_high, 1.0, tf.reduce_sum(x)),
            "same": tf.where(tf.fill(tf.shape(x), is_high), -x, x),
            "chosen": tf.cond(is_high, lambda: -x, lambda: x),
            "slices": slices(x),
            "scattered": tf.scatter_nd(indices, x[:2, 0, 0], tf.shape(x)),
            "gradient": gradient_of_gather_nd(x, indices),
            "normalized": norm(x),
            "squares": rr.micro_batches.accumulate(lambda part: tf.reduce_mean(part**2), x, 4),
        }

    batch = IMAGES[:BATCH]
    scattered, gradient = np.zeros_like(batch), np.zeros_like(batch)
    places = tuple(PIXELS.T)
    scattered[places], gradient[places] = batch[:2, 0, 0], 2 * batch[places]
    want = {
        "sum": batch.sum(),
        "same": batch,
        "chosen": batch,
        "slices": slices(batch),
        "scattered": scattered,
        "gradient": gradient,
        "normalized": normalized,
        "squares": np.square(batch).mean(),
    }
    got = replicator.replicate(step_fn, replicator.make_inputs(images))()
    tf.nest.map_structure(
        lambda one, other: np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5), got, want
    )


def test_sparse_gradients_have_to_be_made_dense(replicator):
    """The operations that DTensor cannot run here are not in the user's code."""
    ids = tf.constant([0, 1, 1, 5], tf.int32)

    def make(num_parts, as_gradient, make_sgd, **options):
        with replicator.scope():
            table = tf.Variable(np.arange(12.0).reshape(6, 2), dtype=tf.float32)
            optimizer = replicator.wrap_optimizer(make_sgd(), **options)

        def gradients(rows):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.gather(table, rows) ** 2)
            return [as_gradient(tape.gradient(loss, table))]

        def step_fn(x):
            merged = num_parts and rr.micro_batches.accumulate(gradients, ids, num_parts)
            optimizer.apply(merged or gradients(ids), [table])
            return tf.reduce_sum(table)

        return step_fn

    def plain():
        return snt.optimizers.SGD(0.1)

    def clipping():
        return tf.keras.optimizers.SGD(0.1, clipnorm=1.0)

    merged = "; clipping merges the rows .* make these dense with tf.convert_to_tensor"
    joined = "found TensorListConcatV2 .*, make them dense with tf.convert_to_tensor"
    updated = "found ResourceScatterSub .*; make sparse gradients dense"
    for match, num_parts, make_sgd, options in (
        (updated, 0, plain, {}),
        (merged, 0, plain, {"max_global_norm": 1.0}),
        (merged, 0, clipping, {}),
        (joined, 2, plain, {}),
    ):
        refuses(replicator, match, make(num_parts, lambda gradient: gradient, make_sgd, **options))
        step_fn = make(num_parts, tf.convert_to_tensor, make_sgd, **options)
        assert replicator.replicate(step_fn, replicator.make_inputs(images))() < 66


@pytest.mark.parametrize("is_built", [True, False])
def test_a_skipped_step_leaves_statistics(replicator, is_built):
    with replicator.scope():
        w = tf.Variable(tf.ones([3, 1]))
        norm = rr.CrossReplicaBatchNorm(True, True)
        if is_built:  # Otherwise, the step creates the statistics.
            norm(tf.zeros([2, 3]), True)
        optimizer = replicator.wrap_optimizer(snt.optimizers.SGD(0.1), skip_nonfinite=True)

    def rows(context):
        good = np.arange(3.0 * BATCH, dtype=np.float32).reshape(BATCH, 3)
        return tf.data.Dataset.from_tensor_slices([good, good * np.nan]).repeat()

    def step_fn(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(norm(x, True) @ w)
        optimizer.apply([tape.gradient(loss, w)], [w])

    step = replicator.replicate(step_fn, replicator.make_inputs(rows))
    step()
    means = norm.moving_mean.value.numpy()
    assert means.any()
    step()
    np.testing.assert_array_equal(norm.moving_mean.value, means)
    assert optimizer.num_skipped.numpy() == 1


@pytest.mark.parametrize("steps_per_call", [None, 1])
def test_the_steps_after_a_failed_one_are_taken(replicator, steps_per_call):
    with replicator.scope():
        count = tf.Variable(0, dtype=tf.int64)

    def step_fn(x):
        with tf.control_dependencies([tf.debugging.check_numerics(x - x, "not finite")]):
            return x + tf.cast(count.assign_add(1), tf.float32)

    data = tf.data.Dataset.from_tensor_slices([0.0, np.nan, np.inf, 3.0, 4.0])
    inputs = replicator.make_inputs(lambda context: data)
    step = replicator.replicate(step_fn, inputs, steps_per_call)
    assert step() == 1
    for _ in range(2):
        with pytest.raises(tf.errors.InvalidArgumentError, match="not finite"):
            step()
        assert count.numpy() == 1
    assert [float(step()) for _ in range(2)] == [5, 7]


def test_a_callable_that_returns_none(replicator):
    for sample in (lambda: None, lambda: {"x": tf.ones([4]), "mask": None}):
        inputs = replicator.make_inputs(lambda context, sample=sample: sample)
        outputs = replicator.replicate(lambda element: element, inputs)()
        tf.nest.assert_same_structure(outputs, sample())
        assert outputs is None or outputs["x"].numpy().tolist() == [1.0] * 4


def test_outputs_of_different_shapes_cannot_be_stacked(replicator):
    inputs = replicator.make_inputs(lambda context: tf.data.Dataset.range(6).batch(4))
    with pytest.raises(rr.ConfigError, match="same shape in all steps of a call"):
        replicator.replicate(lambda x: x, inputs, 2)()


def test_variables_from_elsewhere(replicator):
    outside = tf.Variable([1.0, 2.0], name="from_outside")
    refuses(replicator, "'from_outside:0'", lambda x: outside.assign_add([1.0, 1.0]))
    with rr.make("mesh:data=2").scope():
        other = tf.Variable([1.0, 2.0], name="of_another")
    refuses(replicator, "'of_another:0'", lambda x: x[0, 0, 0, 0] * other)
    with replicator.scope():
        own = tf.Variable([1.0, 2.0])
    with pytest.raises(rr.ConfigError, match="a callable input that uses no variables"):
        replicator.make_inputs(lambda context: lambda: own + 1)
    source = tf.Variable([1.0, 2.0])  # On the host, where a callable input runs.
    step = replicator.replicate(
        lambda x: x, replicator.make_inputs(lambda context: lambda: source + 1)
    )
    assert step().numpy().tolist() == [2, 3]
