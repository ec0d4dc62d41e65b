"""What a step returns is converted to tensors, or refused in one line that says where it was."""

import collections
import dataclasses
import tempfile

import numpy as np
import pytest
import tensorflow as tf

import rl_replicator as rr
from rl_replicator.graphs import leaves


@dataclasses.dataclass
class Losses:
    total: tf.Tensor


Pair = collections.namedtuple("Pair", "first second")
WRONG = {
    "ragged": (
        lambda x: {"rows": [x, tf.RaggedTensor.from_row_lengths(x, [2])]},
        r"got a RaggedTensor at \['rows'\]\[1\]; make it dense with its to_tensor\(\)$",
    ),
    "sparse": (
        lambda x: Pair(x, tf.sparse.from_dense(x)),
        r"got a SparseTensor at \['second'\]; make it dense with tf.sparse.to_dense$",
    ),
    "array": (
        lambda x: [tf.TensorArray(tf.float32, 2)],
        r"got a TensorArray at \[0\]; use its stack\(\)$",
    ),
    "dataclass": (lambda x: Losses(x), "got a Losses; use a dictionary of its fields$"),
    "set": (lambda x: {"a": {1, 2}}, r"got a set at \['a'\]; convert it, or leave it out$"),
    "objects": (lambda x: np.array([None, "a"]), "got a ndarray; convert it, or leave it out$"),
}
RETURN = {
    "from step_fn": lambda value: value,
    "in a collective": rr.collectives.all_gather,
}


@pytest.mark.parametrize(
    ("name", "receiver"),
    [*((name, "from step_fn") for name in WRONG), ("ragged", "in a collective")],
)
def test_what_is_no_tensor_is_refused(name, receiver):
    make, message = WRONG[name]
    replicator = rr.make("multi_device:2")
    data = tf.data.Dataset.from_tensors(tf.ones([2, 3])).repeat()
    inputs = replicator.make_inputs(lambda context: data)
    expected = (
        f"^expected tensors or numbers in dictionaries, lists or tuples {receiver}, {message}"
    )
    with pytest.raises(rr.ConfigError, match=expected) as error:
        replicator.replicate(lambda x: RETURN[receiver](make(x)), inputs)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("receiver", RETURN)
def test_keys_of_several_types_are_refused(receiver):
    """They cannot be sorted, and outputs are passed on in the order of their keys."""
    replicator = rr.make("multi_device:2")
    data = tf.data.Dataset.from_tensors(tf.ones([2, 3])).repeat()
    inputs = replicator.make_inputs(lambda context: data)
    expected = "^expected dictionaries with keys that can be sorted, .*'str' and 'int'.*; use keys"
    with pytest.raises(rr.ConfigError, match=expected):
        replicator.replicate(lambda x: RETURN[receiver]([{1: x, "a": x}]), inputs)


def test_what_can_be_converted():
    slices = tf.IndexedSlices(tf.ones([1, 2]), tf.constant([1]), tf.constant([2, 2]))
    nest = {"b": [1, None, True], "a": Pair(tf.Variable(2.0), np.ones([3])), "c": "x", "d": slices}
    converted = leaves.as_tensors(nest, "from step_fn")
    assert type(converted["a"]) is Pair and converted["b"][1] is None
    assert all(x is None or tf.is_tensor(x) for x in tf.nest.flatten(converted))
    dtypes = [converted["b"][0].dtype, converted["b"][2].dtype, converted["a"].second.dtype]
    assert dtypes == [tf.int32, tf.bool, tf.float64] and converted["c"].dtype == tf.string
    np.testing.assert_array_equal(converted["d"], [[0, 0], [1, 1]])


def test_autograph_needs_a_folder_for_its_code(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "none"))
    with pytest.raises(rr.DiskError, match="AutoGraph writes code, got .*No such file.*set TMPDIR"):
        leaves.converted(lambda x: x)
