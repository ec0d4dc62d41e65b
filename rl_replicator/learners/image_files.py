"""Files of images: Fashion-MNIST, CIFAR-10, and TFRecord files as of ImageNet."""

import dataclasses
import gzip
import pickle
import re
import struct
import zlib
from concurrent import futures
from pathlib import Path

import numpy as np
import tensorflow as tf

from rl_replicator.errors import UsageError

# Debian's package of Fashion-MNIST, and the folder that it installs to.
_DEBIAN_PACKAGE = "dataset-fashion-mnist"
_DEBIAN_FOLDER = Path("/usr/share/datasets/fashion-mnist")
_IMAGENET_FILES, _IMAGENET_EXAMPLES = 1024, 1_281_167
NUM_CLASSES = 1000
# The features of a record; labels are from 1.
_IMAGE, _LABEL = "image/encoded", "image/class/label"
_SHARD = re.compile(r"-\d{5}-of-\d{5}$")
# Files that are read in parallel.
CYCLE_LENGTH = 16
# Bytes that frame a record: the length of its data, the checksum of that length, and the checksum
# of the data.
_LENGTH, _LENGTH_CHECKSUM, _DATA_CHECKSUM = 8, 4, 4

# Images, [N, H, W, C] uint8, and labels, [N] int32, of 10 classes.
Labelled = tuple[np.ndarray, np.ndarray]


def fashion_mnist(folder: Path | None = None) -> tuple[Labelled, Labelled]:
    """Reads Fashion-MNIST, Xiao et al. 2017 (arXiv:1708.07747).

    Args:
      folder: folder of the four IDX files, plain or compressed; None for that of Debian's package.

    Returns:
      60,000 training and 10,000 test images, grey, 28x28x1.

    Raises:
      UsageError: if the files are missing or damaged, or are not IDX files.
    """
    advice = "name the folder that holds it with --data-dir"
    if folder is None:
        folder, advice = _DEBIAN_FOLDER, f"'apt-get install {_DEBIAN_PACKAGE}', or {advice}"

    def part(name: str) -> Labelled:
        images = _idx(folder, f"{name}-images-idx3-ubyte", 3, advice)[..., None]
        return images, _idx(folder, f"{name}-labels-idx1-ubyte", 1, advice).astype(np.int32)

    return part("train"), part("t10k")


def _idx(folder: Path, name: str, rank: int, advice: str) -> np.ndarray:
    """Reads an IDX file of bytes: four bytes of type and rank, the sizes, the data."""
    for path, opened in ((folder / f"{name}.gz", gzip.open), (folder / name, open)):
        if path.is_file():
            try:
                with opened(path, "rb") as file:
                    content = file.read()
                shape = struct.unpack_from(f">{rank}I", content, offset=4)
                return np.frombuffer(content, np.uint8, offset=4 + 4 * rank).reshape(shape)
            except (OSError, EOFError, ValueError, struct.error, zlib.error) as error:
                raise UsageError(
                    f"expected {path} to be a whole IDX file, got {error}; {advice}"
                ) from None
    raise UsageError(f"expected Fashion-MNIST's {name} in {folder}, found none; {advice}")


def cifar10(folder: Path | None) -> tuple[Labelled, Labelled]:
    """Reads CIFAR-10, Krizhevsky 2009.

    Args:
      folder: the unpacked archive of the Python version, or its parent.

    Returns:
      50,000 training and 10,000 test images, in colour, 32x32x3.

    Raises:
      UsageError: if the files are missing or damaged.
    """
    for location in (folder, folder / "cifar-10-batches-py") if folder else ():
        if (location / "data_batch_1").is_file():
            parts = [_cifar(location / f"data_batch_{i}") for i in range(1, 6)]
            images, labels = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
            return (images, labels), _cifar(location / "test_batch")
    raise UsageError(
        f"expected CIFAR-10's data_batch_1 to data_batch_5 and test_batch in "
        f"{folder or 'a folder'}, found none; unpack cifar-10-python.tar.gz and name the folder "
        "with --data-dir"
    )


def _cifar(path: Path) -> Labelled:
    try:
        content = pickle.loads(path.read_bytes(), encoding="bytes")
        images = content[b"data"].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
        return np.ascontiguousarray(images), np.asarray(content[b"labels"], np.int32)
    except Exception as error:  # A damaged pickle may raise any exception.
        raise UsageError(
            f"expected images of CIFAR-10 in {path}, got {type(error).__name__}: {error}; unpack "
            "the archive again"
        ) from None


@dataclasses.dataclass(frozen=True)
class ImageRecords:
    """Files in which each record holds an encoded image and its label.

    Attributes:
      files: paths of the files, in order.
      num_examples: number of records in all files.
    """

    files: tuple[str, ...]
    num_examples: int

    def parse(self, record: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the encoded image, a scalar string, and its label in [0, K), a scalar int32.

        Args:
          record: a serialised example, a scalar string.
        """
        kinds = {_IMAGE: tf.string, _LABEL: tf.int64}
        features = tf.io.parse_single_example(
            record, {key: tf.io.FixedLenFeature([], kind) for key, kind in kinds.items()}
        )
        return features[_IMAGE], tf.cast(features[_LABEL], tf.int32) - 1


def find(folder: Path, split: str) -> ImageRecords:
    """Finds the records of a split, and counts them unless they are ImageNet's.

    1,024 training files count as ImageNet, 140 GB, if the first one has as many records as there.

    Args:
      folder: folder of files such as `train-00000-of-01024`, with features `image/encoded` and
        `image/class/label` (from 1).
      split: "train" or "validation".

    Raises:
      UsageError: if the folder has no such files, or some of them are missing or damaged.
    """
    files = _shards(folder, f"{split}-*")
    mean = _IMAGENET_EXAMPLES // _IMAGENET_FILES
    if (split, len(files)) == ("train", _IMAGENET_FILES) and (
        mean <= count_records(files[0]) <= mean + 1
    ):
        count = _IMAGENET_EXAMPLES
    else:
        with futures.ThreadPoolExecutor(CYCLE_LENGTH) as executor:
            count = sum(executor.map(count_records, files))
    return ImageRecords(tuple(map(str, files)), count)


def _shards(folder: Path, pattern: str) -> list[Path]:
    """Returns the files of a sharded set; raises `UsageError` if any is missing."""
    files = sorted(path for path in folder.glob(pattern) if _SHARD.search(path.name))
    expected = int(files[0].name[-5:]) if files else 1
    if len(files) != expected:
        raise UsageError(
            f"expected files such as {pattern.replace('*', '')}00000-of-01024 in {folder}, found "
            f"{len(files)}{f' of {expected}' if files else ''}; name their folder with --data-dir"
        )
    return files


def count_records(path: Path) -> int:
    """Counts the records of a TFRecord file. Reads only their lengths, so it is fast.

    Args:
      path: the file.

    Raises:
      UsageError: if the file is truncated.
    """
    count, position, end = 0, 0, path.stat().st_size
    with path.open("rb") as file:
        while position + _LENGTH <= end:
            file.seek(position)
            (length,) = struct.unpack("<Q", file.read(_LENGTH))
            position += _LENGTH + _LENGTH_CHECKSUM + length + _DATA_CHECKSUM
            count += 1
    if position != end:
        raise UsageError(
            f"expected a complete TFRecord file, found that {path} is truncated; write or copy it "
            "again"
        )
    return count
