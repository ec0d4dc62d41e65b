"""Image data sets in TFRecord files: ImageNet in its usual layout, and TFDS directories."""

import dataclasses
import itertools
import json
import re
import struct
from collections.abc import Callable, Sequence
from concurrent import futures
from pathlib import Path

import numpy as np
import tensorflow as tf

from rl_replicator import errors

_IMAGENET_TRAIN_FILES, _IMAGENET_TRAIN_EXAMPLES, _IMAGENET_CLASSES = 1024, 1_281_167, 1000
# Files whose records are counted to recognise ImageNet. In each layout of it, some of them hold
# 1251 records and some 1252.
_CHECKED_FILES = (*range(7, _IMAGENET_TRAIN_FILES, 63), _IMAGENET_TRAIN_FILES - 1)
_SHARD = re.compile(r"-\d{5}-of-\d{5}$")
# Files that are read in parallel.
_CYCLE_LENGTH = 16
# Bytes that frame a record: the length of its data, the checksum of that length, and the checksum
# of the data.
_LENGTH, _LENGTH_CHECKSUM, _DATA_CHECKSUM = 8, 4, 4


@dataclasses.dataclass(frozen=True)
class ImageRecords:
    """Files in which each record holds an encoded image and its label.

    Attributes:
      files: paths of the files, in order.
      num_examples: number of records in all files.
      image_key: name of the feature that holds a JPEG or a PNG.
      label_key: name of the feature that holds the label.
      first_label: label that the files give to class 0.
    """

    files: tuple[str, ...]
    num_examples: int
    image_key: str
    label_key: str
    first_label: int

    def parse(self, record: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Parses a serialised example.

        Args:
          record: scalar string.

        Returns:
          The encoded image, a scalar string, and its label in [0, K), a scalar int32.
        """
        features = tf.io.parse_single_example(
            record,
            {
                self.image_key: tf.io.FixedLenFeature([], tf.string),
                self.label_key: tf.io.FixedLenFeature([], tf.int64),
            },
        )
        return features[self.image_key], tf.cast(features[self.label_key], tf.int32) - (
            self.first_label
        )


def find(folder: Path, split: str) -> ImageRecords:
    """Finds the records of a split.

    Args:
      folder: folder of files such as `train-00000-of-01024`, with features `image/encoded` and
        `image/class/label` (from 1); or a directory that TFDS prepared, with `dataset_info.json`
        and features `image` and `label` (from 0).
      split: "train" or "validation". A TFDS directory without "validation" provides "test" instead.

    Returns:
      The records.

    Raises:
      ConfigError: if the folder has no such files, or some of them are missing.
    """
    if (folder / "dataset_info.json").is_file():
        return _find_tfds(folder, split)
    files = _shards(folder, f"{split}-*")
    is_imagenet = split == "train" and _is_imagenet(files)
    count = _IMAGENET_TRAIN_EXAMPLES if is_imagenet else sum(_counts(files))
    return ImageRecords(_texts(files), count, "image/encoded", "image/class/label", first_label=1)


def num_classes(folder: Path) -> int:
    """Returns the number of classes: 1000, or the number in the metadata of a TFDS directory.

    Args:
      folder: see `find`.

    Raises:
      ConfigError: if the metadata of a TFDS directory describes no class label.
    """
    if not (folder / "dataset_info.json").is_file():
        return _IMAGENET_CLASSES
    try:
        features = json.loads((folder / "features.json").read_text())
        label = features["featuresDict"]["features"]["label"]
        return int(label["classLabel"]["numClasses"])
    except (OSError, ValueError, KeyError, TypeError):
        raise errors.ConfigError(
            f"expected features.json in {folder} to describe a class label named 'label', found "
            "none; use a data set for image classification"
        ) from None


def read(
    records: ImageRecords, transform: Callable[[tf.data.Dataset], tf.data.Dataset] | None = None
) -> tf.data.Dataset:
    """Reads serialised examples from several files in parallel, in a deterministic order.

    Args:
      records: records to read.
      transform: transforms the dataset of file names: shuffles or shards it, for example.

    Returns:
      A dataset of scalar strings.
    """
    files = tf.data.Dataset.from_tensor_slices(list(records.files))
    return (transform(files) if transform else files).interleave(
        tf.data.TFRecordDataset,
        cycle_length=min(_CYCLE_LENGTH, len(records.files)),
        num_parallel_calls=tf.data.AUTOTUNE,
        deterministic=True,
    )


def decode(
    encoded: tf.Tensor, choose_window: Callable[[tf.Tensor], tf.Tensor], size: int
) -> tf.Tensor:
    """Decodes a window of an image and resizes it. Only the window of a JPEG is decoded.

    Args:
      encoded: JPEG or PNG, a scalar string.
      choose_window: maps the image's shape, [3] int32, to a window, [4] int32: top, left, height,
        width.
      size: height and width of the result.

    Returns:
      [size, size, 3] uint8.
    """

    def crop_jpeg() -> tf.Tensor:
        window = choose_window(tf.io.extract_jpeg_shape(encoded))
        return tf.io.decode_and_crop_jpeg(encoded, window, channels=3)

    def crop_png() -> tf.Tensor:
        image = tf.io.decode_png(encoded, channels=3)
        return tf.image.crop_to_bounding_box(image, *tf.unstack(choose_window(tf.shape(image))))

    image = tf.cond(tf.io.is_jpeg(encoded), crop_jpeg, crop_png)
    image = tf.image.resize(image, [size, size])  # Bilinear, float32.
    return tf.cast(tf.round(image), tf.uint8)


def random_window(shape: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
    """Draws a window with 8 % to 100 % of the image's area and an aspect ratio from 3:4 to 4:3.

    Szegedy et al. 2014 (arXiv:1409.4842), section 6.

    Args:
      shape: shape of the image, [3] int32.
      seed: [2] int64.

    Returns:
      [4] int32: top, left, height, width.
    """
    begin, size, _ = tf.image.stateless_sample_distorted_bounding_box(
        shape,
        bounding_boxes=tf.zeros([1, 0, 4]),
        seed=seed,
        min_object_covered=0.0,
        aspect_ratio_range=(3 / 4, 4 / 3),
        area_range=(0.08, 1.0),
        max_attempts=10,
        use_image_if_no_bounding_boxes=True,
    )
    return tf.stack([begin[0], begin[1], size[0], size[1]])


def central_window(shape: tf.Tensor, size: int) -> tf.Tensor:
    """Returns the central square window for evaluation.

    Resizing this window to `size` equals resizing the image's shorter side to `size * 8 / 7` and
    cropping the centre: 224 of 256 pixels, as in He et al. 2015 (arXiv:1512.03385), section 3.4.

    Args:
      shape: shape of the image, [3] int32.
      size: height and width that the window will be resized to.

    Returns:
      [4] int32: top, left, height, width.
    """
    side = tf.cast(tf.minimum(shape[0], shape[1]), tf.float32)
    cut = tf.cast(tf.round(side * (size / (size + size // 7))), tf.int32)
    return tf.stack([(shape[0] - cut) // 2, (shape[1] - cut) // 2, cut, cut])


def count_records(path: Path) -> int:
    """Counts the records of a TFRecord file. Reads only their lengths, so it is fast.

    Args:
      path: the file.

    Raises:
      ConfigError: if the file is truncated.
    """
    count, end = 0, path.stat().st_size
    with path.open("rb") as file:
        position = 0
        while position < end:
            file.seek(position)
            header = file.read(_LENGTH)
            if len(header) == _LENGTH:
                position += _LENGTH + _LENGTH_CHECKSUM + struct.unpack("<Q", header)[0]
                position += _DATA_CHECKSUM
            if len(header) < _LENGTH or position > end:
                raise errors.ConfigError(
                    f"expected a complete TFRecord file, found that {path} is truncated; write or "
                    "copy it again"
                )
            count += 1
    return count


def _counts(files: Sequence[Path]) -> list[int]:
    """Returns the number of records of each file; reads several at a time."""
    with futures.ThreadPoolExecutor(_CYCLE_LENGTH) as executor:
        return list(executor.map(count_records, files))


def _is_imagenet(files: Sequence[Path]) -> bool:
    """Returns whether the training files are ImageNet's, 140 GB, whose records need no counting.

    Two programs write these files: `build_imagenet_data` from TensorFlow's models divides the
    records evenly, first among its threads; `imagenet_to_gcs` for TPUs writes files of 1252 records
    and a smaller last one. To be mistaken for ImageNet, other data would need the same number of
    records in each of 18 files.
    """
    if len(files) != _IMAGENET_TRAIN_FILES:
        return False
    layouts = [_evenly(2**i) for i in range(_IMAGENET_TRAIN_FILES.bit_length())]
    full = -(-_IMAGENET_TRAIN_EXAMPLES // _IMAGENET_TRAIN_FILES)
    starts = np.arange(_IMAGENET_TRAIN_FILES + 1) * full
    layouts.append(np.diff(np.minimum(starts, _IMAGENET_TRAIN_EXAMPLES)))
    checked = list(_CHECKED_FILES)
    found = _counts([files[i] for i in checked])
    return any(np.array_equal(layout[checked], found) for layout in layouts)


def _evenly(num_threads: int) -> np.ndarray:
    """Returns the sizes of ImageNet's files, divided among threads and then among their files."""
    threads = np.linspace(0, _IMAGENET_TRAIN_EXAMPLES, num_threads + 1).astype(int)
    num_files = _IMAGENET_TRAIN_FILES // num_threads
    starts = [
        np.linspace(start, end, num_files + 1).astype(int)
        for start, end in itertools.pairwise(threads)
    ]
    return np.concatenate([np.diff(x) for x in starts])


def _find_tfds(folder: Path, split: str) -> ImageRecords:
    path = folder / "dataset_info.json"
    try:
        entries = json.loads(path.read_text()).get("splits", [])
        sizes = {one["name"]: sum(map(int, one.get("shardLengths", []))) for one in entries}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise errors.ConfigError(
            f"expected {path} to describe the splits, got {type(error).__name__}: {error}; prepare "
            "the data set again"
        ) from None
    splits = {name: size for name, size in sizes.items() if size}
    name = "test" if split == "validation" and split not in splits else split
    if name not in splits:
        raise errors.ConfigError(
            f"expected a split {split!r} in {folder}, found {', '.join(splits) or 'none'}; "
            "prepare the data set again"
        )
    files = _shards(folder, f"*-{name}.tfrecord-*")
    return ImageRecords(_texts(files), splits[name], "image", "label", first_label=0)


def _shards(folder: Path, pattern: str) -> list[Path]:
    """Returns the files of a sharded set; raises `ConfigError` if any is missing."""
    files = sorted(path for path in folder.glob(pattern) if _SHARD.search(path.name))
    expected = int(files[0].name[-5:]) if files else 1
    if len(files) != expected:
        raise errors.ConfigError(
            f"expected files such as {pattern.replace('*', '')}00000-of-01024 in {folder}, found "
            f"{len(files)}{f' of {expected}' if files else ''}; name their folder with --data-dir"
        )
    return files


def _texts(files: list[Path]) -> tuple[str, ...]:
    return tuple(map(str, files))
