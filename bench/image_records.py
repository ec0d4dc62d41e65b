"""Writes an ImageNet-like folder of TFRecords with JPEG files of smooth and fine noise.

    python -m bench.image_records FOLDER IMAGES

The images have ImageNet's usual sizes, about 500x375, three channels and ordinary quality, so that
reading and decoding them costs what ImageNet costs. Labels are 1 to 10.
"""

import sys
from pathlib import Path

import numpy as np
import tensorflow as tf

_SIZES = ((375, 500), (500, 375), (333, 500), (480, 640), (256, 256))
_FILES = {"train": 8, "validation": 2}


def write(folder: Path, num_images: int) -> None:
    """Writes `num_images` training images, and a fifth as many for validation."""
    folder.mkdir(parents=True, exist_ok=True)
    for split, count in (("train", num_images), ("validation", max(1, num_images // 5))):
        files = _FILES[split]
        for file in range(files):
            path = folder / f"{split}-{file:05d}-of-{files:05d}"
            with tf.io.TFRecordWriter(str(path)) as writer:
                for index in range(file, count, files):
                    writer.write(_example(index))


def _example(index: int) -> bytes:
    height, width = _SIZES[index % len(_SIZES)]
    random = np.random.default_rng(index)
    large = tf.image.resize(random.uniform(0, 255, [8, 8, 3]), [height, width])
    # Fine structure, without which a JPEG would be smaller and faster to decode than a photograph.
    noise = tf.image.resize(random.normal(0, 40, [height // 2, width // 2, 3]), [height, width])
    encoded = tf.io.encode_jpeg(tf.saturate_cast(large + noise, tf.uint8), quality=90).numpy()
    features = {
        "image/encoded": tf.train.Feature(bytes_list=tf.train.BytesList(value=[encoded])),
        "image/class/label": tf.train.Feature(
            int64_list=tf.train.Int64List(value=[1 + index % 10])
        ),
    }
    return tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString()


if __name__ == "__main__":
    folder, count = sys.argv[1:]
    write(Path(folder), int(count))
    print(f"{count} training images in {folder}")
