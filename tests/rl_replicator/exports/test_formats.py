"""Models in every format, run by the runtimes of these formats."""

import errno
import functools
import os
import pathlib

import numpy as np
import pytest
import sonnet as snt
import tensorflow as tf

from rl_replicator.errors import DiskError, UsageError
from rl_replicator.exports import formats, standalone
from rl_replicator.exports.model import Card, ExportedModel

RANDOM = np.random.default_rng(0)
FILTERS, SCALE, OFFSET, MEAN = (
    RANDOM.normal(size=size).astype(np.float32) for size in ((3, 3, 2, 4), (4,), (4,), (4,))
)
VARIANCE = RANDOM.uniform(0.5, 2, size=4).astype(np.float32)
IMAGES = RANDOM.uniform(0, 255, size=(5, 6, 6, 2)).astype(np.uint8)
LABELS = np.array([0, 2, -1, 3, 1], np.int32)  # -1 and 3 are not classes.


def network(images, labels):
    """Has the operations of convolutional classifiers and generators."""
    x = tf.nn.conv2d(tf.cast(images, tf.float32) / 255, tf.constant(FILTERS), 2, "SAME")
    x, *_ = tf.compat.v1.nn.fused_batch_norm(
        x, SCALE, OFFSET, MEAN, VARIANCE, epsilon=1e-3, is_training=False
    )
    x = tf.reshape(x, [-1, 3, 1, 3, 4])
    x = tf.broadcast_to(x, [tf.shape(x)[0], 3, 2, 3, 4])
    classes = tf.one_hot(labels, 3)
    logits = tf.reduce_mean(x, [1, 2, 3])
    steep = tf.nn.leaky_relu(logits, 1.5)
    steep *= tf.linspace(1.0, 2.0, 4)
    waves = tf.concat(tf.split(tf.sin(logits) + tf.cos(2 * logits), 2, axis=1), axis=0)
    bent = tf.math.expm1(logits) + tf.math.log1p(tf.abs(logits))
    shares = tf.nn.softmax(logits + 100.0)  # exp(100) is no float32.
    return {
        "image": tf.round(10 * x),
        "classes": classes,
        "logits": logits,
        "steep": steep,
        "waves": waves,
        "bent": bent,
        "shares": shares,
    }


def model_of(function, tables_of=(), **inputs):
    return ExportedModel(function, inputs, Card("A model", {}, "", {}), tables_of)


def test_weights_are_stored_once(tmp_path):
    weights = tf.Variable(RANDOM.normal(size=(100, 10)).astype(np.float32))
    model = model_of(lambda x: {"y": x @ weights}, x=tf.TensorSpec([None, 100]))
    formats.write(model, "onnx", tmp_path / "model")
    assert 4000 < (tmp_path / "model" / "model.onnx").stat().st_size < 6000


def tflite(folder):
    return tf.lite.Interpreter(str(folder / "model.tflite")).get_signature_runner()


def onnx(folder):
    runtime = pytest.importorskip("onnxruntime")
    session = runtime.InferenceSession(str(folder / "model.onnx"))
    names = [output.name for output in session.get_outputs()]
    return lambda **inputs: dict(zip(names, session.run(None, inputs), strict=True))


def numpy(folder):
    return standalone.Model(folder / "model.npz").run


def test_a_full_disk_is_told_from_a_mistake(tmp_path, monkeypatch):
    def fail(model, folder):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setitem(formats.FORMATS, "numpy", fail)
    model = model_of(lambda x: {"y": x}, x=tf.TensorSpec([None]))
    with pytest.raises(DiskError, match="--out: cannot write to .*No space left on device"):
        formats.write(model, "numpy", tmp_path / "model")
    assert [*tmp_path.iterdir()] == []


