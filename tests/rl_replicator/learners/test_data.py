"""Files are read unchanged, pipelines read their own parts, and a resumed run finds its place."""

import itertools

import numpy as np
import pytest
import tensorflow as tf

from rl_replicator import errors
from rl_replicator.learners import image_records, small_images
from rl_replicator.learners.resnet import data
from rl_replicator.learners.resnet.config import ResNetConfig
from rl_replicator.step.inputs import InputContext
from tests.rl_replicator.learners import image_files


def take(dataset, count):
    """`count` batches, joined: images and labels."""
    batches = list(itertools.islice(dataset.as_numpy_iterator(), count))
    return tuple(np.concatenate(parts) for parts in zip(*batches, strict=True))


def parts(images, start, num_steps, num_replicas, num_pipelines, batch):
    """What all pipelines feed to `num_steps` steps, one pipeline after the other."""
    each = [
        take(
            images.train(InputContext(num_replicas, i, num_pipelines), batch, start),
            num_steps * num_replicas // num_pipelines,
        )
        for i in range(num_pipelines)
    ]
    return [np.concatenate(arrays) for arrays in zip(*each, strict=True)]


@pytest.fixture
def small(tmp_path):
    return data.MemoryImages(
        small_images.fashion_mnist(image_files.fashion_mnist(tmp_path)), seed=1
    )


@pytest.fixture
def large(tmp_path):
    return data.RecordImages(image_files.imagenet(tmp_path), size=16, seed=1)


def test_fashion_mnist_files(tmp_path):
    found = small_images.fashion_mnist(image_files.fashion_mnist(tmp_path))
    assert found.train_images.shape == (50, 8, 8, 1) and found.train_images.dtype == np.uint8
    assert found.test_labels.shape == (37,) and found.test_labels.dtype == np.int32
    np.testing.assert_array_equal(found.train_images[:, 0, 0, 0], np.arange(50))


def test_fashion_mnist_that_is_not_there(tmp_path, monkeypatch):
    monkeypatch.setattr(small_images, "_DEBIAN_FOLDER", tmp_path)
    with pytest.raises(errors.UsageError, match="'apt-get install dataset-fashion-mnist'"):
        small_images.fashion_mnist()
    with pytest.raises(errors.UsageError, match="--data-dir"):
        small_images.fashion_mnist(tmp_path)


def test_fashion_mnist_that_is_damaged(tmp_path):
    image_files.fashion_mnist(tmp_path)
    file = tmp_path / "t10k-labels-idx1-ubyte"
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(errors.UsageError, match=r"expected 37 bytes of data .*, found 36"):
        small_images.fashion_mnist(tmp_path)


@pytest.mark.parametrize("is_binary", [True, False])
def test_cifar10_files(tmp_path, is_binary):
    image_files.cifar(tmp_path / f"cifar-10-batches-{'bin' if is_binary else 'py'}", is_binary)
    found = small_images.cifar10(tmp_path)
    assert found.train_images.shape == (10, 32, 32, 3)
    np.testing.assert_array_equal(found.train_images[3, 5, 7], [5, 105, 205])
    np.testing.assert_array_equal(found.train_labels, [0, 9, 1, 9, 2, 9, 3, 9, 4, 9])
    np.testing.assert_array_equal(found.test_labels, [5, 9])


def test_fashion_mnist_that_is_cut_off(tmp_path):
    image_files.fashion_mnist(tmp_path)
    file = tmp_path / "train-images-idx3-ubyte.gz"
    file.write_bytes(file.read_bytes()[:-20])
    with pytest.raises(errors.UsageError, match="train-images-idx3-ubyte.gz to be whole, got Comp"):
        small_images.fashion_mnist(tmp_path)


@pytest.mark.parametrize("is_binary", [True, False])
def test_cifar10_that_is_damaged(tmp_path, is_binary):
    image_files.cifar(tmp_path / "cifar-10-batches-py", is_binary)
    *_, file = sorted((tmp_path / "cifar-10-batches-py").glob("data_batch*"))
    file.write_bytes(file.read_bytes()[:-20])
    with pytest.raises(errors.UsageError, match=f"{file}, got .*; unpack the archive again"):
        small_images.cifar10(tmp_path)
    file.unlink()
    with pytest.raises(errors.UsageError, match=f"{file}, got FileNotFoundError"):
        small_images.cifar10(tmp_path)


