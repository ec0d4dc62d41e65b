"""Files are read unchanged, pipelines read their own parts, and a resumed run finds its place."""

import itertools

import numpy as np
import pytest
import tensorflow as tf

from rl_replicator import errors
from rl_replicator.learners import image_files, images
from rl_replicator.learners.resnet.config import ResNetConfig
from rl_replicator.step.inputs.contract import InputContext
from tests.rl_replicator.learners import tiny_images


def parts(data, start, count, num_replicas, num_pipelines, size):
    """The global batches of several pipelines, concatenated in the order of the replicas."""
    found = []
    for pipeline in range(num_pipelines):
        context = InputContext(num_replicas, pipeline, num_pipelines)
        batches = data.train(context, size, start).take(count * num_replicas // num_pipelines)
        found.append(list(batches.as_numpy_iterator()))
    order = [batch for step in zip(*found, strict=True) for batch in step]
    return [np.concatenate(arrays) for arrays in zip(*order, strict=True)]


def evaluated(data, num_pipelines, size):
    contexts = [InputContext(num_pipelines, i, num_pipelines) for i in range(num_pipelines)]
    found = [list(data.evaluate(context, size).as_numpy_iterator()) for context in contexts]
    return [np.concatenate(arrays) for arrays in zip(*itertools.chain(*found), strict=True)]


def small(folder, augment=images.shifted_and_flipped):
    files = image_files.fashion_mnist(tiny_images.fashion_mnist(folder))
    return images.MemoryImages(*files, seed=1, augment=augment)


def large(folder):
    return images.RecordImages(tiny_images.imagenet(folder), 16, 1, images.random_window)


def test_files_in_memory(tmp_path):
    (train, _), (_, labels) = image_files.fashion_mnist(tiny_images.fashion_mnist(tmp_path))
    assert train.shape == (50, 8, 8, 1) and train.dtype == np.uint8
    assert labels.shape == (37,) and labels.dtype == np.int32
    np.testing.assert_array_equal(train[:, 0, 0, 0], np.arange(50))
    tiny_images.cifar(tmp_path / "cifar-10-batches-py")
    (train, labels), (_, test_labels) = image_files.cifar10(tmp_path)
    assert train.shape == (10, 32, 32, 3)
    np.testing.assert_array_equal(train[3, 5, 7], [5, 105, 205])
    np.testing.assert_array_equal(labels, [0, 9, 1, 9, 2, 9, 3, 9, 4, 9])
    np.testing.assert_array_equal(test_labels, [5, 9])


def cut(path):
    path.write_bytes(path.read_bytes()[:-20])


def test_files_that_are_missing_or_damaged(tmp_path):
    idx, cifar, records = (tmp_path / name for name in ("idx", "cifar", "records"))
    for folder in (idx, records):
        folder.mkdir()
    tiny_images.fashion_mnist(idx)
    tiny_images.cifar(cifar)
    tiny_images.imagenet(records)
    none = tmp_path / "none"
    no_harm = lambda: None  # noqa: E731
    harms = [
        (no_harm, lambda: image_files.fashion_mnist(none), "found none; name the .* --data-dir"),
        (
            lambda: cut(idx / "t10k-labels-idx1-ubyte"),
            lambda: image_files.fashion_mnist(idx),
            "t10k-labels-idx1-ubyte to be a whole IDX file, got cannot reshape",
        ),
        (
            lambda: cut(idx / "train-images-idx3-ubyte.gz"),
            lambda: image_files.fashion_mnist(idx),
            "train-images-idx3-ubyte.gz to be a whole IDX file, got Compressed",
        ),
        (no_harm, lambda: image_files.cifar10(none), "unpack cifar-10-python.tar.gz"),
        (
            lambda: cut(cifar / "data_batch_2"),
            lambda: image_files.cifar10(cifar),
            "data_batch_2, got .*; unpack the archive again",
        ),
        (no_harm, lambda: image_files.find(none, "train"), "found 0; name their folder"),
        (
            lambda: cut(records / "train-00001-of-00004"),
            lambda: image_files.find(records, "train"),
            "train-00001-of-00004 is truncated",
        ),
        (
            lambda: (records / "train-00002-of-00004").unlink(),
            lambda: image_files.find(records, "train"),
            "found 3 of 4",
        ),
        (
            no_harm,
            lambda: images.load(
                ResNetConfig(data="imagenet").resolved(), images.unchanged, images.random_window
            ),
            "--data-dir: expected the folder of the TFRecord files, got none",
        ),
    ]
    for harm, read, message in harms:
        harm()
        with pytest.raises(errors.UsageError, match=message):
            read()


@pytest.mark.parametrize(("num_replicas", "num_pipelines"), [(2, 1), (4, 2)])
def test_the_order_does_not_depend_on_replicas(tmp_path, num_replicas, num_pipelines):
    data = small(tmp_path)
    want, labels = parts(data, 0, 9, 1, 1, 8)  # 72 examples: beyond the first epoch.
    got, _ = parts(data, 0, 9, num_replicas, num_pipelines, 8)
    if num_pipelines == 1:
        np.testing.assert_array_equal(got, want)
    assert sorted(image.tobytes() for image in got) == sorted(image.tobytes() for image in want)
    assert len(labels) == 72


def test_an_epoch_has_every_image_once(tmp_path):
    found, _ = parts(small(tmp_path, images.unchanged), 0, 20, 1, 1, 5)
    first, second = found[:50, 0, 0, 0], found[50:, 0, 0, 0]
    np.testing.assert_array_equal(np.sort(first), np.arange(50))
    np.testing.assert_array_equal(np.sort(second), np.arange(50))
    assert (first != second).any()


@pytest.mark.parametrize("kind", [small, large])
def test_a_resumed_run_goes_on_with_what_was_left(tmp_path, kind):
    """Within a later epoch."""
    data = kind(tmp_path)
    want = parts(data, 0, 10, 2, 1, 8)
    tf.random.set_seed(0)  # It has no influence.
    for one, other in zip(parts(data, 7, 3, 2, 1, 8), want, strict=True):
        np.testing.assert_array_equal(one, other[8 * 7 :])


def test_shifts_and_flips():
    image = tf.constant(np.arange(1, 31).reshape(1, 5, 6, 1), tf.uint8)
    kept = images.shifted_and_flipped(image, tf.constant([[0.5, 0.5, 0.9]]))
    np.testing.assert_array_equal(kept, image)
    flipped = images.shifted_and_flipped(image, tf.constant([[0.5, 0.5, 0.1]]))
    np.testing.assert_array_equal(flipped, image[:, :, ::-1])
    shifted = images.shifted_and_flipped(image, tf.constant([[0.0, 0.99, 0.9]]))[0, :, :, 0]
    want = np.zeros([5, 6])
    want[4, :2] = [5, 6]  # Four down, four to the left.
    np.testing.assert_array_equal(shifted, want)


def test_records(tmp_path):
    data = large(tmp_path)
    _, labels = parts(data, 0, 6, 2, 2, 8)  # Two epochs of 24.
    np.testing.assert_array_equal(np.sort(labels), np.repeat(np.arange(24), 2))
    halves = [data.train(InputContext(2, i, 2), 8, 0).take(3) for i in range(2)]
    labels = [y for half in halves for _, batch in half.as_numpy_iterator() for y in batch]
    np.testing.assert_array_equal(np.sort(labels), np.arange(24))  # Each pipeline has its own.
    with pytest.raises(errors.ConfigError, match="at least 5 training files"):
        data.train(InputContext(5, 0, 5), 10, 0)
    for found in (parts(data, 0, 3, 1, 1, 8), evaluated(data, 2, 4)):
        assert found[0].shape[1:] == (16, 16, 3) and found[0].dtype == np.uint8
        spread = np.abs(found[0].astype(int) - found[1][:, None, None, None])
        assert spread.max() <= 1  # JPEG is lossy.
    np.testing.assert_array_equal(np.sort(evaluated(data, 2, 4)[1]), np.arange(7))


@pytest.mark.parametrize(("size", "is_imagenet"), [(1251, True), (1252, True), (1250, False)])
def test_a_thousand_files_are_counted_unless_they_are_imagenet(
    size, is_imagenet, tmp_path, monkeypatch
):
    for i in range(1024):
        (tmp_path / f"train-{i:05d}-of-01024").touch()
    counted = []
    monkeypatch.setattr(image_files, "count_records", lambda path: counted.append(path) or size)
    found = image_files.find(tmp_path, "train").num_examples
    assert found == (1_281_167 if is_imagenet else 1024 * size)
    assert len(counted) == (1 if is_imagenet else 1025)


def test_windows():
    shape, seed = tf.constant([40, 60, 3]), tf.constant([1, 0], tf.int64)
    # The shorter side corresponds to 256 pixels, of which 224 are kept: 40 * 224 / 256 = 35.
    np.testing.assert_array_equal(images.central_window(shape, 224, seed), [2, 12, 35, 35])
    for place in range(50):
        top, left, height, width = images.random_window(
            shape, 224, tf.constant([1, place], tf.int64)
        ).numpy()
        assert 0 <= top <= 40 - height and 0 <= left <= 60 - width
        assert height * width >= 0.07 * 2400
        assert 0.6 <= width / height <= 1.5