def exported(folder, runtime, function, **inputs):
    """Returns what the exported function computes, after a comparison with what TensorFlow does."""
    expected = function(**{name: tf.constant(x) for name, x in inputs.items()})
    specs = {name: tf.TensorSpec([None, *x.shape[1:]], x.dtype) for name, x in inputs.items()}
    formats.write(model_of(function, **specs), runtime.__name__, folder / "model")
    found = runtime(folder / "model")(**inputs)
    assert set(found) == set(expected)
    for name, value in expected.items():
        assert found[name].dtype == value.dtype, name
        atol = 1e-5 * max(1.0, np.abs(value).max())
        np.testing.assert_allclose(found[name], value, rtol=1e-5, atol=atol, err_msg=name)
    return found


@pytest.mark.parametrize("runtime", [numpy, onnx, tflite])
def test_other_runtimes_compute_the_same(tmp_path, runtime):
    found = exported(tmp_path, runtime, network, images=IMAGES, labels=LABELS)
    assert np.ptp(found["image"]) > 10 and found["classes"].sum() == 3


def reductions(x):
    """Has reductions that NumPy or ONNX would compute in wider integers, or over all axes."""
    found = {"sum": tf.reduce_sum(x, 1), "max": tf.reduce_max(x, 1, keepdims=True)}
    for op in (tf.reduce_sum, tf.reduce_mean, tf.reduce_max, tf.reduce_min):
        found[op.__name__] = op(x, [])
    return found


ROWS = np.array([[100, 100, 99], [1, 2, 3]])  # The first sum is beyond uint8.
MAPS = RANDOM.normal(size=(6, 3, 4, 2)).astype(np.float32)


@functools.cache
def trained_norm():
    norm = snt.BatchNorm(create_scale=True, create_offset=True)
    for _ in range(3):
        norm(3 * MAPS + 1, is_training=True)
    return norm


def generator(x):
    """Has Sonnet's batch norm, which computes the scale in the graph."""
    x = tf.image.resize(trained_norm()(x, is_training=False), [6, 12], "nearest")
    return {"y": tf.transpose(x, [0, 3, 1, 2])}


@functools.cache
def decoder_layers():
    layer = tf.keras.layers.Conv2DTranspose
    return [
        layer(3, 3, 2, "same", bias_initializer="ones"),
        layer(2, (2, 5), (3, 2), "valid"),
        layer(4, (4, 1), (1, 2), "same", activation="sigmoid"),
        layer(2, (5, 4), (3, 4), "same", output_padding=(0, 1)),
    ]


LAST_FILTERS = RANDOM.normal(size=(3, 4, 2, 2)).astype(np.float32)
PADS = [[0, 0], [1, 0], [1, 2], [0, 0]]


def decoder(x):
    """Has all paddings, filters smaller and larger than strides, and sizes beside the usual one."""
    for layer in decoder_layers():
        x = layer(x)
    _, rows, columns, _ = x.shape
    shape = [tf.shape(x)[0], 2 * rows + 1, 3 * columns - 2, 2]
    return {"y": tf.nn.conv2d_transpose(x, tf.constant(LAST_FILTERS), shape, (2, 3), PADS)}


VECTORS = np.random.default_rng(1).normal(size=(12, 3)).astype(np.float32)
CODES = VECTORS[5:].T


@functools.cache
def embedding():
    return tf.keras.layers.Embedding(5, 3, weights=[VECTORS[:5]])


def quantizer(x):
    """Looks up embeddings, and the nearest vectors of a codebook."""
    codes, x = tf.constant(CODES), embedding()(x)  # [B, 4, 3]
    distances = tf.reduce_sum((x[..., None] - codes) ** 2, -2)
    nearest = tf.argmin(distances, -1)
    return {
        "code": tf.nn.embedding_lookup(tf.transpose(codes), nearest),
        "columns": tf.transpose(tf.gather(codes, nearest, axis=-1), [1, 2, 0]),
        "nearest": tf.argmax(-distances, -1),
        "parts": tf.gather(x, [2, 0, 0], axis=1),
    }


def padded(x):
    """Pads as networks from PyTorch do: where SAME pads by 0 and 1, they pad by 1 and 1."""
    x = tf.nn.max_pool(x - 9.0, 3, 2, PADS)  # Negative, so that zeros would show.
    return {"y": tf.nn.conv2d(x, tf.constant(FILTERS), 1, PADS)}


