"""Writes an ImageNet-like folder of TFRecords: real JPEG files of Fashion-MNIST, scaled up.

    python -m bench.image_records FOLDER IMAGES

The images have ImageNet's usual sizes, about 500x375, three channels and ordinary quality, so that
reading and decoding them costs what ImageNet costs. Labels are 1 to 10.
"""

import sys
from pathlib import Path

import numpy as np
import tensorflow as tf

from rl_replicator.learners import small_images

_SIZES = ((375, 500), (500, 375), (333, 500), (480, 640), (256, 256))
_FILES = {"train": 8, "validation": 2}


def write(folder: Path, num_images: int) -> None:
    """Writes `num_images` training images, and a fifth as many for validation."""
    data = small_images.fashion_mnist()
    folder.mkdir(parents=True, exist_ok=True)
    splits = {
        "train": (data.train_images, data.train_labels, num_images),
        "validation": (data.test_images, data.test_labels, max(1, num_images // 5)),
    }
    for split, (images, labels, count) in splits.items():
        files = _FILES[split]
        for file in range(files):
            path = folder / f"{split}-{file:05d}-of-{files:05d}"
            with tf.io.TFRecordWriter(str(path)) as writer:
                for i in range(file, count, files):
                    writer.write(_example(images[i], int(labels[i]), i))


def _example(image: np.ndarray, label: int, index: int) -> bytes:
    height, width = _SIZES[index % len(_SIZES)]
    large = tf.image.resize(tf.image.grayscale_to_rgb(tf.constant(image)), [height, width])
    # Fine structure, without which a JPEG would be smaller and quicker than a photograph.
    rng = np.random.default_rng(index)
    noise = tf.image.resize(rng.normal(0, 40, [height // 2, width // 2, 3]), [height, width])
    encoded = tf.io.encode_jpeg(tf.saturate_cast(large + noise, tf.uint8), quality=90).numpy()
    features = {
        "image/encoded": tf.train.Feature(bytes_list=tf.train.BytesList(value=[encoded])),
        "image/class/label": tf.train.Feature(int64_list=tf.train.Int64List(value=[label + 1])),
    }
    return tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString()


if __name__ == "__main__":
    folder, count = sys.argv[1:]
    write(Path(folder), int(count))
    print(f"{count} training images in {folder}")
