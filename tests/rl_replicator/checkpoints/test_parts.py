"""The parts of a checkpoint, also restored alone."""

import os

import numpy as np
import pytest
import sonnet as snt
import tensorflow as tf

import rl_replicator as rr
from rl_replicator import checkpoints
from rl_replicator.checkpoints import parts
from rl_replicator.checkpoints.manifest import link_or_copy


def make(name):
    replicator = rr.make(name)
    with replicator.scope():
        model = snt.nets.MLP([4, 2])
        model(tf.zeros([1, 3]))
        optimizer = replicator.wrap_optimizer(rr.optimizers.Adam(0.1))
    replicator.build_optimizer(optimizer, model.trainable_variables)
    return replicator, model, optimizer


def filled(name):
    """A model and an optimizer whose variables all have different values."""
    replicator, model, optimizer = make(name)
    with replicator.scope():
        for i, variable in enumerate([*model.variables, *optimizer.variables]):
            shape, dtype = variable.shape, variable.dtype
            variable.assign(tf.cast(tf.fill(shape, i + 1), dtype))
    return model, optimizer


def test_a_variable_of_unknown_length_comes_back(tmp_path):
    variable = tf.Variable([1.0, 2.0, 3.0], shape=tf.TensorShape([None]))
    part = parts.TrackablePart(variable=variable)
    part.save(tmp_path)
    variable.assign([5.0])
    part.restore(tmp_path)
    assert variable.numpy().tolist() == [1.0, 2.0, 3.0]
    other = tf.Variable([[1.0]], shape=tf.TensorShape([None, None]))
    with pytest.raises(rr.CheckpointError, match=r"float32 \[None, None\], found float32 \[3\]"):
        parts.TrackablePart(variable=other).restore(tmp_path)


def test_variables_that_cannot_be_read(tmp_path):
    part = parts.TrackablePart(x=tf.Variable([1.0, 2.0]))
    part.save(tmp_path)
    (file,) = tmp_path.iterdir()
    whole = file.read_bytes()
    for damaged in (whole[:-1], whole[:5], b""):
        file.write_bytes(damaged)
        with pytest.raises(rr.CheckpointError, match=f"cannot read the variables in {tmp_path}: "):
            part.restore(tmp_path)
    with pytest.raises(rr.CheckpointError, match="none: .*No such file or directory.*; try again"):
        parts.VariableValues.read(tmp_path / "none")


def test_variables_have_the_names_that_tensorflow_gives_them(tmp_path):
    """The shortest paths, with dots and slashes escaped."""
    v = [tf.Variable(float(i)) for i in range(5)]
    box = tf.train.Checkpoint
    inner = box(x=v[0], y=v[1])
    tree = {"a": box(x=v[0]), "deep": box(inner=inner, up=box(z=v[2]))}
    tree["keys"] = box(of={"a/b": v[3], "c.d": v[4]})
    part = parts.TrackablePart(**tree)
    part.save(tmp_path)
    saved = parts.VariableValues.read(tmp_path)
    assert "a/x" in saved and len(saved) == 5
    path = tf.train.Checkpoint(**tree).write(str(tmp_path / "exported"))
    exported = dict(tf.train.list_variables(path))
    del exported["_CHECKPOINTABLE_OBJECT_GRAPH"]
    assert {f"{name}/.ATTRIBUTES/VARIABLE_VALUE" for name in saved} == set(exported)


def test_what_tensorflow_cannot_save_is_refused_in_one_line():
    for what, error in (
        (0.1, "variables to save, got a float for 'x'; make it a tf.Variable"),
        (None, "got a NoneType for 'x'"),
        ({"a": {1: tf.Variable(0.0)}}, "strings as keys, .* something else at 'x/a'; name"),
    ):
        with pytest.raises(rr.CheckpointError, match=error):
            parts.TrackablePart(v=tf.Variable(0.0), x=what).capture()


def test_captured_values_stay_as_they_are(tmp_path):
    x = tf.Variable(1.0)
    part = parts.TrackablePart(x=x)
    captured = part.capture()
    x.assign(2.0)
    captured.capture().save(tmp_path)
    part.restore(tmp_path)
    assert x.numpy() == 1.0


@pytest.mark.parametrize("dtype", [tf.float16, tf.bfloat16, tf.float32, tf.float64, tf.complex64])
def test_the_first_variable_with_nan_or_infinity_is_named(dtype):
    fine = tf.Variable(tf.cast([1.0, 2.0], dtype))
    others = {"b": tf.Variable([1]), "c": fine}
    assert parts.TrackablePart(**others).capture().first_not_finite() is None
    for bad in (np.nan, np.inf):
        wrong = tf.Variable(tf.cast([1.0, bad], dtype))
        captured = parts.TrackablePart(**others, d=wrong, e=wrong).capture()
        assert captured.first_not_finite() == "d"


def test_a_subset_is_restored_alone(tmp_path):
    model, optimizer = filled("multi_device:2")
    checkpointer = checkpoints.Checkpointer(tmp_path)
    checkpointer.save(1, {"learner": parts.TrackablePart(model=model, optimizer=optimizer)})
    _, other, other_optimizer = make("single_device")
    before = [v.numpy() for v in other_optimizer.variables]
    checkpointer.restore({"learner": parts.TrackableSubset(model=other)})
    for got, want in zip(other.variables, model.variables, strict=True):
        np.testing.assert_array_equal(got.numpy(), want.numpy())
    for got, want in zip(other_optimizer.variables, before, strict=True):
        np.testing.assert_array_equal(got.numpy(), want)
    with pytest.raises(rr.CheckpointError, match="found no such variable"):
        checkpointer.restore({"learner": parts.TrackableSubset(network=other)})


