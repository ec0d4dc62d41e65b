"""Image data sets in TFRecord files: ImageNet as most tools prepare it, and TFDS directories."""

import dataclasses
import json
import re
import struct
from collections.abc import Callable
from pathlib import Path

import tensorflow as tf

from rl_replicator import errors

_IMAGENET_TRAIN_FILES, _IMAGENET_TRAIN_EXAMPLES, _IMAGENET_CLASSES = 1024, 1_281_167, 1000
_SHARD = re.compile(r"-\d{5}-of-\d{5}$")
_READ_AT_ONCE = 16
# Bytes around the data of a record: its length, that number's checksum, and the data's.
_LENGTH, _LENGTH_CHECKSUM, _DATA_CHECKSUM = 8, 4, 4


@dataclasses.dataclass(frozen=True)
class ImageRecords:
    """Files with one encoded image and one label a record.

    Attributes:
      files: in order.
      num_examples: in all of them.
      image_key: feature that holds a JPEG or a PNG.
      label_key: feature that holds the label.
      first_label: what the label of class 0 is.
    """

    files: tuple[str, ...]
    num_examples: int
    image_key: str
    label_key: str
    first_label: int

    def parse(self, record: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """A serialised example -> encoded image and label in [0, classes), int32; scalars."""
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
    """The records of one split in a folder.

    Args:
      folder: with files such as `train-00000-of-01024`, whose features are `image/encoded` and
        `image/class/label` (from 1); or a directory that TFDS has prepared, with
        `dataset_info.json` and features `image` and `label` (from 0).
      split: "train" or "validation"; in a TFDS directory without that, "test" stands in for it.

    Raises:
      ConfigError: nothing of that kind is there, or some of its files are missing.
    """
    if (folder / "dataset_info.json").is_file():
        return _find_tfds(folder, split)
    files = _shards(folder, f"{split}-*")
    if len(files) == _IMAGENET_TRAIN_FILES and split == "train":
        count = _IMAGENET_TRAIN_EXAMPLES
    else:
        count = sum(map(count_records, files))
    return ImageRecords(_texts(files), count, "image/encoded", "image/class/label", first_label=1)


def num_classes(folder: Path) -> int:
    """How many classes there are: 1000, or as many as TFDS has written down.

    Raises:
      ConfigError: a TFDS directory without a list of labels.
    """
    if not (folder / "dataset_info.json").is_file():
        return _IMAGENET_CLASSES
    try:
        features = json.loads((folder / "features.json").read_text())
        label = features["featuresDict"]["features"]["label"]
        return int(label["classLabel"]["numClasses"])
    except (OSError, ValueError, KeyError, TypeError):
        raise errors.ConfigError(
            f"expected features.json in {folder} to describe a class label called 'label', found "
            "nothing of that kind; prepare a data set for image classification"
        ) from None


def read(
    records: ImageRecords, transform: Callable[[tf.data.Dataset], tf.data.Dataset] | None = None
) -> tf.data.Dataset:
    """Serialised examples, from several files at once, in the same order each time.

    Args:
      records: what to read.
      transform: of the dataset of file names, to shuffle them or to take a part.
    """
    files = tf.data.Dataset.from_tensor_slices(list(records.files))
    return (transform(files) if transform else files).interleave(
        tf.data.TFRecordDataset,
        cycle_length=min(_READ_AT_ONCE, len(records.files)),
        num_parallel_calls=tf.data.AUTOTUNE,
        deterministic=True,
    )


def decode(
    encoded: tf.Tensor, choose_window: Callable[[tf.Tensor], tf.Tensor], size: int
) -> tf.Tensor:
    """A window of an image, resized. Of a JPEG, only the window is decoded.

    Args:
      encoded: a JPEG or a PNG.
      choose_window: shape [3] int32 of the image -> [4] int32: top, left, height, width.
      size: of both sides of the result.

    Returns:
      [size, size, 3] uint8.
    """

    def of_jpeg() -> tf.Tensor:
        window = choose_window(tf.io.extract_jpeg_shape(encoded))
        return tf.io.decode_and_crop_jpeg(encoded, window, channels=3)

    def of_png() -> tf.Tensor:
        image = tf.io.decode_png(encoded, channels=3)
        return tf.image.crop_to_bounding_box(image, *tf.unstack(choose_window(tf.shape(image))))

    image = tf.cond(tf.io.is_jpeg(encoded), of_jpeg, of_png)
    image = tf.image.resize(image, [size, size])  # Bilinear, float32.
    return tf.cast(tf.round(image), tf.uint8)


def random_window(shape: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
    """Szegedy et al. 2014 (arXiv:1409.4842), section 6: 8 % to 100 % of the area, 3:4 to 4:3.

    Args:
      shape: [3] int32, of the image.
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
    """The square that is left of an image whose shorter side is `size * 8 / 7`, cut to `size`.

    224 of 256, at the scale of the image itself: He et al. 2015, section 3.4.
    """
    side = tf.cast(tf.minimum(shape[0], shape[1]), tf.float32)
    cut = tf.cast(tf.round(side * (size / (size + size // 7))), tf.int32)
    return tf.stack([(shape[0] - cut) // 2, (shape[1] - cut) // 2, cut, cut])


def count_records(path: Path) -> int:
    """How many records a TFRecord file holds, from the lengths in it alone.

    Raises:
      ConfigError: it is cut short.
    """
    count, end = 0, path.stat().st_size
    with path.open("rb") as file:
        place = 0
        while place < end:
            file.seek(place)
            header = file.read(_LENGTH)
            if len(header) == _LENGTH:
                place += _LENGTH + _LENGTH_CHECKSUM + struct.unpack("<Q", header)[0]
                place += _DATA_CHECKSUM
            if len(header) < _LENGTH or place > end:
                raise errors.ConfigError(
                    f"expected a whole TFRecord file in {path}, found one that is cut short; "
                    "write or copy it again"
                )
            count += 1
    return count


def _find_tfds(folder: Path, split: str) -> ImageRecords:
    info = json.loads((folder / "dataset_info.json").read_text())
    splits = {entry["name"]: entry for entry in info.get("splits", [])}
    name = "test" if split == "validation" and split not in splits else split
    if name not in splits:
        raise errors.ConfigError(
            f"expected a split {split!r} in {folder}, found {', '.join(splits) or 'none'}; "
            "prepare the data set anew"
        )
    count = sum(map(int, splits[name]["shardLengths"]))
    files = _shards(folder, f"*-{name}.tfrecord-*")
    return ImageRecords(_texts(files), count, "image", "label", first_label=0)


def _shards(folder: Path, pattern: str) -> list[Path]:
    """The files of a set of shards, all of them."""
    files = sorted(path for path in folder.glob(pattern) if _SHARD.search(path.name))
    wanted = int(files[0].name[-5:]) if files else 1
    if len(files) != wanted:
        raise errors.ConfigError(
            f"expected files such as {pattern.replace('*', '')}00000-of-01024 in {folder}, found "
            f"{len(files)}{f' of {wanted}' if files else ''}; name their folder with --data-dir"
        )
    return files


def _texts(files: list[Path]) -> tuple[str, ...]:
    return tuple(map(str, files))