def test_cifar10_that_is_not_there(tmp_path):
    with pytest.raises(errors.UsageError, match=r"cifar-10-python.tar.gz"):
        small_images.cifar10(tmp_path)


@pytest.mark.parametrize(("num_replicas", "num_pipelines"), [(2, 1), (4, 2), (2, 2)])
def test_the_order_does_not_depend_on_replicas(small, num_replicas, num_pipelines):
    want, labels = parts(small, 0, 9, 1, 1, 8)  # 72 examples: beyond the first epoch.
    got, _ = parts(small, 0, 9, num_replicas, num_pipelines, 8)
    key = lambda images: sorted(image.tobytes() for image in images)  # noqa: E731
    for step in range(9) if num_pipelines == 1 else ():
        rows = slice(8 * step, 8 * step + 8)
        np.testing.assert_array_equal(got[rows], want[rows])
    assert key(got) == key(want)
    assert len(labels) == 72


def test_an_epoch_has_every_image_once(small, monkeypatch):
    monkeypatch.setattr(data, "augment", lambda images, variation: images)
    images, _ = parts(small, 0, 20, 1, 1, 5)
    first, second = images[:50, 0, 0, 0], images[50:, 0, 0, 0]
    np.testing.assert_array_equal(np.sort(first), np.arange(50))
    np.testing.assert_array_equal(np.sort(second), np.arange(50))
    assert (first != second).any()


@pytest.mark.parametrize("kind", ["small", "large"])
@pytest.mark.parametrize("start", [2, 7])
def test_a_resumed_run_goes_on_with_what_was_left(request, kind, start):
    images = request.getfixturevalue(kind)
    for got, want in zip(
        parts(images, start, 3, 2, 1, 8), parts(images, 0, start + 3, 2, 1, 8), strict=True
    ):
        np.testing.assert_array_equal(got, want[8 * start :])


def test_variation():
    image = tf.constant(np.arange(1, 31).reshape(1, 5, 6, 1), tf.uint8)
    kept = data.augment(image, tf.constant([[0.5, 0.5, 0.9]]))
    np.testing.assert_array_equal(kept, image)
    flipped = data.augment(image, tf.constant([[0.5, 0.5, 0.1]]))
    np.testing.assert_array_equal(flipped, image[:, :, ::-1])
    shifted = data.augment(image, tf.constant([[0.0, 0.99, 0.9]]))[0, :, :, 0].numpy()
    want = np.zeros([5, 6])
    want[4, :2] = [5, 6]  # Four down, four to the left.
    np.testing.assert_array_equal(shifted, want)


def test_records_have_every_image_once_in_an_epoch(large):
    _, labels = parts(large, 0, 6, 2, 2, 8)  # Two epochs of 24.
    np.testing.assert_array_equal(np.sort(labels), np.repeat(np.arange(24), 2))


def test_pipelines_read_files_of_their_own(large):
    halves = [take(large.train(InputContext(2, i, 2), 8, 0), 3)[1] for i in range(2)]
    np.testing.assert_array_equal(np.sort(np.concatenate(halves)), np.arange(24))
    with pytest.raises(errors.ConfigError, match="at least 5 training files"):
        large.train(InputContext(5, 0, 5), 10, 0)


def test_images_of_records(large):
    for dataset in (
        large.train(InputContext(1), 8, 0).take(3),
        large.evaluate(InputContext(1), 4),
    ):
        for images, labels in dataset.as_numpy_iterator():
            assert images.shape[1:] == (16, 16, 3) and images.dtype == np.uint8
            spread = np.abs(images.astype(int) - labels[:, None, None, None])
            assert spread.max() <= 1  # JPEG is lossy.


def test_evaluation_of_records_has_every_image_once(large):
    parts_ = [list(large.evaluate(InputContext(2, i, 2), 4).as_numpy_iterator()) for i in range(2)]
    labels = np.concatenate([labels for part in parts_ for _, labels in part])
    np.testing.assert_array_equal(np.sort(labels), np.arange(7))


