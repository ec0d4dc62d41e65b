"""A supervised learner against Keras' `fit`: ResNet-50 from JPEG files.

    python -m bench.supervised

Every side runs in its own process: 64 x 64 pixels from TFRecords of JPEG files of
ImageNet's usual sizes, which the benchmark makes; this project's learner against
`tf.keras.applications.ResNet50` under MirroredStrategy on the usual tf.data pipeline: parse, random
window, decode, flip, batch.
"""

import tempfile
import threading
from pathlib import Path

import numpy as np
import tensorflow as tf

import rl_replicator as rr
from bench import harness, processes

NUM_CLASSES, LEARNING_RATE, MOMENTUM = 1000, 0.0125, 0.9
IMAGE_SIZES = ((375, 500), (500, 375), (333, 500), (480, 640), (256, 256))
RESNET, RESNET_KERAS = "ResNet-50", "ResNet-50, Keras fit"


def resnet(options) -> harness.Side:
    """Returns a side: steps of this project's ResNet-50."""
    from rl_replicator.learners.resnet.config import ResNetConfig
    from rl_replicator.learners.resnet.learner import ResNetLearner

    config = ResNetConfig(
        data="imagenet",
        data_dir=options.data_dir,
        image_size=options.size,
        precision=options.precision,
        global_batch_size=options.batch,
        learning_rate=LEARNING_RATE * 256 / options.batch,
        label_smoothing=0.0,
        weight_decay=0.0,
        warm_up_epochs=0.0,
    )
    replicator = rr.make(options.replicas)
    learner = ResNetLearner(replicator, config)
    step = replicator.replicate(learner.step_fn, replicator.make_inputs(learner.input_fn))

    def work() -> None:
        for _ in range(options.steps):
            replicator.reduce("mean", step())

    return harness.clocked(harness.synchronized(work), options.steps * options.batch, "images")


def resnet_keras(options) -> harness.Side:
    """Returns a side: steps of Keras' ResNet-50."""
    if options.precision == "bfloat16":
        tf.keras.mixed_precision.set_global_policy("mixed_bfloat16")
    files = sorted(map(str, options.data_dir.glob("train-*")))
    dataset = tf.data.Dataset.from_tensor_slices(files).shuffle(len(files)).repeat()
    dataset = dataset.interleave(
        tf.data.TFRecordDataset, cycle_length=8, num_parallel_calls=tf.data.AUTOTUNE
    )
    dataset = dataset.shuffle(256)
    dataset = dataset.map(lambda record: parse(record, options.size), tf.data.AUTOTUNE)
    dataset = dataset.batch(options.batch, drop_remainder=True).prefetch(tf.data.AUTOTUNE)
    device = "/gpu:0" if tf.config.list_physical_devices("GPU") else "/cpu:0"
    with tf.distribute.MirroredStrategy([device]).scope():
        shape = (options.size, options.size, 3)
        model = tf.keras.applications.ResNet50(weights=None, classes=NUM_CLASSES, input_shape=shape)
        model.compile(
            tf.keras.optimizers.SGD(LEARNING_RATE, MOMENTUM, nesterov=True),
            "sparse_categorical_crossentropy",
            metrics=["accuracy"],
        )
    return fitted(model, dataset, options.steps, options.batch)


class Pauses(tf.keras.callbacks.Callback):
    """Lets `fit` take some steps at a time, without a new iterator each time."""

    def __init__(self, steps: int):
        """Makes a callback.

        Args:
          steps: number of steps per sample.
        """
        super().__init__()
        self._steps = steps
        self._go, self._done = threading.Semaphore(0), threading.Semaphore(0)

    def take(self) -> None:
        """Takes the steps of a sample. Call it from a thread other than `fit`'s."""
        self._go.release()
        self._done.acquire()

    def on_train_begin(self, logs=None):
        """Waits for the first sample."""
        self._go.acquire()

    def on_train_batch_end(self, batch, logs=None):
        """Waits for the next sample once the steps of this one are done."""
        if (batch + 1) % self._steps == 0:
            tf.test.experimental.sync_devices()
            self._done.release()
            self._go.acquire()


