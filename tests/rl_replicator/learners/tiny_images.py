"""Tiny data sets, and a tiny classifier, in the formats of the real ones."""

import gzip
import pickle
import struct

import numpy as np
import tensorflow as tf

NUM_TRAIN, NUM_TEST, SIDE = 50, 37, 8


def idx(path, array):
    header = bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
    content = header + array.astype(np.uint8).tobytes()
    if path.suffix == ".gz":
        with gzip.open(path, "wb") as file:
            file.write(content)
    else:
        path.write_bytes(content)


def fashion_mnist(folder):
    """Images whose brightness encodes their label; the first pixel is the image's number."""
    rng = np.random.default_rng(0)
    for part, count, suffix in (("train", NUM_TRAIN, ".gz"), ("t10k", NUM_TEST, "")):
        labels = rng.integers(10, size=count)
        images = rng.integers(20, size=(count, SIDE, SIDE)) + 20 * labels[:, None, None]
        images[:, 0, 0] = np.arange(count)
        idx(folder / f"{part}-images-idx3-ubyte{suffix}", images)
        idx(folder / f"{part}-labels-idx1-ubyte{suffix}", labels)
    return folder


def cifar(folder):
    """Two images in each file; pixel (row, column) of channel c is 100 c + row."""
    folder.mkdir()
    image = np.zeros([3, 32, 32], np.uint8)
    image += (100 * np.arange(3)[:, None, None] + np.arange(32)[None, :, None]).astype(np.uint8)
    rows = np.stack([image.reshape(-1)] * 2)
    for number, name in enumerate([*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]):
        (folder / name).write_bytes(pickle.dumps({b"data": rows, b"labels": [number, 9]}))


def records(folder, pattern, num_files, count):
    """JPEG images of 40x60, but every third is PNG; image i has brightness i and label i + 1."""
    for file in range(num_files):
        with tf.io.TFRecordWriter(str(folder / pattern.format(file, num_files))) as writer:
            for i in range(file, count, num_files):
                image = tf.fill([40, 60, 3], tf.constant(i, tf.uint8))
                encoded = (tf.io.encode_png if i % 3 == 0 else tf.io.encode_jpeg)(image).numpy()
                features = {
                    "image/encoded": tf.train.Feature(
                        bytes_list=tf.train.BytesList(value=[encoded])
                    ),
                    "image/class/label": tf.train.Feature(
                        int64_list=tf.train.Int64List(value=[i + 1])
                    ),
                }
                example = tf.train.Example(features=tf.train.Features(feature=features))
                writer.write(example.SerializeToString())


def imagenet(folder):
    records(folder, "train-{:05d}-of-{:05d}", 4, 24)
    records(folder, "validation-{:05d}-of-{:05d}", 2, 7)
    return folder


def inception(folder):
    """A graph with Inception's names, which takes one image at a time, as Inception does.

    The features are the channels' means / 128 - 1; the logits, the first and twice the second.
    """
    with tf.Graph().as_default() as graph:
        image = tf.compat.v1.placeholder(tf.float32, [None, None, 3])
        images = tf.expand_dims(image, 0, name="ExpandDims")
        resized = tf.image.resize(images, [4, 4]) / 128 - 1
        pool = tf.nn.avg_pool2d(resized, 4, 4, "VALID", name="pool_3")
        w = tf.constant([[1.0, 0.0], [0.0, 2.0], [0.0, 0.0]])
        with tf.name_scope("softmax"):
            tf.matmul(tf.reshape(pool, [1, 3]), w, name="logits/MatMul")
    path = folder / "classify_image_graph_def.pb"
    path.write_bytes(graph.as_graph_def().SerializeToString())
    return path