def test_tfds_directory(tmp_path):
    folder = image_files.tfds(tmp_path)
    found = image_records.find(folder, "train")
    assert (found.num_examples, len(found.files), found.first_label) == (6, 2, 0)
    assert image_records.find(folder, "validation").num_examples == 5  # Its test split.
    assert image_records.num_classes(folder) == 37
    _, labels = take(data.RecordImages(folder, 8, seed=1).evaluate(InputContext(1), 5), 1)
    np.testing.assert_array_equal(np.sort(labels), np.arange(1, 6))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "dataset_info.json to describe the splits, got JSONDecodeError"),
        ("[]", "dataset_info.json to describe the splits, got AttributeError"),
        ('{"splits": [{"name": "train"}]}', "expected a split 'train' in .*, found none"),
    ],
)
def test_a_damaged_tfds_directory(tmp_path, text, message):
    (image_files.tfds(tmp_path) / "dataset_info.json").write_text(text)
    with pytest.raises(errors.ConfigError, match=f"{message}.*; prepare the data set again"):
        image_records.find(tmp_path, "train")


def test_missing_shards_are_an_error(tmp_path):
    with pytest.raises(errors.ConfigError, match="found 0; name their folder"):
        image_records.find(tmp_path, "train")
    image_files.imagenet(tmp_path)
    (tmp_path / "train-00002-of-00004").unlink()
    with pytest.raises(errors.ConfigError, match="found 3 of 4"):
        image_records.find(tmp_path, "train")


def test_counting_records(tmp_path):
    image_files.imagenet(tmp_path)
    file = tmp_path / "train-00000-of-00004"
    assert image_records.count_records(file) == 6
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(errors.ConfigError, match="truncated"):
        image_records.count_records(file)


IMAGENET = 1_281_167


def evenly(num_threads):
    """The sizes of 1024 files, as `build_imagenet_data` divides ImageNet."""
    edges = [IMAGENET * i // num_threads for i in range(num_threads + 1)]
    per_thread = 1024 // num_threads
    sizes = []
    for start, end in itertools.pairwise(edges):
        within = [start + (end - start) * i // per_thread for i in range(per_thread + 1)]
        sizes += [b - a for a, b in itertools.pairwise(within)]
    return sizes


@pytest.mark.parametrize(
    ("sizes", "is_recognised"),
    [
        (evenly(1), True),
        (evenly(8), True),
        (evenly(64), True),
        ([1252] * 1023 + [371], True),
        # With Python 2, `imagenet_to_gcs` left out 143 images.
        ([1251] * 1024, False),
        ([1252] * 1024, False),
        ([371, *[1252] * 1023], False),
        ([1] * 1024, False),
        ([1251, 1252] * 512, False),
    ],
    ids=[f"layout{i}" for i in range(9)],
)
def test_a_thousand_files_are_counted_unless_they_are_imagenet(
    sizes, is_recognised, tmp_path, monkeypatch
):
    for i in range(1024):
        (tmp_path / f"train-{i:05d}-of-01024").touch()
    counted = []

    def count_records(path):
        counted.append(path)
        return sizes[int(path.name[6:11])]

    monkeypatch.setattr(image_records, "count_records", count_records)
    assert image_records.find(tmp_path, "train").num_examples == sum(sizes)
    assert (len(counted) < 20) == is_recognised


def test_a_thousand_files_that_are_not_imagenet(tmp_path):
    image_files.records(tmp_path, "one", 1, 1)
    content = (tmp_path / "one").read_bytes()
    for i in range(1024):
        (tmp_path / f"train-{i:05d}-of-01024").write_bytes(content * (1 + i % 2))
    assert image_records.find(tmp_path, "train").num_examples == 1536


def test_windows():
    # The shorter side corresponds to 256 pixels, of which 224 are kept: 40 * 224 / 256 = 35.
    np.testing.assert_array_equal(
        image_records.central_window(tf.constant([40, 60, 3]), 224), [2, 12, 35, 35]
    )
    for place in range(50):
        top, left, height, width = image_records.random_window(
            tf.constant([40, 60, 3]), tf.constant([1, place], tf.int64)
        ).numpy()
        assert 0 <= top <= 40 - height and 0 <= left <= 60 - width
        assert height * width >= 0.07 * 2400
        assert 0.6 <= width / height <= 1.5


def test_imagenet_needs_a_folder():
    with pytest.raises(errors.ConfigError, match="--data-dir"):
        data.load(ResNetConfig(data="imagenet").resolved())