def fitted(
    model: tf.keras.Model, dataset: tf.data.Dataset, steps: int, batch: int, noun: str = "images"
) -> harness.Side:
    """Returns a side whose samples are steps of one long call of `fit`."""
    pauses = Pauses(steps)
    arguments = {"steps_per_epoch": 1_000_000, "callbacks": [pauses], "verbose": 0}
    threading.Thread(target=model.fit, args=[dataset], kwargs=arguments, daemon=True).start()
    return harness.clocked(pauses.take, steps * batch, noun)


SIDES = {RESNET: resnet, RESNET_KERAS: resnet_keras}


def write_images(folder: Path) -> None:
    """Writes TFRecords with JPEG files of smooth and fine noise, in ImageNet's usual sizes."""
    for part, files, count in (("train", 8, 128), ("validation", 2, 25)):
        for file in range(files):
            path = folder / f"{part}-{file:05d}-of-{files:05d}"
            with tf.io.TFRecordWriter(str(path)) as writer:
                for index in range(file, count, files):
                    writer.write(example(index))


def example(index: int) -> bytes:
    """Returns an image that is decoded as slowly as a photograph."""
    height, width = IMAGE_SIZES[index % len(IMAGE_SIZES)]
    random = np.random.default_rng(index)
    large = tf.image.resize(random.uniform(0, 255, [8, 8, 3]), [height, width])
    # Fine structure, without which a JPEG would be smaller and faster to decode.
    noise = tf.image.resize(random.normal(0, 40, [height // 2, width // 2, 3]), [height, width])
    encoded = tf.io.encode_jpeg(tf.saturate_cast(large + noise, tf.uint8), quality=90).numpy()
    label = tf.train.Int64List(value=[1 + index % 10])
    features = {
        "image/encoded": tf.train.Feature(bytes_list=tf.train.BytesList(value=[encoded])),
        "image/class/label": tf.train.Feature(int64_list=label),
    }
    return tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString()


def parse(record: tf.Tensor, size: int) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns an image and its label, as Keras' pipelines usually read them."""
    features = tf.io.parse_single_example(
        record,
        {
            "image/encoded": tf.io.FixedLenFeature([], tf.string),
            "image/class/label": tf.io.FixedLenFeature([], tf.int64),
        },
    )
    encoded = features["image/encoded"]
    begin, extent, _ = tf.image.sample_distorted_bounding_box(
        tf.io.extract_jpeg_shape(encoded),
        tf.constant([[[0.0, 0.0, 1.0, 1.0]]]),
        min_object_covered=0.1,
        aspect_ratio_range=[0.75, 4 / 3],
        area_range=[0.08, 1.0],
    )
    window = tf.stack([begin[0], begin[1], extent[0], extent[1]])
    image = tf.io.decode_and_crop_jpeg(encoded, window, channels=3)
    image = tf.image.random_flip_left_right(tf.image.resize(image, [size, size]))
    return image - [123.68, 116.78, 103.94], features["image/class/label"] - 1


def main() -> None:
    """Measures all sides, or serves one in this process."""
    parser = harness.parser("supervised", __doc__)
    parser.add_argument("--data-dir", type=Path, help="TFRecord files; default: makes some")
    parser.add_argument("--precision", default="float32", choices=["float32", "bfloat16"])
    parser.add_argument("--size", type=int, default=64, help="pixels of ResNet-50's images")
    parser.add_argument("--batch", type=int, default=32, help="images of ResNet-50's steps")
    parser.add_argument("--steps", type=int, default=2, help="ResNet-50's steps of a sample")
    parser.add_argument(
        "--replicas", default="single_device", help="argument of rr.make, ResNet-50"
    )
    parser.add_argument("--side", choices=list(SIDES), help="be the process of this side")
    options = parser.parse_args()
    if options.side is not None:
        processes.serve(SIDES[options.side](options))
        return
    report = harness.Report("supervised", options)
    with tempfile.TemporaryDirectory() as folder:
        if options.data_dir is None:
            options.data_dir = Path(folder)
            write_images(options.data_dir)
        words = ["bench.supervised", "--data-dir", str(options.data_dir)]
        for name in ("precision", "size", "batch", "steps", "replicas"):
            words += [f"--{name}", str(getattr(options, name))]
        commands = {side: [[*words, "--side", side]] for side in SIDES}
        with processes.groups(commands) as sides:
            report.add(harness.measure(sides, options.rounds), {RESNET: RESNET_KERAS})
    report.write()


if __name__ == "__main__":
    main()