@pytest.mark.parametrize("runtime", [numpy, onnx])
@pytest.mark.parametrize(
    ("function", "x"),
    [
        (reductions, ROWS.astype(np.int32)),
        (reductions, ROWS.astype(np.float32)),
        (generator, MAPS),
        (decoder, RANDOM.normal(size=(3, 4, 5, 2)).astype(np.float32)),
        (quantizer, np.array([[0, 4, 2, 1], [3, 3, 1, 0]], np.int32)),
        (padded, RANDOM.normal(size=(3, 8, 8, 2)).astype(np.float32)),
    ],
)
def test_numpy_and_onnx_compute_the_same(tmp_path, runtime, function, x):
    exported(tmp_path, runtime, function, x=x)


def test_sums_are_those_of_small_integers(tmp_path):
    x = ROWS.astype(np.uint8)
    exported(tmp_path, numpy, reductions, x=x)
    with pytest.raises(UsageError, match="ONNX supports, got: .*Sum.*; choose --format saved"):
        exported(tmp_path / "onnx", onnx, reductions, x=x)


def turned(x, *geometry):
    return {"y": tf.nn.conv2d_transpose(x[:, None, None], np.ones([1, 1, 1, 1], "f"), *geometry)}


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (
            lambda x: {"y": tf.reduce_mean(tf.cast(x, tf.int32), 1)},
            "Mean of floats, got that of in",
        ),
        (
            lambda x: {
                "y": tf.nn.conv2d(
                    x[:, None, None], np.ones([3, 3, 1, 1], np.float32), 1, "SAME", dilations=2
                )
            },
            "plain convolutions, got dilations of 1, 2, 2, 1",
        ),
        (
            lambda x: {"y": tf.gather(x, tf.cast(x, tf.int32), axis=1, batch_dims=1)},
            "gathers without batch_dims",
        ),
        (
            lambda x: {"y": tf.argmin(tf.cast(x, tf.uint8), -1)},
            "ArgMin of floats, got that of uint8",
        ),
        (
            lambda x: turned(x, [tf.shape(x)[0], 1, 1, 1], 3, [[0, 0], [1, 1], [1, 1], [0, 0]]),
            "transposed convolutions of less padding than the filter",
        ),
        (
            lambda x: turned(x, tf.stack([tf.shape(x)[0], tf.shape(x)[0], 1, 1]), 1),
            "transposed convolutions of images of a known size",
        ),
        (
            lambda x: {"y": tf.image.resize(tf.ones([1, 2, 2, 1]) * x[0], [3, 3], "nearest")},
            r"repeats, got a resize from \(1, 2, 2, 1\) to \(1, 3, 3, 1\)",
        ),
        (
            lambda x: {
                "y": tf.compat.v1.image.resize_nearest_neighbor(
                    tf.ones([1, 3, 3, 1]) * x[0], [9, 9], align_corners=True
                )
            },
            "repeats, got a resize",
        ),
        (lambda x: {"y": tf.reduce_sum(x, 0)}, r"outputs of shape .*, got \(1,\) for 'y'"),
        (lambda x: {"y": tf.broadcast_to(x[0], tf.shape(x))}, "broadcasts that keep the batch"),
        (
            lambda x: {"y": tf.compat.v1.nn.fused_batch_norm(x[:, None, None], [1.0], [0.0])[0]},
            r"by stored statistics \(Sonnet: test_local_stats=False\)",
        ),
        (
            lambda x: {"y": tf.reduce_max(x, tf.cast(x[0], tf.int32), keepdims=True)},
            "Max with constant parameters, got one that Cast computes",
        ),
        (lambda x: {"y": tf.math.erf(tf.atan(x))}, r"NumPy and ONNX have, got Atan, Erf \("),
        (
            lambda x: {"y": tf.map_fn(lambda i: x * i, tf.range(3.0))[0]},  # As in an LSTM.
            "operations that NumPy and ONNX have, got .*TensorListReserve",
        ),
        (
            lambda x: {"y": tf.where(x > 0, "positive", "negative")},
            "dtypes that NumPy has, got string",
        ),
    ],
)
def test_what_is_not_portable_is_refused(tmp_path, function, message):
    model = model_of(function, x=tf.TensorSpec([None, 1]))
    with pytest.raises(UsageError, match=f"{message}.*--format savedmodel"):
        formats.write(model, "numpy", tmp_path / "model")
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize("is_mutable", [False, True])
def test_lookup_tables(tmp_path, is_mutable):
    """They belong to a module, as in Keras' layers for words and classes."""
    keys, values = tf.constant([3, 5], tf.int64), tf.constant([1.0, 2.0])
    if is_mutable:
        table = tf.lookup.experimental.MutableHashTable(tf.int64, tf.float32, -1.0)
        table.insert(keys, values)
    else:
        initializer = tf.lookup.KeyValueTensorInitializer(keys, values)
        table = tf.lookup.StaticHashTable(initializer, -1.0)
    module = tf.Module()
    module.table = table
    model = model_of(lambda x: {"y": table.lookup(x)}, [module], x=tf.TensorSpec([None], tf.int64))
    formats.write(model, "savedmodel", tmp_path / "saved")
    loaded = tf.saved_model.load(str(tmp_path / "saved")).signatures["serving_default"]
    found = loaded(x=tf.constant([5, 4, 3], tf.int64))["y"]
    np.testing.assert_array_equal(found, [2.0, -1.0, 1.0])
    with pytest.raises(
        UsageError, match="that NumPy and ONNX have, got LookupTableFindV2 .*savedmodel"
    ):
        formats.write(model, "numpy", tmp_path / "numpy")