@pytest.mark.parametrize("name", ["multi_device:2", "mesh:data=2"])
def test_a_variable_that_would_not_be_saved(name):
    """Keras wraps variables that it casts; no checkpoint can hold the states of its metrics."""
    rr.split_cpu(2)
    with rr.make(name).scope():
        layer = tf.keras.layers.Dense(2, dtype="mixed_float16")
        layer.build([None, 3])
        plain = tf.Variable(tf.zeros([2, 3]), name="plain")
        state = tf.keras.metrics.Mean().total
    kernel = layer.kernel._variable
    assert kernel is not layer.kernel
    parts.TrackablePart(layer=layer, plain=plain).check_holds([kernel, state, plain], "Learner")
    match = (
        r"the step of Learner assigns in trackables\(\), found that 'plain:0' \(2, 3\) is missing"
    )
    with pytest.raises(rr.ConfigError, match=match):
        parts.TrackablePart(layer=layer).check_holds([kernel, plain, state], "Learner")


def test_a_part_without_variables(tmp_path):
    replicator = rr.make("multi_device:2")
    x = tf.Variable(1.0)
    with replicator.scope():
        plain = replicator.wrap_optimizer(snt.optimizers.SGD(0.1))
    checkpointer = checkpoints.Checkpointer(tmp_path)
    for save in (checkpointer.save, checkpointer.begin_save):
        save(1, {"plain": parts.TrackablePart(optimizer=plain), "x": parts.TrackablePart(x=x)})
        checkpointer.wait()
    x.assign(2.0)
    part = parts.TrackablePart(optimizer=plain)
    folder = checkpointer.restore({"plain": part, "x": parts.TrackablePart(x=x)}).path
    assert x.numpy() == 1.0
    assert parts.VariableValues.read(folder / "plain") == {}
    assert part.capture().first_not_finite() is None
    with pytest.raises(rr.CheckpointError, match="found no such variable"):
        checkpointer.restore({"plain": parts.TrackablePart(x=x)})
    with pytest.raises(rr.CheckpointError, match="expected no such variable, found float32"):
        checkpointer.restore({"x": part})


def read_back(state, folder):
    """What a JsonPart restores of a state."""
    restored = []
    part = parts.JsonPart(lambda: state, restored.append)
    part.save(folder)
    part.restore(folder)
    (got,) = restored
    return got


def test_state_comes_back_equal(tmp_path):
    rng = np.random.default_rng(3)
    arrays = [
        np.array([[1, 2]], ">i2"),
        np.array(1.5, np.float16),
        np.zeros([0, 3], np.complex64),
        np.array(["2020-01-01"], "M8[ns]"),
        np.array(["text", ""]),
        np.array([b"a", b"bc"]),
        np.array([[True], [False]]),
        np.arange(6).reshape(2, 3).T,
    ]
    got = read_back({"rng": rng.bit_generator.state, "arrays": arrays}, tmp_path)
    for one, array in zip(got["arrays"], arrays, strict=True):
        assert one.dtype == array.dtype and one.flags.writeable
        np.testing.assert_array_equal(one, array)
    other = np.random.default_rng()
    other.bit_generator.state = got["rng"]
    assert other.normal() == rng.normal()


def test_numpy_scalars_come_back_as_numbers_of_python(tmp_path):
    state = [np.float16(0.5), np.float32(0.1), np.float64(0.1), np.int8(3), np.bool_(True)]
    state += [np.str_("text"), np.uint64(2**64 - 1)]
    got = read_back(tuple(state), tmp_path)
    assert [type(one) for one in got] == [float, float, float, int, bool, str, int]
    assert got == [0.5, float(np.float32(0.1)), 0.1, 3, True, "text", 2**64 - 1]


def test_state_that_would_not_come_back_is_refused(tmp_path):
    checkpointer = checkpoints.Checkpointer(tmp_path)
    for value, found in (
        ({"seen": {1}}, r"got set at state\['seen'\]; convert"),
        ([{1: 2}], r"got dict at state\[0\]"),
        (np.array(["a", None]), "got ndarray at state"),
        (np.zeros(2, [("x", "f4")]), "got ndarray at state"),
        (np.array([1.5], tf.bfloat16.as_numpy_dtype), "got ndarray at state"),
        (np.ma.masked_array([1, 2], [True, False]), "got MaskedArray at state"),
        (np.timedelta64(5, "ns"), "got timedelta64 at state"),
        (b"text", "got bytes at state"),
    ):
        part = parts.JsonPart(lambda value=value: value, print)
        for save in (checkpointer.save, checkpointer.begin_save):
            with pytest.raises(rr.CheckpointError, match=f"^expected .*{found}") as caught:
                save(1, {"state": part})
            assert "\n" not in str(caught.value)
    assert checkpointer.is_empty


def test_files_are_linked_or_copied_but_never_overwritten(tmp_path, monkeypatch):
    def refuse(*_):
        raise PermissionError("Operation not permitted")

    for name in ("source", "other"):
        (tmp_path / name).write_text(name)
    link_or_copy(tmp_path / "source", tmp_path / "link")
    assert (tmp_path / "link").samefile(tmp_path / "source")
    with pytest.raises(FileExistsError):
        link_or_copy(tmp_path / "other", tmp_path / "link")
    assert (tmp_path / "source").read_text() == "source"
    monkeypatch.setattr(os, "link", refuse)  # As a file system without hard links does.
    link_or_copy(tmp_path / "source", tmp_path / "copy")
    assert (tmp_path / "copy").read_text() == "source"
    assert not (tmp_path / "copy").samefile(tmp_path / "source")
