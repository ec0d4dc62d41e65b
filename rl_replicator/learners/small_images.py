"""Data sets of small images that fit into memory: Fashion-MNIST and CIFAR-10."""

import dataclasses
import gzip
import math
import pickle
import struct
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np

from rl_replicator.errors import UsageError

# Debian's package of the data set, and the folder that it installs to.
_DEBIAN_PACKAGE = "dataset-fashion-mnist"
_DEBIAN_FOLDER = Path("/usr/share/datasets/fashion-mnist")
# Bytes of a row of the binary version: a label, and the image's red, green and blue planes.
_CIFAR_BYTES = 1 + 3 * 32 * 32


@dataclasses.dataclass(frozen=True)
class SmallImages:
    """Images and labels.

    Attributes:
      train_images: [N, H, W, C] uint8.
      train_labels: [N] int32, in [0, num_classes).
      test_images: [M, H, W, C] uint8.
      test_labels: [M] int32.
      num_classes: number of classes.
    """

    train_images: np.ndarray
    train_labels: np.ndarray
    test_images: np.ndarray
    test_labels: np.ndarray
    num_classes: int


def fashion_mnist(folder: Path | None = None) -> SmallImages:
    """Reads Fashion-MNIST, Xiao et al. 2017 (arXiv:1708.07747).

    Args:
      folder: folder of the four IDX files, plain or compressed; None for that of Debian's package.

    Returns:
      60,000 training and 10,000 test images, grey, 28x28x1, of 10 classes.

    Raises:
      UsageError: if the files are missing or damaged, or are not IDX files.
    """
    location = folder or _DEBIAN_FOLDER
    advice = (
        f"'apt-get install {_DEBIAN_PACKAGE}' installs it, or name its folder with --data-dir"
        if folder is None
        else "name the folder that holds it with --data-dir"
    )

    def images(part: str) -> np.ndarray:
        return _idx(location, f"{part}-images-idx3-ubyte", 3, advice)[..., None]

    def labels(part: str) -> np.ndarray:
        return _idx(location, f"{part}-labels-idx1-ubyte", 1, advice).astype(np.int32)

    return SmallImages(images("train"), labels("train"), images("t10k"), labels("t10k"), 10)


def cifar10(folder: Path | None) -> SmallImages:
    """Reads CIFAR-10, Krizhevsky 2009.

    Args:
      folder: an unpacked archive of the Python or the binary version, or its parent.

    Returns:
      50,000 training and 10,000 test images, in colour, 32x32x3, of 10 classes.

    Raises:
      UsageError: if the files are missing or damaged.
    """
    names = ("", "cifar-10-batches-py", "cifar-10-batches-bin")
    for location in [folder / name for name in names] if folder else []:
        if (location / "data_batch_1").is_file():
            read, suffix = _cifar_pickle, ""
        elif (location / "data_batch_1.bin").is_file():
            read, suffix = _cifar_binary, ".bin"
        else:
            continue
        parts = [_cifar(read, location / f"data_batch_{i}{suffix}") for i in range(1, 6)]
        test_images, test_labels = _cifar(read, location / f"test_batch{suffix}")
        return SmallImages(
            np.concatenate([images for images, _ in parts]),
            np.concatenate([labels for _, labels in parts]),
            test_images,
            test_labels,
            num_classes=10,
        )
    raise UsageError(
        f"expected CIFAR-10's data_batch_1 to data_batch_5 and test_batch in "
        f"{folder or 'a folder'}, found none; unpack cifar-10-python.tar.gz or "
        "cifar-10-binary.tar.gz and name the folder with --data-dir"
    )


def _idx(folder: Path, name: str, rank: int, advice: str) -> np.ndarray:
    """Reads an IDX file: two zero bytes, a type (8: uint8), the rank, the sizes, the data.

    Args:
      folder: folder of the file.
      name: name of the file, without `.gz`.
      rank: expected number of axes.
      advice: what to do about a missing or damaged file.

    Returns:
      A uint8 array.

    Raises:
      UsageError: if the file is missing, or is not such a file.
    """
    for path, opened in ((folder / f"{name}.gz", gzip.open), (folder / name, open)):
        if path.is_file():
            try:
                with opened(path, "rb") as file:
                    content = file.read()
            except (OSError, EOFError, zlib.error) as error:
                raise UsageError(f"expected {path} to be whole, got {error}; {advice}") from None
            break
    else:
        raise UsageError(f"expected Fashion-MNIST's {name} in {folder}, found none; {advice}")
    header = 4 + 4 * rank
    if content[:4] != bytes([0, 0, 8, rank]) or len(content) < header:
        raise UsageError(
            f"expected {path} to be an IDX file of bytes with {rank} axes, found another format; "
            f"{advice}"
        )
    shape = struct.unpack(f">{rank}I", content[4:header])
    if len(content) - header != math.prod(shape):
        raise UsageError(
            f"expected {math.prod(shape)} bytes of data in {path}, found {len(content) - header}; "
            f"{advice}"
        )
    return np.frombuffer(content, np.uint8, offset=header).reshape(shape)


_Labelled = tuple[np.ndarray, np.ndarray]


def _cifar(read: Callable[[Path], _Labelled], path: Path) -> _Labelled:
    try:
        return read(path)
    except Exception as error:  # A damaged pickle may raise any exception.
        raise UsageError(
            f"expected images of CIFAR-10 in {path}, got {type(error).__name__}: {error}; unpack "
            "the archive again"
        ) from None


def _cifar_pickle(path: Path) -> _Labelled:
    with path.open("rb") as file:
        content = pickle.load(file, encoding="bytes")
    return _channels_last(content[b"data"]), np.asarray(content[b"labels"], np.int32)


def _cifar_binary(path: Path) -> _Labelled:
    rows = np.frombuffer(path.read_bytes(), np.uint8).reshape(-1, _CIFAR_BYTES)
    return _channels_last(rows[:, 1:]), rows[:, 0].astype(np.int32)


def _channels_last(rows: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(rows.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1))
