"""ResNet-50 at 224x224 from TFRecords of JPEG files: this project's learner beside Keras.

    PYTHONPATH=. python bench/resnet_throughput.py [--data-dir FOLDER] [--precision float32]

Both train on the same files, batch and type, take turns in processes of their own, and are measured
after a warm-up: images a second by the clock, and by the processor time of the process, which does
not depend on who else uses the machine. Keras is `tf.keras.applications.ResNet50` with `model.fit`
under MirroredStrategy, on the usual tf.data pipeline: parse, random window, decode, flip, batch.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import resnet_records

_WARM_UP_STEPS = 2
_NUM_CLASSES = 1000
_LEARNING_RATE, _MOMENTUM = 0.0125, 0.9


def main() -> None:
    options = _options()
    if options.side:
        {"ours": ours, "keras": keras}[options.side](options)
        return
    with tempfile.TemporaryDirectory() as scratch:
        if options.data_dir is None:
            options.data_dir = Path(scratch)
            # In a process of its own, so that this one holds no threads of TensorFlow's.
            subprocess.run([sys.executable, resnet_records.__file__, scratch, "256"], check=True)
        found: dict[str, list[tuple[float, float]]] = {"ours": [], "keras": []}
        for turn in range(options.turns):
            for side in sorted(found, reverse=turn % 2 == 0):
                found[side].append(_measure(side, options))
    for side, rates in found.items():
        wall, processor = (statistics.median(column) for column in zip(*rates, strict=True))
        print(f"{side}: {wall:.2f} images/s, {processor:.3f} images per processor second")
    for index, by in enumerate(("clock", "processor time")):
        ours_rate, keras_rate = (
            statistics.median(rate[index] for rate in found[side]) for side in ("ours", "keras")
        )
        print(f"ours / Keras by {by}: {ours_rate / keras_rate:.2f}")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--precision", default="float32", choices=["float32", "bfloat16"])
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--side", choices=["ours", "keras"])
    return parser.parse_args()


def _measure(side: str, options: argparse.Namespace) -> tuple[float, float]:
    command = [sys.executable, __file__, "--side", side]
    for name in ("data_dir", "precision", "batch", "steps"):
        command += [f"--{name.replace('_', '-')}", str(getattr(options, name))]
    environment = os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    seconds, processor = map(float, done.stdout.splitlines()[-1].split())
    images = options.batch * options.steps
    print(f"  {side}: {images / seconds:.2f} images/s by the clock", flush=True)
    return images / seconds, images / processor


def ours(options: argparse.Namespace) -> None:
    """Prints seconds and processor seconds of `steps` steps."""
    import rl_replicator as rr
    from rl_replicator.learners.resnet.config import ResNetConfig
    from rl_replicator.learners.resnet.learner import ResNetLearner

    config = ResNetConfig(
        data="imagenet",
        data_dir=str(options.data_dir),
        precision=options.precision,
        global_batch_size=options.batch,
        learning_rate=_LEARNING_RATE * 256 / options.batch,
        label_smoothing=0.0,
        weight_decay=0.0,
        warm_up_epochs=0.0,
    )
    replicator = rr.make("single_device")
    learner = ResNetLearner(replicator, config)
    step = replicator.replicate(learner.step_fn, replicator.make_inputs(learner.input_fn))
    for _ in range(_WARM_UP_STEPS):
        replicator.reduce("mean", step())
    start = time.perf_counter(), time.process_time()
    for _ in range(options.steps):
        metrics = replicator.reduce("mean", step())
    print(metrics, file=sys.stderr)
    print(time.perf_counter() - start[0], time.process_time() - start[1])


def keras(options: argparse.Namespace) -> None:
    """The same for Keras."""
    import tensorflow as tf

    if options.precision == "bfloat16":
        tf.keras.mixed_precision.set_global_policy("mixed_bfloat16")
    files = sorted(map(str, options.data_dir.glob("train-*")))
    dataset = tf.data.Dataset.from_tensor_slices(files).shuffle(len(files)).repeat()
    dataset = dataset.interleave(
        tf.data.TFRecordDataset, cycle_length=8, num_parallel_calls=tf.data.AUTOTUNE
    )
    dataset = dataset.shuffle(256).map(_parse, tf.data.AUTOTUNE)
    dataset = dataset.batch(options.batch, drop_remainder=True).prefetch(tf.data.AUTOTUNE)
    with tf.distribute.MirroredStrategy(["/cpu:0"]).scope():
        model = tf.keras.applications.ResNet50(weights=None, classes=_NUM_CLASSES)
        model.compile(
            tf.keras.optimizers.SGD(_LEARNING_RATE, _MOMENTUM, nesterov=True),
            "sparse_categorical_crossentropy",
            metrics=["accuracy"],
        )

    class Clock(tf.keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if batch == _WARM_UP_STEPS - 1:
                self.start = time.perf_counter(), time.process_time()
            if batch == _WARM_UP_STEPS + options.steps - 1:
                wall, processor = self.start
                self.found = time.perf_counter() - wall, time.process_time() - processor

    clock = Clock()
    steps = _WARM_UP_STEPS + options.steps
    model.fit(dataset, steps_per_epoch=steps, epochs=1, callbacks=[clock], verbose=0)
    print(*clock.found)


def _parse(record):
    import tensorflow as tf

    features = tf.io.parse_single_example(
        record,
        {
            "image/encoded": tf.io.FixedLenFeature([], tf.string),
            "image/class/label": tf.io.FixedLenFeature([], tf.int64),
        },
    )
    encoded = features["image/encoded"]
    begin, size, _ = tf.image.sample_distorted_bounding_box(
        tf.io.extract_jpeg_shape(encoded),
        tf.constant([[[0.0, 0.0, 1.0, 1.0]]]),
        min_object_covered=0.1,
        aspect_ratio_range=[0.75, 4 / 3],
        area_range=[0.08, 1.0],
    )
    window = tf.stack([begin[0], begin[1], size[0], size[1]])
    image = tf.io.decode_and_crop_jpeg(encoded, window, channels=3)
    image = tf.image.random_flip_left_right(tf.image.resize(image, [224, 224]))
    return image - [123.68, 116.78, 103.94], features["image/class/label"] - 1


if __name__ == "__main__":
    main()