def test_an_output_with_the_name_of_an_input(tmp_path):
    model = model_of(lambda x: {"x": x * 2}, x=tf.TensorSpec([None, 2]))
    formats.write(model, "numpy", tmp_path / "numpy")
    x = np.ones([3, 2], np.float32)
    np.testing.assert_array_equal(numpy(tmp_path / "numpy")(x=x)["x"], 2 * x)
    with pytest.raises(UsageError, match="other names than the inputs, got 'x' for both; rename"):
        formats.write(model, "onnx", tmp_path / "onnx")


def test_images_of_any_size(tmp_path):
    """Without padding, any size works; with SAME, the padding would depend on the size."""

    def convolved(images, padding):
        return {"y": tf.nn.conv2d(images, tf.constant(FILTERS), 2, padding)}

    inputs = {"images": tf.TensorSpec([None, None, None, 2])}
    model = model_of(lambda images: convolved(images, "VALID"), **inputs)
    formats.write(model, "numpy", tmp_path / "valid")
    run = standalone.Model(tmp_path / "valid" / "model.npz").run
    for size in (5, 6):
        images = RANDOM.normal(size=(3, size, 7, 2)).astype(np.float32)
        expected = convolved(images, "VALID")["y"]
        np.testing.assert_allclose(run(images=images)["y"], expected, rtol=1e-5, atol=1e-5)
    for shape in ((3, 5, 7, 1), (3, 5, 2)):
        with pytest.raises(ValueError, match="expected images of shape"):
            run(images=np.zeros(shape, np.float32))
    model = model_of(lambda images: convolved(images, "SAME"), **inputs)
    with pytest.raises(UsageError, match="images of a known size where padding is SAME"):
        formats.write(model, "numpy", tmp_path / "same")


def test_a_file_names_operations_of_the_table_alone(tmp_path):
    formats.write(model_of(lambda x: {"y": -x}, x=tf.TensorSpec([None])), "numpy", tmp_path / "m")
    with np.load(tmp_path / "m" / "model.npz") as file:
        arrays = dict(file)
    arrays["program"] = np.array(str(arrays["program"]).replace('"Neg"', '"load"'))
    np.savez(tmp_path / "crafted.npz", **arrays)
    with pytest.raises(KeyError, match="load"):
        standalone.Model(tmp_path / "crafted.npz")


def test_the_zoo_has_the_model_file_of_today():
    zoo = pathlib.Path(__file__).parents[3] / "docs" / "zoo" / "model.py"
    assert zoo.read_text() == pathlib.Path(standalone.__file__).read_text()
